package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

func request(t *testing.T, header ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8080/v1/environments", nil)
	r.RemoteAddr = "127.0.0.1:4711"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func TestAuthenticate(t *testing.T) {
	gate := New(Config{Token: "right"})
	cookie, err := gate.Login(request(t), "right")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(cookie.Value, "right") {
		t.Fatal("the cookie holds the token")
	}
	session := cookie.Name + "=" + cookie.Value
	for _, c := range []struct {
		name   string
		header []string
		want   fleet.Code
	}{
		{"bearer", []string{"Authorization", "Bearer right"}, ""},
		{"scheme in lower case", []string{"Authorization", "bearer right"}, ""},
		{"x-api-key", []string{"X-API-Key", "right"}, ""},
		{"session", []string{"Cookie", session}, ""},
		{"nothing", nil, fleet.CodeUnauthorized},
		{"wrong token", []string{"Authorization", "Bearer wrong"}, fleet.CodeUnauthorized},
		{"empty token", []string{"Authorization", "Bearer "}, fleet.CodeUnauthorized},
		{"prefix of the token", []string{"Authorization", "Bearer righ"}, fleet.CodeUnauthorized},
		{"basic", []string{"Authorization", "Basic right"}, fleet.CodeUnauthorized},
		{"no scheme", []string{"Authorization", "right"}, fleet.CodeUnauthorized},
		{"wrong x-api-key", []string{"X-API-Key", "wrong"}, fleet.CodeUnauthorized},
		{"header beats x-api-key", []string{"Authorization", "Bearer wrong", "X-API-Key", "right"}, fleet.CodeUnauthorized},
		{"header beats cookie", []string{"Authorization", "Bearer wrong", "Cookie", session}, fleet.CodeUnauthorized},
		{"empty header beats cookie", []string{"Authorization", "", "Cookie", session}, fleet.CodeUnauthorized},
		{"the token as cookie", []string{"Cookie", "fuse_session=right"}, fleet.CodeUnauthorized},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := gate.Authenticate(request(t, c.header...))
			if got := fleet.CodeOf(err); got != c.want {
				t.Fatalf("code %q, want %q (%v)", got, c.want, err)
			}
			if master, want := p.Role == fleet.RoleMaster, c.want == ""; master != want {
				t.Errorf("master %v, want %v", master, want)
			}
		})
	}
}

// A page of another port has the cookie sent along, since ports do not make a
// site.
func TestSessionsAreForOwnPages(t *testing.T) {
	gate := New(Config{Token: "right"})
	cookie, err := gate.Login(request(t), "right")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, method string
		header       []string
		want         fleet.Code
	}{
		{"own page", http.MethodPost, []string{"Origin", "http://127.0.0.1:8080", "Sec-Fetch-Site", "same-origin"}, ""},
		{"own page, old browser", http.MethodPost, []string{"Origin", "http://127.0.0.1:8080"}, ""},
		{"no browser", http.MethodPost, nil, ""},
		{"another port", http.MethodPost, []string{"Origin", "http://127.0.0.1:9090", "Sec-Fetch-Site", "same-site"}, fleet.CodeForbidden},
		{"another port, old browser", http.MethodDelete, []string{"Origin", "http://127.0.0.1:9090"}, fleet.CodeForbidden},
		{"another site", http.MethodPost, []string{"Sec-Fetch-Site", "cross-site"}, fleet.CodeForbidden},
		{"a look from another port", http.MethodGet, []string{"Sec-Fetch-Site", "same-site"}, ""},
	} {
		r := request(t, c.header...)
		r.Method = c.method
		r.AddCookie(cookie)
		if _, err := gate.Authenticate(r); err != nil != (c.want != "") || err != nil && fleet.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		// Who shows the token needs no cookie, and no page can show it.
		r.Header.Set("Authorization", "Bearer right")
		if _, err := gate.Authenticate(r); err != nil {
			t.Errorf("%s with the token: %v", c.name, err)
		}
	}
}

// page is a request as a page of origin makes it.
func page(t *testing.T, origin string, cookies ...*http.Cookie) *http.Request {
	t.Helper()
	r := request(t, "Origin", origin)
	r.Method = http.MethodPost
	for _, c := range cookies {
		r.AddCookie(c)
	}
	return r
}

// A site that logs a browser in with a key of its own would see what is done
// there from then on.
func TestOtherSitesLogNobodyIn(t *testing.T) {
	for name, gate := range map[string]*Gate{"closed": New(Config{Token: "right"}), "open": New(Config{})} {
		for origin, want := range map[string]fleet.Code{"http://127.0.0.1:8080": "", "http://127.0.0.1:9090": fleet.CodeForbidden, "https://evil.example": fleet.CodeForbidden} {
			if c, err := gate.Login(page(t, origin), "right"); err != nil != (want != "") || err != nil && (fleet.CodeOf(err) != want || c != nil) {
				t.Errorf("%s, from %s: %v, %v", name, origin, c, err)
			}
		}
	}
}

func TestOpenServerAnswersLocalNamesOnly(t *testing.T) {
	gate := New(Config{})
	for _, c := range []struct {
		header []string
		want   fleet.Code
	}{
		{nil, ""},
		{[]string{"Host", "localhost:8080"}, ""},
		{[]string{"Host", "[::1]:8080"}, ""},
		{[]string{"Host", "127.0.0.2"}, ""},
		{[]string{"Host", "evil.example"}, fleet.CodeForbidden},
		{[]string{"Host", "127.0.0.1.evil.example"}, fleet.CodeForbidden},
		{[]string{"Host", ""}, fleet.CodeForbidden},
		{[]string{"Origin", "http://localhost:3000"}, ""},
		{[]string{"Origin", "https://evil.example"}, fleet.CodeForbidden},
		{[]string{"Origin", "null"}, fleet.CodeForbidden},
		{[]string{"Authorization", "Basic whatever"}, ""},
	} {
		_, err := gate.Authenticate(request(t, c.header...))
		if got := fleet.CodeOf(err); got != c.want {
			t.Errorf("%q: code %q, want %q", c.header, got, c.want)
		}
	}
	overUnix := request(t, "Host", "fuse")
	overUnix = overUnix.WithContext(context.WithValue(overUnix.Context(), http.LocalAddrContextKey, net.Addr(&net.UnixAddr{Net: "unix"})))
	if _, err := gate.Authenticate(overUnix); err != nil {
		t.Errorf("over a unix socket: %v", err)
	}
}

func TestCheckAddress(t *testing.T) {
	gate := New(Config{AllowedCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}})
	for remote, want := range map[string]fleet.Code{
		"10.1.2.3:1":          "",
		"[::ffff:10.1.2.3]:1": "",
		"[fd00::1]:1":         "",
		"[fd00::1%eth0]:1":    "",
		"11.0.0.1:1":          fleet.CodeForbidden,
		"[2001:db8::1]:1":     fleet.CodeForbidden,
		"nonsense":            fleet.CodeForbidden,
		"":                    fleet.CodeForbidden,
	} {
		r := request(t, "X-Forwarded-For", "10.0.0.1")
		r.RemoteAddr = remote
		if got := fleet.CodeOf(gate.CheckAddress(r)); got != want {
			t.Errorf("%s: code %q, want %q", remote, got, want)
		}
	}
	if err := New(Config{}).CheckAddress(request(t)); err != nil {
		t.Errorf("without list: %v", err)
	}
}

func TestSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := New(Config{Token: "right", SecureCookies: true})
		if _, err := gate.Login(request(t), "wrong"); fleet.CodeOf(err) != fleet.CodeUnauthorized {
			t.Fatalf("login with a wrong token: %v", err)
		}
		in := func(c *http.Cookie) bool {
			_, err := gate.Authenticate(request(t, "Cookie", c.Name+"="+c.Value))
			return err == nil
		}
		a, _ := gate.Login(request(t), "right")
		b, _ := gate.Login(request(t), "right")
		if !a.Secure || !a.HttpOnly || a.SameSite != http.SameSiteLaxMode || a.MaxAge != 604800 {
			t.Errorf("cookie %v", a)
		}
		if !in(a) || !in(b) || a.Value == b.Value {
			t.Fatal("two sessions are not two")
		}
		if _, err := gate.Logout(page(t, "http://127.0.0.1:9090", a)); fleet.CodeOf(err) != fleet.CodeForbidden || !in(a) {
			t.Errorf("another site ends a session: %v", err)
		}
		gone, err := gate.Logout(page(t, "http://127.0.0.1:8080", a))
		if err != nil {
			t.Fatal(err)
		}
		if in(a) || !in(b) {
			t.Error("logout ends exactly one session")
		}
		if gone.MaxAge >= 0 || gone.Path != a.Path || gone.Secure != a.Secure || gone.SameSite != a.SameSite {
			t.Errorf("logout cookie %v does not match %v", gone, a)
		}
		<-time.After(sessionTTL + time.Second)
		if in(b) {
			t.Error("the session outlived its time")
		}
		for range maxSessions + 10 {
			a, _ = gate.Login(request(t), "right")
		}
		if n := len(gate.sessions.byHash); n > maxSessions || !in(a) {
			t.Errorf("%d sessions kept, newest in: %v", n, in(a))
		}
	})
}

func TestReportsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rep := NewReporter()
		sent := 0
		flood := func() {
			for range 1000 {
				if _, ok := rep.Report(fleet.EventAuthFailed, request(t), "req_1"); ok {
					sent++
				}
			}
		}
		flood()
		if sent != reportBurst {
			t.Fatalf("%d events of 1000 refusals, want %d", sent, reportBurst)
		}
		if _, ok := rep.Report(fleet.EventIPRejected, request(t), ""); !ok {
			t.Error("one kind silences the other")
		}
		<-time.After(2 * time.Second)
		r := request(t)
		r.URL.Path = "/" + strings.Repeat("ü", 500)
		ev, ok := rep.Report(fleet.EventAuthFailed, r, "req_2")
		if !ok {
			t.Fatal("no event after a pause")
		}
		var got Refusal
		if err := json.Unmarshal(ev.Payload, &got); err != nil {
			t.Fatal(err)
		}
		want := Refusal{Remote: "127.0.0.1", Method: "GET", Path: got.Path, RequestID: "req_2", Suppressed: 1000 - reportBurst}
		if got != want || len(got.Path) > maxPathText {
			t.Errorf("payload %+v", got)
		}
		if ev.EntityID != "127.0.0.1" || ev.Type != fleet.EventAuthFailed {
			t.Errorf("event %+v", ev)
		}
		if _, ok := rep.Report("vm.running", r, ""); ok {
			t.Error("an event of another kind was made")
		}
	})
}

func TestPrincipalTravels(t *testing.T) {
	if _, ok := From(t.Context()); ok {
		t.Error("a principal out of nowhere")
	}
	if p, ok := From(With(t.Context(), Master)); !ok || p.Actor() != fleet.ActorMaster {
		t.Errorf("got %v %v", p, ok)
	}
}

func FuzzAuthenticate(f *testing.F) {
	f.Add("Bearer right", "")
	f.Add("Bearer", "right")
	f.Add("bearer  right ", "")
	gate := New(Config{Token: "a long and secret token"})
	f.Fuzz(func(t *testing.T, authorization, cookie string) {
		r := request(t, "Authorization", authorization, "Cookie", cookie)
		if p, err := gate.Authenticate(r); (err == nil) != (p.Role == fleet.RoleMaster) || err == nil && !strings.Contains(fmt.Sprint(r.Header), "a long and secret token") {
			t.Fatalf("%q and %q let in", authorization, cookie)
		}
	})
}
