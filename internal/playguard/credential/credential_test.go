package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
)

func newService(t *testing.T) *Service {
	t.Helper()
	store, sealer := storetest.OpenSealed(t)
	return &Service{Store: store, Sealer: sealer, Kick: func() {}}
}

func (s *Service) put(t *testing.T, r Request) Secret {
	t.Helper()
	n := 0
	out, err := s.Set(t.Context(), fleet.Reason{}, r, func() string { n++; return fmt.Sprintf("id%s%s%d", r.Owner, r.Name, n) })
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func login(owner, registry, user, password string, marquee model.MarqueeID) Request {
	return Request{Secret: Secret{Owner: owner, Name: registry, Kind: KindRegistry, Username: user, Marquee: marquee}, Value: []byte(password)}
}

// A playground gets the logins of the registries that its images come from: its
// owner's, else its marquee's, and nobody else's.
func TestLogins(t *testing.T) {
	s := newService(t)
	s.put(t, login("alice", "ghcr.io", "a", "pa", ""))
	s.put(t, login("bob", "ghcr.io", "b", "pb", ""))
	s.put(t, login("ops", "docker.io", "hub", "ph", "m1"))
	s.put(t, login("ops", "ghcr.io", "all", "px", "m1"))
	s.put(t, login("alice", "unused.example.org", "a", "pu", ""))
	logins := func(owner string, marquee model.MarqueeID, registries ...string) string {
		t.Helper()
		p := &records.Playground{Playground: model.Playground{Marquee: marquee}, Owner: owner, Registries: registries}
		var raw []byte
		if err := s.Store.View(func(tx *state.ReadTx) (err error) {
			raw, err = Logins(tx, s.Sealer, p)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		var out struct {
			Auths map[string]struct{ Auth string }
		}
		if raw == nil {
			return ""
		}
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, r := range []string{"ghcr.io", hub, "unused.example.org"} {
			if a, ok := out.Auths[r]; ok {
				plain, err := base64.StdEncoding.DecodeString(a.Auth)
				if err != nil {
					t.Fatal(err)
				}
				text = append(text, r+"="+string(plain))
			}
		}
		return strings.Join(text, " ")
	}
	for want, got := range map[string]string{
		"ghcr.io=a:pa": logins("alice", "m2", "ghcr.io"), "ghcr.io=a:pa " + hub + "=hub:ph": logins("alice", "m1", "docker.io", "ghcr.io"),
		"ghcr.io=b:pb": logins("bob", "m1", "ghcr.io"), "ghcr.io=all:px": logins("carol", "m1", "ghcr.io"), "": logins("carol", "m2", "ghcr.io", "docker.io"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestBadSecrets(t *testing.T) {
	for name, r := range map[string]Request{
		"no name":           {Secret: Secret{Kind: KindToken}, Value: []byte("x")},
		"no kind":           {Secret: Secret{Name: "a"}, Value: []byte("x")},
		"empty":             {Secret: Secret{Name: "a", Kind: KindToken}},
		"two lines":         {Secret: Secret{Name: "a", Kind: KindToken}, Value: []byte("x\npassword=y")},
		"too long":          {Secret: Secret{Name: "a", Kind: KindValue}, Value: make([]byte, MaxValue+1)},
		"no key":            {Secret: Secret{Name: "a", Kind: KindSSHKey}, Value: []byte("-----BEGIN hidden-----")},
		"a registry's path": login("a", "ghcr.io/x", "u", "p", ""),
		"no user":           login("a", "ghcr.io", "", "p", ""),
		"a user with colon": login("a", "ghcr.io", "u:v", "p", ""),
		"http source":       {Secret: Secret{Name: "a", Kind: KindToken, Source: Source{URL: "http://tokens.example.org/x"}}},
		"source with user":  {Secret: Secret{Name: "a", Kind: KindToken, Source: Source{URL: "https://u:p@tokens.example.org/x"}}},
	} {
		if err := r.Check(r.Value); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Git is given a secret only where it belongs.
func TestGitCredentials(t *testing.T) {
	s := newService(t)
	s.put(t, Request{Secret: Secret{Owner: "alice", Name: "git", Kind: KindToken}, Value: []byte("t0ken")})
	get := func(owner, repository string) (map[string][]byte, error) {
		var out map[string][]byte
		err := s.Store.View(func(tx *state.ReadTx) (err error) {
			out, err = GitCredential(tx, s.Sealer, owner, records.Source{Repository: repository, Secret: "git"})
			return err
		})
		return out, err
	}
	files, err := get("alice", "https://git.example.org:8443/a")
	if err != nil || string(files["credential"]) != "username=token\npassword=t0ken\n" || string(files["host"]) != "protocol=https\nhost=git.example.org:8443\n" {
		t.Errorf("%q %v", files, err)
	}
	for _, c := range [][2]string{{"bob", "https://git.example.org/a"}, {"alice", "ssh://git@git.example.org/a"}, {"alice", "http://git.example.org/a"}} {
		if files, err := get(c[0], c[1]); err == nil || files != nil || strings.Contains(err.Error(), "t0ken") {
			t.Errorf("%s at %s: %q %v", c[0], c[1], files, err)
		}
	}
}

func TestNextRefresh(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	at := func(life time.Duration, failures int) time.Duration {
		return NextRefresh(Secret{Source: Source{URL: "x"}, Sealed: []byte{1}, ExpiresAt: now.Add(life), Failures: failures}, now).Sub(now)
	}
	for _, c := range []struct{ got, want time.Duration }{
		{at(10*time.Hour, 0), 8 * time.Hour}, {at(20*time.Minute, 0), 15 * time.Minute}, {at(4*time.Minute, 0), 2 * time.Minute},
		{at(time.Hour, 1), 30 * time.Second}, {at(time.Hour, 3), 2 * time.Minute}, {at(time.Hour, 20), 10 * time.Minute},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	if !NextRefresh(Secret{}, now).IsZero() || !NextRefresh(Secret{Source: Source{URL: "x"}}, now).Equal(now) {
		t.Error("a secret without a source, or without a value")
	}
}

// A secret with a source is replaced before it ends; one whose source fails
// keeps its value and is tried again, later and later.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		var asked, kicked atomic.Int64
		var fail, cut atomic.Bool
		source := roundTrip(func(r *http.Request) (*http.Response, error) {
			n := asked.Add(1)
			w := httptest.NewRecorder()
			switch {
			case r.Header.Get("Authorization") != "Bearer source" || r.URL.Query().Get("key") != "hidden":
				w.WriteHeader(http.StatusUnauthorized)
			case cut.Load():
				return nil, errors.New("connection refused")
			case fail.Load():
				w.WriteHeader(http.StatusBadGateway)
				w.WriteString(`{"token":"leaked"}`)
			default:
				fmt.Fprintf(w, `{"token":"t%d","expires_in":3600}`, n)
			}
			return w.Result(), nil
		})
		r := &Refresher{Store: s.Store, Sealer: s.Sealer, Logger: slog.New(slog.DiscardHandler), Client: &http.Client{Transport: source}, Kick: func() { kicked.Add(1) }}
		set := s.put(t, Request{Authorization: "Bearer source", Secret: Secret{Owner: "ops", Name: "git", Kind: KindToken, Source: Source{URL: "https://tokens.example.org/?key=hidden"}}})
		if raw, err := json.Marshal(set); err != nil || bytes.Contains(raw, []byte("hidden")) || set.Source.Shown() != "https://tokens.example.org/?…" {
			t.Errorf("%s, shown as %s: %v", raw, set.Source.Shown(), err)
		}
		if at := (Source{URL: "https://tokens.example.org/?key=hidden"}).Shown(); strings.Contains(at, "hidden") {
			t.Errorf("one that was not sealed is shown as %s", at)
		}
		value := func() (string, Secret) {
			t.Helper()
			var out string
			var row Secret
			if err := s.Store.View(func(tx *state.ReadTx) error {
				v, _ := Secrets.Get(tx, set.ID)
				row = *v
				raw, err := v.Open(s.Sealer)
				out = string(raw)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return out, row
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		if v, row := value(); v != "t1" || !row.ExpiresAt.Equal(time.Now().Add(time.Hour)) || kicked.Load() != 1 {
			t.Errorf("%s %+v, kicked %d", v, row.ExpiresAt, kicked.Load())
		}
		advance := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		advance(47 * time.Minute)
		if v, _ := value(); v != "t1" {
			t.Error("it was replaced too early:", v)
		}
		advance(2 * time.Minute)
		if v, _ := value(); v != "t2" {
			t.Error("it was not replaced before its end:", v)
		}
		fail.Store(true)
		advance(2 * time.Hour)
		v, row := value()
		if v != "t2" || row.Failures < 4 || row.Failures > 30 || strings.Contains(row.Failure, "leaked") {
			t.Errorf("%s after %d failures: %s", v, row.Failures, row.Failure)
		}
		cut.Store(true)
		advance(15 * time.Minute)
		if _, row := value(); !strings.Contains(row.Failure, "connection refused") || strings.Contains(row.Failure, "hidden") {
			t.Errorf("%s", row.Failure)
		}
		cut.Store(false)
		fail.Store(false)
		advance(15 * time.Minute)
		if v, row := value(); v == "t2" || row.Failures != 0 || row.Failure != "" {
			t.Errorf("%s %+v", v, row.Failures)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Sources that never answer keep nobody's secrets from being replaced in time,
// neither another owner's nor those of their own.
func TestDeadSourcesAreNotInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		source := roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "dead.example.org" {
				<-r.Context().Done()
				return nil, context.Cause(r.Context())
			}
			w := httptest.NewRecorder()
			w.WriteString(`{"token":"t","expires_in":600}`)
			return w.Result(), nil
		})
		at := func(owner, name, host string) string {
			return s.put(t, Request{Secret: Secret{Owner: owner, Name: name, Kind: KindToken, Source: Source{URL: "https://" + host + "/"}}}).ID
		}
		live := []string{at("bob", "git", "tokens.example.org")}
		for i := range 60 {
			at("ann", fmt.Sprintf("dead%02d", i), "dead.example.org")
		}
		live = append(live, at("ann", "git", "tokens.example.org"))
		r := &Refresher{Store: s.Store, Sealer: s.Sealer, Logger: slog.New(slog.DiscardHandler), Client: &http.Client{Transport: source}}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		<-time.After(20 * time.Minute) // each dead one was asked by then
		over := 0
		for range 40 {
			<-time.After(time.Minute)
			synctest.Wait()
			if err := s.Store.View(func(tx *state.ReadTx) error {
				for _, id := range live {
					if v, _ := Secrets.Get(tx, id); v.Sealed == nil || !time.Now().Before(v.ExpiresAt) {
						over++
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if over > 0 {
			t.Errorf("secrets with a live source were over in %d of 80 looks", over)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A login is forgotten by the name that it was made with, also one for a marquee.
func TestRemoveByName(t *testing.T) {
	s := newService(t)
	add := func(marquee model.MarqueeID) Secret {
		sec, err := s.Set(t.Context(), fleet.Reason{}, login("ops", "registry.example.org", "u", "pw", marquee), func() string { return "id" + string(marquee) })
		if err != nil {
			t.Fatal(err)
		}
		return sec
	}
	remove := func(name string) error {
		return s.Remove(t.Context(), fleet.Reason{}, func(owner string) bool { return owner == "ops" }, "ops", name)
	}
	left := func() (out []string) {
		all, err := s.List(func(string) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		for _, sec := range all {
			out = append(out, sec.ID)
		}
		slices.Sort(out)
		return out
	}
	own, a, b := add(""), add("m1"), add("m2")
	if err := remove("registry.example.org"); err != nil || slices.Contains(left(), own.ID) || len(left()) != 2 {
		t.Errorf("his own goes first: %v, left %v", err, left())
	}
	var refused *fleet.Error
	if err := remove("registry.example.org"); !errors.As(err, &refused) || refused.Code != fleet.CodeConflict || !strings.Contains(refused.Details[fleet.DetailRemedy], "registry ls") || len(left()) != 2 {
		t.Errorf("of two none is meant: %v", err)
	}
	if err := remove(a.ID); err != nil || !slices.Equal(left(), []string{b.ID}) {
		t.Errorf("by its id: %v, left %v", err, left())
	}
	if err := remove("registry.example.org"); err != nil || len(left()) != 0 {
		t.Errorf("the only one: %v, left %v", err, left())
	}
	if err := remove("registry.example.org"); !errors.As(err, &refused) || refused.Code != fleet.CodeNotFound || !strings.Contains(refused.Details[fleet.DetailRemedy], "registry ls") {
		t.Errorf("one that is not there: %v", err)
	}
}
