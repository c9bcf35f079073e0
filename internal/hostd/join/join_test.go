package join_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/hostd/join"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// server answers joins as a control plane does, in memory.
type server struct {
	t     *testing.T
	v     joinwire.Verifier
	heard bytes.Buffer // all that came
	joins int
	// before answers in its place while it is not nil.
	before func(w http.ResponseWriter, r *http.Request) bool
	token  string // the agent's, as it was opened
	host   joinwire.Host
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), r.Context().Err()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.Header.Write(&s.heard)
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		s.t.Error(err)
	}
	s.heard.Write(body.Bytes())
	if s.before != nil && s.before(w, r) {
		return
	}
	switch r.URL.Path {
	case joinwire.ChallengePath:
		_ = json.NewEncoder(w).Encode(joinwire.Nonce{ServerNonce: "server nonce"})
	case joinwire.JoinPath:
		s.joins++
		var j joinwire.Join
		if err := json.Unmarshal(body.Bytes(), &j); err != nil || !s.v.Check(j.Of(), j.Proof) {
			s.t.Errorf("the proof does not hold: %v", err)
		}
		err := json.Unmarshal(j.Document, &s.host)
		if err == nil {
			s.token, err = s.v.Open(j.ClientNonce, j.ServerNonce, s.host.SealedToken)
		}
		answer, merr := json.Marshal(joinwire.Answer{HostID: s.host.ID, Warnings: []string{"cpus: a warning"}})
		if err != nil || merr != nil {
			s.t.Error(err, merr)
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(joinwire.Joined{Answer: answer, Proof: s.v.Answer(j.Of(), answer)})
	default:
		s.t.Errorf("asked for %s", r.URL.Path)
	}
}

type world struct {
	*server
	cfg join.Config
	log bytes.Buffer
	tok joinwire.Token
}

func newWorld(t *testing.T) *world {
	t.Helper()
	tok, err := joinwire.NewToken("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{server: &server{t: t, v: tok.Verifier()}, tok: tok}
	w.cfg = join.Config{
		Server: "https://plane:8080/", Token: tok.Text(), AgentToken: "the agent's token", Dir: t.TempDir(), Transport: w.server,
		Host:   joinwire.Host{ID: "h1", URL: "https://h1:8090", RegistryID: "r1"},
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	return w
}

func TestJoin(t *testing.T) {
	w := newWorld(t)
	if err := join.Run(t.Context(), w.cfg); err != nil {
		t.Fatal(err)
	}
	if w.host.ID != "h1" || w.token != "the agent's token" || !strings.Contains(w.log.String(), "cpus: a warning") {
		t.Errorf("registered %+v with %q, log %s", w.host, w.token, &w.log)
	}
	secret := strings.TrimPrefix(w.cfg.Token, "fjt_01ARZ3NDEKTSV4RRFFQ69G5FAV_")
	for what, text := range map[string]string{"what was sent": w.heard.String(), "the log": w.log.String()} {
		if strings.Contains(text, secret) || strings.Contains(text, "agent's token") {
			t.Errorf("%s shows a token: %s", what, text)
		}
	}
	// The next start has nothing to do; another address, or token, has.
	for changed, do := range map[string]func(*join.Config){
		"nothing": func(*join.Config) {}, "the slash": func(c *join.Config) { c.Server = "https://plane:8080" },
	} {
		cfg := w.cfg
		do(&cfg)
		if err := join.Run(t.Context(), cfg); err != nil || w.joins != 1 {
			t.Errorf("%s changed: %d joins, %v", changed, w.joins, err)
		}
	}
	w.cfg.Host.URL = "https://h1:9999"
	if err := join.Run(t.Context(), w.cfg); err != nil || w.joins != 2 {
		t.Errorf("another address: %d joins, %v", w.joins, err)
	}
	doc, err := os.ReadFile(filepath.Join(w.cfg.Dir, "joined.json"))
	if err != nil || strings.Contains(string(doc), secret) {
		t.Errorf("the record is %s, %v", doc, err)
	}
}

func problem(status int, code string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"code":%q,"message":"because","details":{"remedy":"do this"}}}`, code)
		return true
	}
}

func TestRefusalsThatEnd(t *testing.T) {
	for code, status := range map[string]int{"unauthorized": 401, "invalid_argument": 400, "conflict": 409, "route_not_found": 404} {
		w := newWorld(t)
		w.before = problem(status, code)
		err := join.Run(t.Context(), w.cfg)
		if err == nil || !strings.Contains(err.Error(), "because") || !strings.Contains(err.Error(), "do this") {
			t.Errorf("%s: %v", code, err)
		}
	}
	for name, change := range map[string]func(*join.Config){
		"no token":     func(c *join.Config) { c.Token = "" },
		"no server":    func(c *join.Config) { c.Server = "plane:8080" },
		"credentials":  func(c *join.Config) { c.Server = "https://u:p@plane" },
		"a bad id":     func(c *join.Config) { c.Host.ID = "a/b" },
		"another kind": func(c *join.Config) { c.Server = "unix:///x" },
	} {
		w := newWorld(t)
		change(&w.cfg)
		if err := join.Run(t.Context(), w.cfg); err == nil || w.heard.Len() > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What may pass is tried again, ever more slowly, for as long as the agent runs.
func TestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, before := range map[string]func(http.ResponseWriter, *http.Request) bool{
			"a server that is starting": problem(503, "unavailable"),
			"one that cannot reach us":  problem(502, "internal"),
			"no Fuse server":            func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true },
			"one without the token": func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == joinwire.JoinPath {
					_ = json.NewEncoder(w).Encode(joinwire.Joined{Answer: []byte("{}"), Proof: []byte("x")})
					return true
				}
				return false
			},
		} {
			w := newWorld(t)
			tries := 0
			w.before = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == joinwire.ChallengePath {
					tries++
				}
				return tries < 10 && before(rw, r)
			}
			begun := time.Now()
			if err := join.Run(t.Context(), w.cfg); err != nil || tries != 10 {
				t.Errorf("%s: %d tries, %v", name, tries, err)
			}
			if took := time.Since(begun); took < 3*time.Minute || took > 10*time.Minute {
				t.Errorf("%s: it took %s", name, took)
			}
		}
		w := newWorld(t)
		w.before = problem(503, "unavailable")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := join.Run(ctx, w.cfg); err != nil {
			t.Errorf("when the agent ends: %v", err)
		}
	})
}
