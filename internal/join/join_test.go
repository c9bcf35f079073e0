package join

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type world struct {
	t     *testing.T
	store *state.Store
	svc   *Service
	log   bytes.Buffer
	took  []Registration
	err   error // of the next registrations
}

func newWorld(t *testing.T) *world {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: store}
	t.Cleanup(func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	w.svc, err = New(store, func(_ context.Context, r Registration) ([]string, error) {
		if w.err != nil {
			return nil, w.err
		}
		w.took = append(w.took, r)
		return []string{"a warning"}, nil
	}, slog.New(slog.NewTextHandler(&w.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) token(change func(*CreateRequest)) joinwire.Token {
	w.t.Helper()
	req := CreateRequest{Owner: "team", Actor: "user:op"}
	if change != nil {
		change(&req)
	}
	_, text, err := w.svc.Create(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	tok, err := joinwire.ParseToken(text)
	if err != nil {
		w.t.Fatal(err)
	}
	return tok
}

// attempt is a join under way, which a test may spoil before it is sent.
type attempt struct {
	w   *world
	tok joinwire.Token
	j   joinwire.Join
}

func (w *world) attempt(tok joinwire.Token, host joinwire.Host) *attempt {
	w.t.Helper()
	c := joinwire.Challenge{TokenID: tok.ID, ClientNonce: "nonce-of-the-host"}
	n, err := w.svc.Challenge(c)
	if err != nil {
		w.t.Fatal(err)
	}
	if host.SealedToken, err = tok.Seal(c.ClientNonce, n.ServerNonce, "the agent's token"); err != nil {
		w.t.Fatal(err)
	}
	doc, err := json.Marshal(host)
	if err != nil {
		w.t.Fatal(err)
	}
	j := joinwire.Join{TokenID: tok.ID, ClientNonce: c.ClientNonce, ServerNonce: n.ServerNonce, Document: doc}
	j.Proof = tok.Prove(j.Of())
	return &attempt{w, tok, j}
}

func (a *attempt) send() error {
	a.w.t.Helper()
	answer, err := a.w.svc.Join(a.w.t.Context(), a.j)
	if err == nil && !a.tok.CheckAnswer(a.j.Of(), answer) {
		a.w.t.Error("the answer does not prove the token")
	}
	return err
}

func host(id, registry string) joinwire.Host {
	return joinwire.Host{ID: id, RegistryID: registry, URL: "https://" + id + ":8090", CertSHA256: strings.Repeat("a", 64), Region: "own", Labels: map[string]string{"disk": "ssd", "zone": "own"}}
}

func TestAHostJoins(t *testing.T) {
	w := newWorld(t)
	tok := w.token(func(r *CreateRequest) { r.Region, r.Labels = "eu", map[string]string{"zone": "given"} })
	if err := w.attempt(tok, host("h1", "r1")).send(); err != nil {
		t.Fatal(err)
	}
	got := w.took[0]
	if got.ID != "h1" || got.Owner != "team" || got.Actor != "user:op" || got.Token != "the agent's token" || got.CertSHA256 == "" ||
		got.Region != "eu" || got.Labels["zone"] != "given" || got.Labels["disk"] != "ssd" || !strings.Contains(got.Evidence, tok.ID) {
		t.Errorf("registered %+v", got)
	}
	// It did not hear the answer and tries again: no second use.
	if err := w.attempt(tok, host("h1", "r1")).send(); err != nil || len(w.took) != 2 {
		t.Errorf("again: %v", err)
	}
	// Another host cannot use it, under whatever name.
	for _, other := range []joinwire.Host{host("h2", "r2"), host("h1", "r2"), host("h2", "r1")} {
		if err := w.attempt(tok, other).send(); fleet.CodeOf(err) != fleet.CodeUnauthorized || !strings.Contains(err.Error(), "was used by 1 of 1") {
			t.Errorf("%s %s: %v", other.ID, other.RegistryID, err)
		}
	}
	secret := strings.TrimPrefix(tok.Text(), "fjt_"+tok.ID+"_")
	list, err := w.svc.List()
	if err != nil || len(list) != 1 || len(list[0].Uses) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	stored, err := json.Marshal(list)
	if err != nil || strings.Contains(string(stored), secret) || strings.Contains(w.log.String(), secret) || strings.Contains(w.log.String(), "agent's token") {
		t.Errorf("the token shows in the state or the log, %v", err)
	}
}

func TestJoinsThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*attempt)
		code  fleet.Code
	}{
		"another token's proof": {func(a *attempt) {
			other, _ := joinwire.NewToken(a.tok.ID)
			a.j.Proof = other.Prove(a.j.Of())
		}, fleet.CodeUnauthorized},
		"no proof":           {func(a *attempt) { a.j.Proof = nil }, fleet.CodeUnauthorized},
		"another document":   {func(a *attempt) { a.j.Document = bytes.Replace(a.j.Document, []byte("h1"), []byte("h9"), 1) }, fleet.CodeUnauthorized},
		"a token unknown":    {func(a *attempt) { a.renamed("01ARZ3NDEKTSV4RRFFQ69G5FAV") }, fleet.CodeUnauthorized},
		"another nonce":      {func(a *attempt) { a.j.ClientNonce = "x" }, fleet.CodeUnavailable},
		"no server nonce":    {func(a *attempt) { a.j.ServerNonce = "" }, fleet.CodeUnavailable},
		"no client nonce":    {func(a *attempt) { a.j.ClientNonce = "" }, fleet.CodeInvalidArgument},
		"no document":        {func(a *attempt) { a.document("") }, fleet.CodeInvalidArgument},
		"no registry":        {func(a *attempt) { a.document(`{"id":"h1"}`) }, fleet.CodeInvalidArgument},
		"no sealed token":    {func(a *attempt) { a.document(`{"id":"h1","registry_id":"r"}`) }, fleet.CodeInvalidArgument},
		"another's token id": {func(a *attempt) { a.renamed(a.w.token(nil).ID) }, fleet.CodeUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.attempt(w.token(nil), host("h1", "r1"))
			tt.spoil(a)
			if err := a.send(); fleet.CodeOf(err) != tt.code || len(w.took) != 0 {
				t.Errorf("%v, registered %v", err, w.took)
			}
		})
	}
}

// document proves another document.
func (a *attempt) document(doc string) {
	a.j.Document = []byte(doc)
	a.j.Proof = a.tok.Prove(a.j.Of())
}

// renamed says that the token has another id, and has a nonce for it.
func (a *attempt) renamed(id string) {
	a.j.TokenID = id
	n, err := a.w.svc.Challenge(joinwire.Challenge{TokenID: id, ClientNonce: a.j.ClientNonce})
	if err != nil {
		a.w.t.Fatal(err)
	}
	a.j.ServerNonce = n.ServerNonce
	a.j.Proof = a.tok.Prove(a.j.Of())
}

func TestTokensEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		tok := w.token(func(r *CreateRequest) { r.Life = time.Hour })
		if err := w.attempt(tok, host("h1", "r1")).send(); err != nil {
			t.Fatal(err)
		}
		late := w.attempt(tok, host("h1", "r1"))
		<-time.After(3 * time.Minute)
		if err := late.send(); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("after the challenge's time: %v", err)
		}
		<-time.After(time.Hour)
		if err := w.attempt(tok, host("h1", "r1")).send(); fleet.CodeOf(err) != fleet.CodeUnauthorized || !strings.Contains(err.Error(), "expired") {
			t.Errorf("an expired one: %v", err)
		}
		tok = w.token(nil)
		a := w.attempt(tok, host("h2", "r2"))
		if err := w.svc.Revoke(t.Context(), tok.ID, "user:op"); err != nil {
			t.Fatal(err)
		}
		if err := a.send(); fleet.CodeOf(err) != fleet.CodeUnauthorized {
			t.Errorf("a revoked one: %v", err)
		}
		if err := w.svc.Revoke(t.Context(), tok.ID, "user:op"); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Error(err)
		}
	})
}

// A host that cannot be registered has not used the token.
func TestAFailedRegistrationIsNoUse(t *testing.T) {
	w := newWorld(t)
	tok := w.token(nil)
	w.err = fleet.Errorf(fleet.CodeUnavailable, "the agent does not answer")
	if err := w.attempt(tok, host("h1", "r1")).send(); !errors.Is(err, w.err) {
		t.Fatal(err)
	}
	w.err = nil
	if err := w.attempt(tok, host("h2", "r2")).send(); err != nil {
		t.Error(err)
	}
}

func TestUsesAndIDs(t *testing.T) {
	w := newWorld(t)
	tok := w.token(func(r *CreateRequest) { r.Uses = 2 })
	for id, ok := range map[string]bool{"h1": true, "h2": true} {
		if err := w.attempt(tok, host(id, "r"+id)).send(); (err == nil) != ok {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := w.attempt(tok, host("h3", "r3")).send(); fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("a third: %v", err)
	}
	tok = w.token(func(r *CreateRequest) { r.HostID = "h7" })
	if err := w.attempt(tok, host("h8", "r8")).send(); fleet.CodeOf(err) != fleet.CodeConflict || !strings.Contains(err.Error(), "h7") {
		t.Errorf("another host: %v", err)
	}
	if err := w.attempt(tok, host("h7", "r7")).send(); err != nil {
		t.Error(err)
	}
}

func TestCreateRequests(t *testing.T) {
	for name, change := range map[string]func(*CreateRequest){
		"uses below 1":      func(r *CreateRequest) { r.Uses = -1 },
		"too many uses":     func(r *CreateRequest) { r.Uses = MaxUses + 1 },
		"too long":          func(r *CreateRequest) { r.Life = MaxLife + time.Second },
		"over already":      func(r *CreateRequest) { r.Life = -time.Second },
		"a bad host id":     func(r *CreateRequest) { r.HostID = "a/b" },
		"a bad region":      func(r *CreateRequest) { r.Region = "a b" },
		"a bad label":       func(r *CreateRequest) { r.Labels = map[string]string{"a": "-"} },
		"one id, many uses": func(r *CreateRequest) { r.HostID, r.Uses = "h1", 2 },
	} {
		req := CreateRequest{Actor: "user:op"}
		change(&req)
		if _, _, err := newWorld(t).svc.Create(t.Context(), req); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTokensMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range MaxTokens {
			w.token(nil)
		}
		if _, _, err := w.svc.Create(t.Context(), CreateRequest{Actor: "user:op"}); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("one too many: %v", err)
		}
		<-time.After(2 * time.Hour)
		w.token(nil)
		if list, err := w.svc.List(); err != nil || len(list) != 1 {
			t.Errorf("%d are kept, %v", len(list), err)
		}
	})
}

// Anybody may ask, and cannot fill the log with it.
func TestRefusalsAreToldSoOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		tok := w.token(nil)
		for range 100 {
			a := w.attempt(tok, host("h1", "r1"))
			a.j.Proof = nil
			if err := a.send(); fleet.CodeOf(err) != fleet.CodeUnauthorized {
				t.Fatal(err)
			}
		}
		events, err := w.store.Events(t.Context(), state.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		events = slices.DeleteFunc(events, func(e fleet.Event) bool { return e.Type != fleet.EventJoinRefused })
		if len(events) != 10 {
			t.Errorf("%d events", len(events))
		}
	})
}

// One try of a host fails after another one of it has succeeded: the use is
// not given back, or a second host could join with it.
func TestALateFailureGivesNothingBack(t *testing.T) {
	w := newWorld(t)
	tok := w.token(nil)
	register := w.svc.register
	w.svc.register = func(ctx context.Context, r Registration) ([]string, error) {
		w.svc.register = register
		if err := w.attempt(tok, host("h1", "r1")).send(); err != nil {
			t.Error(err)
		}
		_, err := w.store.Update(ctx, func(tx *state.Tx) error {
			return tx.PutHost(fleet.Host{ID: "h1", State: fleet.HostActive, Facts: fleet.HostFacts{RegistryID: "r1"}})
		})
		return nil, errors.Join(err, fleet.Errorf(fleet.CodeUnavailable, "its answer was lost"))
	}
	if err := w.attempt(tok, host("h1", "r1")).send(); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	if err := w.attempt(tok, host("h2", "r2")).send(); fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("a second host with a token for one: %v", err)
	}
}
