// Package hostlife holds the verbs of a host's life, its figures, and the routes
// by which hosts join.
package hostlife

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/evacuation"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/join"
	"github.com/fusevm/fuse/internal/state"
)

// Hosts change what is known of hosts.
type Hosts interface {
	Label(ctx context.Context, id string, set map[string]string, remove []string, actor string) error
	Repin(ctx context.Context, id, fingerprint, actor string) error
	Forget(ctx context.Context, id, actor string) (hosts.Forgot, error)
	Metrics(ctx context.Context, id string) ([]byte, error)
}

// Drains empty hosts.
type Drains interface {
	Start(ctx context.Context, req evacuation.Request) error
	Cancel(ctx context.Context, hostID, actor string) error
}

// Joins take in hosts that register themselves.
type Joins interface {
	Create(ctx context.Context, req join.CreateRequest) (fleet.JoinToken, string, error)
	List() ([]fleet.JoinToken, error)
	Revoke(ctx context.Context, id, actor string) error
	Challenge(c joinwire.Challenge) (joinwire.Nonce, error)
	Join(ctx context.Context, j joinwire.Join) (joinwire.Joined, error)
}

// Config is what the routes need.
type Config struct {
	Hosts  Hosts
	Drains Drains
	Joins  Joins
	Keeper web.Keeper
}

type routes struct{ Config }

// Actions are the values of ?action= on a host beyond cordon and uncordon.
func Actions(c Config) map[string]web.Action {
	s := routes{c}
	return map[string]web.Action{
		"drain": {BodyLimit: web.BodyLimit, Handle: s.drain},
		"cancel-drain": {BodyLimit: web.BodyLimit, Handle: s.done(func(ctx context.Context, r *web.Request, _ gen.ActOnHost) error {
			return s.Drains.Cancel(ctx, r.Param, r.Principal().Actor())
		})},
		"label": {BodyLimit: web.BodyLimit, Handle: s.done(func(ctx context.Context, r *web.Request, body gen.ActOnHost) error {
			return s.Hosts.Label(ctx, r.Param, body.Set, body.Remove, r.Principal().Actor())
		})},
		"repin": {BodyLimit: web.BodyLimit, Handle: s.done(func(ctx context.Context, r *web.Request, body gen.ActOnHost) error {
			return s.Hosts.Repin(ctx, r.Param, body.CertSha256, r.Principal().Actor())
		})},
		"forget": {BodyLimit: web.BodyLimit, Handle: s.forget},
	}
}

// Routes are the routes of figures and joins.
func Routes(c Config) []web.Route {
	s := routes{c}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/hosts/{id}/metrics", Slow: true, Handle: s.metrics},
		{Method: http.MethodGet, Pattern: "/v1/host-join-tokens", Handle: s.listTokens},
		{Method: http.MethodPost, Pattern: "/v1/host-join-tokens", BodyLimit: web.BodyLimit, Handle: s.createToken},
		{Method: http.MethodDelete, Pattern: "/v1/host-join-tokens/{id}", BodyLimit: web.BodyLimit, Handle: s.revokeToken},
		{Method: http.MethodPost, Pattern: joinwire.ChallengePath, Access: web.ByNobody, BodyLimit: web.LoginLimit, Handle: s.challenge},
		{Method: http.MethodPost, Pattern: joinwire.JoinPath, Access: web.ByNobody, BodyLimit: web.BodyLimit, Slow: true, Handle: s.join},
	}
}

// body reads what comes with an action; nothing is an empty one.
func body(w http.ResponseWriter, r *web.Request) (b gen.ActOnHost, err error) {
	if len(r.Payload) == 0 {
		return b, nil
	}
	return b, web.Decode(w, r, &b)
}

// done is an action that is answered with nothing.
func (s routes) done(do func(context.Context, *web.Request, gen.ActOnHost) error) web.Handler {
	return func(w http.ResponseWriter, r *web.Request) error {
		b, err := body(w, r)
		if err != nil {
			return err
		}
		_, err = web.Once(w, r, s.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
			return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, do(ctx, r, b)
		})
		if err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
}

func (s routes) drain(w http.ResponseWriter, r *web.Request) error {
	return s.done(func(ctx context.Context, r *web.Request, b gen.ActOnHost) error {
		req := evacuation.Request{HostID: r.Param, Actor: r.Principal().Actor()}
		var err error
		if req.Deadline, err = seconds("deadline_seconds", b.DeadlineSeconds); err != nil {
			return err
		}
		if b.GraceSeconds != nil {
			grace, err := seconds("grace_seconds", *b.GraceSeconds)
			if err != nil {
				return err
			}
			req.Grace = &grace
		}
		return s.Drains.Start(ctx, req)
	})(w, r)
}

// seconds reads a number of seconds that a duration can hold.
func seconds(field string, n int64) (time.Duration, error) {
	const most = int64(evacuation.MaxDeadline / time.Second)
	if n < 0 || n > most {
		return 0, fleet.Errorf(fleet.CodeInvalidArgument, "%s is %d", field, n).
			With(fleet.DetailScope, field).With(fleet.DetailLimit, "0 to 604800")
	}
	return time.Duration(n) * time.Second, nil
}

// forget answers a repeat of a request without the counts, which are not kept.
func (s routes) forget(w http.ResponseWriter, r *web.Request) error {
	var out gen.ForgottenHost
	_, err := web.Once(w, r, s.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		forgot, err := s.Hosts.Forget(ctx, r.Param, r.Principal().Actor())
		out = gen.ForgottenHost{Lost: &forgot.Lost, Environments: forgot.Names}
		return idempotency.Answer{Status: http.StatusOK, ResourceID: r.Param}, err
	})
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) metrics(w http.ResponseWriter, r *web.Request) error {
	text, err := s.Hosts.Metrics(r.Context(), r.Param)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err = w.Write(text)
	return err
}

func (s routes) listTokens(w http.ResponseWriter, _ *web.Request) error {
	list, err := s.Joins.List()
	if err != nil {
		return err
	}
	out := gen.JoinTokenList{JoinTokens: make([]gen.JoinToken, 0, len(list))}
	for _, t := range list {
		joined := make([]string, 0, len(t.Uses))
		for _, u := range t.Uses {
			joined = append(joined, u.HostID)
		}
		out.JoinTokens = append(out.JoinTokens, gen.JoinToken{
			ID: t.ID, CreatedBy: t.CreatedBy, CreatedAt: t.CreatedAt.UTC(), ExpiresAt: t.ExpiresAt.UTC(), Uses: t.MaxUses, Hosts: joined,
			HostID: t.HostID, Region: t.Region, Labels: t.Labels,
		})
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) createToken(w http.ResponseWriter, r *web.Request) error {
	var body gen.CreateJoinToken
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	const most = int64(join.MaxLife / time.Second)
	if body.ExpiresInSeconds < 0 || body.ExpiresInSeconds > most {
		return fleet.Invalid("expires_in_seconds", "1 to 2592000", "leave it out for an hour", "is %d", body.ExpiresInSeconds)
	}
	p := r.Principal()
	req := join.CreateRequest{
		Uses: body.Uses, Life: time.Duration(body.ExpiresInSeconds) * time.Second, HostID: body.HostID, Region: body.Region, Labels: body.Labels,
		Owner: p.Name, Actor: p.Actor(),
	}
	var made fleet.JoinToken
	var text string
	answer, err := web.Once(w, r, s.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		if made, text, err = s.Joins.Create(ctx, req); err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: http.StatusCreated, ResourceID: made.ID}, nil
	})
	switch {
	case err != nil:
		return err
	case answer.Replayed: // its text is not kept
		return fleet.Errorf(fleet.CodeConflict, "this Idempotency-Key has made join token %s, whose text was told then", answer.ResourceID).
			With(fleet.DetailRemedy, "revoke it and make another")
	}
	web.WriteJSON(w, http.StatusCreated, gen.NewJoinToken{ID: made.ID, Token: text, ExpiresAt: made.ExpiresAt.UTC(), Uses: made.MaxUses})
	return nil
}

func (s routes) revokeToken(w http.ResponseWriter, r *web.Request) error {
	_, err := web.Once(w, r, s.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.Joins.Revoke(ctx, r.Param, r.Principal().Actor())
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s routes) challenge(w http.ResponseWriter, r *web.Request) error {
	var body gen.JoinChallenge
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	nonce, err := s.Joins.Challenge(joinwire.Challenge{TokenID: body.TokenID, ClientNonce: body.ClientNonce})
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, gen.JoinNonce{ServerNonce: nonce.ServerNonce})
	return nil
}

func (s routes) join(w http.ResponseWriter, r *web.Request) error {
	var body gen.JoinHost
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	joined, err := s.Joins.Join(r.Context(), joinwire.Join{
		TokenID: body.TokenID, ClientNonce: body.ClientNonce, ServerNonce: body.ServerNonce, Document: body.Document, Proof: body.Proof,
	})
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusCreated, gen.JoinedHost{Answer: joined.Answer, Proof: joined.Proof})
	return nil
}
