package hostlife_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/hostlife"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/evacuation"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/join"
)

// services note what they are asked for.
type services struct {
	asked string
	err   error
}

func (s *services) note(format string, args ...any) error {
	s.asked = fmt.Sprintf(format, args...)
	return s.err
}

func (s *services) Label(_ context.Context, id string, set map[string]string, remove []string, _ string) error {
	return s.note("label %s %v %v", id, set, remove)
}

func (s *services) Repin(_ context.Context, id, fingerprint, _ string) error {
	return s.note("repin %s %s", id, fingerprint)
}

func (s *services) Forget(_ context.Context, id, _ string) (hosts.Forgot, error) {
	return hosts.Forgot{Lost: 2, Names: []string{"a", "b"}}, s.note("forget %s", id)
}

func (s *services) Metrics(_ context.Context, id string) ([]byte, error) {
	return []byte("# TYPE x gauge\n"), s.note("metrics %s", id)
}

func (s *services) Start(_ context.Context, r evacuation.Request) error {
	grace := "none"
	if r.Grace != nil {
		grace = r.Grace.String()
	}
	return s.note("drain %s %s %s", r.HostID, grace, r.Deadline)
}

func (s *services) Cancel(_ context.Context, id, _ string) error { return s.note("cancel %s", id) }

func (s *services) Create(_ context.Context, r join.CreateRequest) (fleet.JoinToken, string, error) {
	return fleet.JoinToken{ID: "J", MaxUses: r.Uses, ExpiresAt: time.Unix(0, 0)}, "the text", s.note("token %d %s %s %s %v", r.Uses, r.Life, r.HostID, r.Region, r.Labels)
}

func (s *services) List() ([]fleet.JoinToken, error) {
	return []fleet.JoinToken{{ID: "J", StoredKey: []byte("stored-key"), ServerKey: []byte("server-key"), MaxUses: 2, Uses: []fleet.JoinUse{{HostID: "h1"}}}}, s.note("tokens")
}

func (s *services) Revoke(_ context.Context, id, _ string) error { return s.note("revoke %s", id) }

func (s *services) Challenge(c joinwire.Challenge) (joinwire.Nonce, error) {
	return joinwire.Nonce{ServerNonce: "n"}, s.note("challenge %s %s", c.TokenID, c.ClientNonce)
}

func (s *services) Join(_ context.Context, j joinwire.Join) (joinwire.Joined, error) {
	return joinwire.Joined{Answer: []byte("a"), Proof: []byte("p")}, s.note("join %s %s %s %s %s", j.TokenID, j.ClientNonce, j.ServerNonce, j.Document, j.Proof)
}

func ask(t *testing.T, s *services, handle web.Handler, param, body string) (*httptest.ResponseRecorder, error) {
	t.Helper()
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	err := handle(w, &web.Request{Request: req, Route: &web.Route{}, Param: param, Payload: []byte(body), Log: slog.New(slog.DiscardHandler)})
	return w, err
}

func TestActions(t *testing.T) {
	for name, tt := range map[string]struct {
		action, body string
		err          error
		code         fleet.Code
		asked        string
		status       int
		says         string
	}{
		"a drain by default":  {action: "drain", asked: "drain h1 none 0s", status: 204},
		"a drain":             {action: "drain", body: `{"grace_seconds":0,"deadline_seconds":60}`, asked: "drain h1 0s 1m0s", status: 204},
		"a grace below 0":     {action: "drain", body: `{"grace_seconds":-1}`, code: fleet.CodeInvalidArgument},
		"a huge deadline":     {action: "drain", body: `{"deadline_seconds":99999999999999}`, code: fleet.CodeInvalidArgument},
		"a second drain":      {action: "drain", err: fleet.Errorf(fleet.CodeConflict, "already"), code: fleet.CodeConflict, asked: "drain h1 none 0s"},
		"a cancel":            {action: "cancel-drain", asked: "cancel h1", status: 204},
		"labels":              {action: "label", body: `{"set":{"a":"b"},"remove":["c"]}`, asked: "label h1 map[a:b] [c]", status: 204},
		"a repin":             {action: "repin", body: `{"cert_sha256":"ff"}`, asked: "repin h1 ff", status: 204},
		"a repin by proof":    {action: "repin", asked: "repin h1 ", status: 204},
		"a host given up":     {action: "forget", asked: "forget h1", status: 200, says: `{"environments":["a","b"],"lost":2}`},
		"a host that answers": {action: "forget", err: fleet.Errorf(fleet.CodeConflict, "it answers"), code: fleet.CodeConflict, asked: "forget h1"},
		"no JSON":             {action: "label", body: `{`, code: fleet.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			s := &services{err: tt.err}
			actions := hostlife.Actions(hostlife.Config{Hosts: s, Drains: s, Joins: s, Keeper: idempotency.New(nil)})
			w, err := ask(t, s, actions[tt.action].Handle, "h1", tt.body)
			if fleet.CodeOf(err) != tt.code || s.asked != tt.asked {
				t.Fatalf("%v, asked %q", err, s.asked)
			}
			if err == nil && (w.Code != tt.status || strings.TrimSpace(w.Body.String()) != tt.says) {
				t.Errorf("answered %d %q", w.Code, w.Body)
			}
		})
	}
}

func TestRoutes(t *testing.T) {
	for name, tt := range map[string]struct {
		route, param, body string
		code               fleet.Code
		asked              string
		status             int
		says               string
	}{
		"figures":         {route: "GET /v1/hosts/{id}/metrics", param: "h1", asked: "metrics h1", status: 200, says: "# TYPE x gauge"},
		"a token":         {route: "POST /v1/host-join-tokens", body: `{"uses":3,"expires_in_seconds":60,"host_id":"h","region":"r","labels":{"a":"b"}}`, asked: "token 3 1m0s h r map[a:b]", status: 201, says: `"token":"the text"`},
		"a long token":    {route: "POST /v1/host-join-tokens", body: `{"expires_in_seconds":9223372036854775807}`, code: fleet.CodeInvalidArgument},
		"tokens":          {route: "GET /v1/host-join-tokens", asked: "tokens", status: 200, says: `"hosts":["h1"]`},
		"an end":          {route: "DELETE /v1/host-join-tokens/{id}", param: "J", asked: "revoke J", status: 204},
		"a challenge":     {route: "POST /v1/host-join/challenge", body: `{"token_id":"J","client_nonce":"c"}`, asked: "challenge J c", status: 200, says: `{"server_nonce":"n"}`},
		"a join":          {route: "POST /v1/host-join", body: `{"token_id":"J","client_nonce":"c","server_nonce":"n","document":"e30=","proof":"cA=="}`, asked: "join J c n {} p", status: 201, says: `{"answer":"YQ==","proof":"cA=="}`},
		"a join of noise": {route: "POST /v1/host-join", body: `[]`, code: fleet.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			s := &services{}
			for _, r := range hostlife.Routes(hostlife.Config{Hosts: s, Drains: s, Joins: s, Keeper: idempotency.New(nil)}) {
				if r.Method+" "+r.Pattern != tt.route {
					continue
				}
				w, err := ask(t, s, r.Handle, tt.param, tt.body)
				if fleet.CodeOf(err) != tt.code || s.asked != tt.asked {
					t.Fatalf("%v, asked %q", err, s.asked)
				}
				if err == nil && (w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says)) {
					t.Errorf("answered %d %q", w.Code, w.Body)
				}
				if strings.Contains(w.Body.String(), "stored-key") || strings.Contains(w.Body.String(), "server_key") {
					t.Errorf("it shows what is kept of a token: %s", w.Body)
				}
				return
			}
			t.Error("there is no such route")
		})
	}
}
