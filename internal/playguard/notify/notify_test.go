package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

func (w *world) add(r NewRoute) Told {
	w.t.Helper()
	ctx := context.Background()
	if r.Scope == ScopePlayer {
		ctx = auth.With(ctx, auth.Principal{Name: "ann", Role: fleet.RoleUser})
	}
	t, err := w.svc.Add(ctx, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// Mail goes over a connection that is encrypted before the password is said,
// and the password is nowhere to be read.
func TestMail(t *testing.T) {
	testkit.Leaks(t)
	w := newWorld(t)
	const password = "p4ssw0rd-of-mail"
	p := &post{user: "fuse", password: password}
	port, ca := startPost(t, p)
	ctx := context.Background()
	if _, err := w.svc.SetMail(ctx, Mail{Host: "localhost", Port: port, TLS: NoTLS, User: "fuse", From: "fuse@example.org"}, password); err == nil {
		t.Error("a password is to be sent unencrypted")
	}
	m, err := w.svc.SetMail(ctx, Mail{Host: "localhost", Port: port, User: "fuse", From: "Fuse <fuse@example.org>", CA: ca}, password)
	if err != nil || m.TLS != StartTLS || m.From != "fuse@example.org" {
		t.Fatal(m, err)
	}
	r := w.add(NewRoute{Name: "ann", Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"ann@example.org", "Bob <bob@example.org>"}})
	if told, err := w.svc.Test(ctx, "ann"); err != nil || told.Error != "" {
		t.Fatalf("the test: %v %s", err, told.Error)
	}
	w.run()
	w.happens(fleet.EventPlaygroundParked, "web: 1 changed or untracked files\r\nBcc: eve@example.org")
	testkit.Eventually(t, 2*time.Minute, "mail comes", func() bool { got, _ := p.letters(); return len(got) == 2 })
	got, to := p.letters()
	head, _, _ := strings.Cut(got[1], "\r\n\r\n")
	if len(to) != 4 || strings.Contains(strings.Join(to, " "), "eve") || strings.Contains(head, "\nBcc:") {
		t.Errorf("it goes to %v:\n%s", to, got[1])
	}
	for _, want := range []string{"Subject: [fuse] playground shop", "web: 1 changed or untracked files", "event: playground.parked", "Auto-Submitted: auto-generated"} {
		if !strings.Contains(strings.ReplaceAll(got[1], "=\r\n", ""), want) {
			t.Errorf("the mail lacks %q:\n%s", want, got[1])
		}
	}
	// A password that is refused is told without the password.
	if _, err := w.svc.SetMail(ctx, Mail{Host: "localhost", Port: port, User: "fuse", From: "fuse@example.org", CA: ca}, "wrong-"+password); err != nil {
		t.Fatal(err)
	}
	told, err := w.svc.Test(ctx, r.ID)
	if err != nil || told.Error == "" || strings.Contains(told.Error, password) {
		t.Errorf("%v %q", err, told.Error)
	}
	// A server that signs itself is not trusted without its certificate.
	if _, err := w.svc.SetMail(ctx, Mail{Host: "localhost", Port: port, User: "fuse", From: "fuse@example.org"}, password); err != nil {
		t.Fatal(err)
	}
	before := p.logins
	if told, err = w.svc.Test(ctx, r.ID); err != nil || told.Error == "" || p.logins != before {
		t.Errorf("%v %q, %d logins", err, told.Error, p.logins-before)
	}
	raw, err := json.Marshal(w.dump())
	if err != nil || strings.Contains(string(raw), password) {
		t.Errorf("the password lies in the state: %v", err)
	}
}

// dump is all that the state has of notifications.
func (w *world) dump() (all []any) {
	w.t.Helper()
	if err := w.store.View(func(tx *state.ReadTx) error {
		for _, r := range Routes.All(tx) {
			all = append(all, r)
		}
		for _, m := range Messages.All(tx) {
			all = append(all, m)
		}
		for _, m := range Memories.All(tx) {
			all = append(all, m)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	events, err := w.store.Events(context.Background(), state.EventQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range events {
		all = append(all, e)
	}
	return all
}

// hook is a receiver of webhooks that checks what is signed.
type hook struct {
	mu     sync.Mutex
	secret string
	got    []body
	ids    map[string]int
	bad    []string
	status int
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	raw, _ := io.ReadAll(r.Body)
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(h.secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), raw)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.Header.Get("webhook-signature") != want {
		h.bad = append(h.bad, r.Header.Get("webhook-signature"))
	}
	if h.status != 0 {
		w.WriteHeader(h.status)
		return
	}
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		h.bad = append(h.bad, err.Error())
	}
	h.ids[b.ID]++
	h.got = append(h.got, b)
}

func (h *hook) list() []body {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]body(nil), h.got...)
}

// A webhook gets signed messages of what its scope and filter select; what
// flaps comes as a digest.
func TestWebhook(t *testing.T) {
	testkit.Leaks(t)
	w := newWorld(t)
	h := &hook{ids: map[string]int{}}
	server := httptest.NewServer(h)
	defer server.Close()
	w.happens(fleet.EventPlaygroundParked, "before there was a route")
	told := w.add(NewRoute{Name: "box", Scope: ScopeMarquee, Marquee: "box", Channel: ChannelWebhook, URL: server.URL + "/secret-path", Most: 2})
	h.mu.Lock()
	h.secret = told.Secret
	h.mu.Unlock()
	if strings.Contains(told.Shown, "secret-path") || !strings.HasPrefix(told.Secret, "whsec_") {
		t.Errorf("shown %q, secret %q", told.Shown, told.Secret)
	}
	w.update(func(tx *state.Tx) error { // nobody waits an hour here
		r, _ := Routes.Get(tx, told.ID)
		q := *r
		q.Window = 2 * time.Second
		return Routes.Put(tx, q.ID, &q)
	})
	// All of it is there before it is read, so that all of it is in one window.
	w.happens(fleet.EventPlaygroundStateChanged, "running") // nothing was wrong
	w.happens(fleet.EventMarqueeReturned, "")
	for range 3 {
		w.happens(fleet.EventMarqueeQuarantined, "5 looks in a row saw nothing")
		w.happens(fleet.EventMarqueeReturned, "")
	}
	w.happens(fleet.EventPlaygroundCreated, "") // only by name
	w.happens(fleet.EventPlaygroundFlagged, "repairs_spent")
	w.run()
	testkit.Eventually(t, 2*time.Minute, "a digest comes", func() bool {
		got := h.list()
		return len(got) > 0 && got[len(got)-1].Type == "notification.digest"
	})
	var types []string
	for _, b := range h.list() {
		types = append(types, b.Type+" "+b.Event)
	}
	want := "notification.problem marquee.quarantined,notification.recovery marquee.returned,notification.problem playground.flagged,notification.digest marquee.returned"
	if got := strings.Join(types, ","); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if last := h.list()[3]; last.Held != 4 || !strings.Contains(last.Title, "marquee box") {
		t.Errorf("the digest is %+v", last)
	}
	if len(h.bad) > 0 {
		t.Errorf("signed wrongly: %v", h.bad)
	}
	raw, err := json.Marshal(w.dump())
	if err != nil || strings.Contains(string(raw), "secret-path") || strings.Contains(string(raw), told.Secret) {
		t.Errorf("the target lies in the state: %v", err)
	}
}

// What cannot be sent waits, longer and longer, for a day; then it is given up
// and said so. A server that stops goes on where it was.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.add(NewRoute{Name: "ann", Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"ann@example.org"}})
		var tries []time.Duration
		began := time.Now()
		fails := errors.New("nobody there")
		w.svc.try = func(context.Context, Route, Message) error {
			tries = append(tries, time.Since(began))
			return fails
		}
		stop := w.run()
		w.happens(fleet.EventPlaygroundParked, "x")
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if len(tries) < 4 || len(tries) > 6 || tries[1] < 25*time.Second || tries[3]-tries[2] < tries[2]-tries[1] {
			t.Errorf("tries at %v", tries)
		}
		stop()
		n := len(tries)
		<-time.After(time.Hour)
		if len(tries) != n {
			t.Error("it is tried while nobody runs it")
		}
		stop = w.run()
		<-time.After(26 * time.Hour)
		synctest.Wait()
		got, err := w.svc.Get(context.Background(), r.ID)
		if err != nil || got.GivenUp != 1 || got.Pending != 0 || got.Error != "nobody there" {
			t.Errorf("%+v %v", got, err)
		}
		if len(tries) > 40 {
			t.Errorf("%d tries in a day", len(tries))
		}
		fails = nil
		w.happens(fleet.EventPlaygroundFlagged, "y")
		<-time.After(time.Minute)
		synctest.Wait()
		if got, _ = w.svc.Get(context.Background(), r.ID); got.Sent != 1 || got.Error != "" {
			t.Errorf("%+v", got)
		}
		stop()
	})
}

// A server that is killed between a send and its note sends again, under the
// same id; what was noted is never sent again.
func TestSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(NewRoute{Name: "ann", Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"ann@example.org"}, Most: 100})
		sent := map[string]int{}
		w.svc.try = func(_ context.Context, _ Route, m Message) error {
			sent[m.ID]++
			return nil
		}
		for i := range 10 {
			stop := w.run()
			w.happens(fleet.EventPlaygroundFlagged, fmt.Sprint(i))
			<-time.After(time.Second)
			synctest.Wait()
			stop()
		}
		for id, n := range sent {
			if n != 1 {
				t.Errorf("%s was sent %d times", id, n)
			}
		}
		if len(sent) != 10 {
			t.Errorf("%d messages", len(sent))
		}
	})
}

// Who may make which route, and what is refused.
func TestRoutes(t *testing.T) {
	w := newWorld(t)
	ann := auth.With(context.Background(), auth.Principal{Name: "ann", Role: fleet.RoleUser})
	bob := auth.With(context.Background(), auth.Principal{Name: "bob", Role: fleet.RoleUser})
	good := NewRoute{Name: "mine", Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"a@example.org"}}
	if _, err := w.svc.Add(ann, good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*NewRoute){
		"the same name":  func(*NewRoute) {},
		"all":            func(r *NewRoute) { r.Name, r.Scope = "x", ScopeInstallation },
		"a marquee":      func(r *NewRoute) { r.Name, r.Scope, r.Marquee = "x", ScopeMarquee, "box" },
		"no scope":       func(r *NewRoute) { r.Name, r.Scope = "x", "" },
		"no address":     func(r *NewRoute) { r.Name, r.To = "x", []string{"nobody"} },
		"an injection":   func(r *NewRoute) { r.Name, r.To = "x", []string{"a@example.org\r\nBcc: b@example.org"} },
		"eleven":         func(r *NewRoute) { r.Name, r.To = "x", make([]string, 11) },
		"a bad pattern":  func(r *NewRoute) { r.Name, r.Events = "x", []string{"vm.*"} },
		"no channel":     func(r *NewRoute) { r.Name, r.Channel = "x", "pigeon" },
		"too often":      func(r *NewRoute) { r.Name, r.Most = "x", 1000 },
		"a short window": func(r *NewRoute) { r.Name, r.Window = "x", time.Second },
		"both":           func(r *NewRoute) { r.Name, r.URL = "x", "https://example.org" },
	} {
		r := good
		change(&r)
		if _, err := w.svc.Add(ann, r); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if _, err := w.svc.Get(bob, "mine"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("bob sees ann's route: %v", err)
	}
	if err := w.svc.Remove(bob, "mine"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("bob removes ann's route: %v", err)
	}
	if err := w.svc.Remove(ann, "mine"); err != nil {
		t.Error(err)
	}
	if list, err := w.svc.List(ann); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
}
