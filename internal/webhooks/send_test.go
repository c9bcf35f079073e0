package webhooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// verify is the receiver's side of Standard Webhooks, written out.
func verify(g got, secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(g.header.Get("webhook-id") + "." + g.header.Get("webhook-timestamp") + "." + string(g.body)))
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, sig := range strings.Fields(g.header.Get("webhook-signature")) {
		if hmac.Equal([]byte(sig), []byte(want)) {
			return true
		}
	}
	return false
}

func TestSignaturesAndRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, old := w.hook()
		if row := w.get(h.ID); strings.Contains(string(row.SecretSealed), old) || !strings.HasPrefix(old, "whsec_") {
			t.Fatal("the secret is not sealed")
		}
		ping := func() got {
			t.Helper()
			if _, err := w.svc.Test(context.Background(), h.ID, "user:ann"); err != nil {
				t.Fatal(err)
			}
			_, took := w.receiver.list()
			return took[len(took)-1]
		}
		if g := ping(); !verify(g, old) || verify(g, "whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 32))) {
			t.Error("the signature does not verify")
		}
		_, fresh, err := w.svc.Rotate(context.Background(), h.ID, "user:ann", time.Hour)
		if err != nil || fresh == old {
			t.Fatal(err)
		}
		if g := ping(); !verify(g, old) || !verify(g, fresh) {
			t.Error("within the overlap both secrets sign")
		}
		<-time.After(time.Hour)
		if g := ping(); verify(g, old) || !verify(g, fresh) {
			t.Error("after it only the new one does")
		}
		if _, _, err = w.svc.Rotate(context.Background(), h.ID, "user:ann", 0); err != nil {
			t.Fatal(err)
		}
		if g := ping(); verify(g, fresh) {
			t.Error("without overlap the old one ends at once")
		}
		if _, _, err = w.svc.Rotate(context.Background(), h.ID, "user:ann", 8*24*time.Hour); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Error(err)
		}
	})
}

func TestSecretsThatAreBroughtAlong(t *testing.T) {
	w := newWorld(t)
	for secret, ok := range map[string]bool{
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 24)): true,
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 64)): true,
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23)): false,
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65)): false,
		base64.StdEncoding.EncodeToString(make([]byte, 32)):            false,
		"whsec_%%%": false,
	} {
		_, got, err := w.svc.Create(t.Context(), Request{URL: new("https://a.example"), Secret: secret, Owner: "ann", Actor: "user:ann"})
		if (err == nil) != ok || ok && got != secret {
			t.Errorf("%q: %v", secret, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Error("the error shows the secret")
		}
	}
}

func TestPublicAddresses(t *testing.T) {
	for addr, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "172.15.0.1": true, "172.32.0.1": true, "2606:4700::1111": true, "2a00::1": true,
		"127.0.0.1": false, "127.9.9.9": false, "0.0.0.0": false, "10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false, "198.18.0.1": false, "224.0.0.1": false, "255.255.255.255": false,
		"::1": false, "::": false, "fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd00:ec2::254": false, "ff02::1": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:8.8.8.8": true, "::127.0.0.1": false,
		"64:ff9b::7f00:1": false, "2002:7f00:1::": false, "2001::1": false, "2001:db8::1": false,
	} {
		if got := public(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is public: %v, want %v", addr, got, want)
		}
	}
	if public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

func TestURLs(t *testing.T) {
	for url, want := range map[string][2]bool{ // guarded, allowed
		"https://a.example/x?y=z":        {true, true},
		"https://a.example:8443":         {true, true},
		"https://8.8.8.8/":               {true, true},
		"http://a.example":               {false, true},
		"https://localhost/":             {false, true},
		"https://LOCALHOST./":            {false, true},
		"https://x.localhost":            {false, true},
		"https://127.0.0.1":              {false, true},
		"https://[::ffff:10.0.0.1]/":     {false, true},
		"https://169.254.169.254/latest": {false, true},
		"https://user:pw@a.example":      {false, false},
		"https://a.example/#f":           {false, false},
		"https://a.example:0/":           {false, false},
		"https://a.example:65536/":       {false, false},
		"https://a.example:/":            {false, false},
		"https://a.example:65535/":       {true, true},
		"ftp://a.example":                {false, false},
		"https://":                       {false, false},
		"https:a.example":                {false, false},
		"":                               {false, false},
		"https://a.example/" + strings.Repeat("x", 2048): {false, false},
	} {
		for i, allow := range []bool{false, true} {
			if err := checkURL(url, allow); (err == nil) != want[i] {
				t.Errorf("%.60q with private allowed %v: %v", url, allow, err)
			}
		}
	}
}

// The guard looks at the address that is really connected to, whatever name
// led there.
func TestPrivateAddressesAreRefusedWhenDialing(t *testing.T) {
	hits := 0
	ts := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits++ }))
	defer ts.Close()
	port := ts.URL[strings.LastIndex(ts.URL, ":"):]
	guarded := newClient(false, time.Minute)
	defer guarded.CloseIdleConnections()
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		resp, err := guarded.Post("http://"+host+port, "text/plain", nil)
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s was reached", host)
		} else if text := reasonOf(err); !strings.Contains(text, "not a public one") {
			t.Errorf("%s: %v", host, err)
		}
	}
	if hits != 0 {
		t.Errorf("%d requests came through", hits)
	}
	open := newClient(true, time.Minute)
	defer open.CloseIdleConnections()
	resp, err := open.Post(ts.URL, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// Over a real connection: redirects are not followed, long answers are cut, a
// receiver that does not answer is given up, and errors do not show the path.
func TestRealReceivers(t *testing.T) {
	redirected := false
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(strings.Repeat("long ", 100_000))) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/there", func(http.ResponseWriter, *http.Request) { redirected = true })
	mux.HandleFunc("/never", func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	mux.HandleFunc("/error", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	ts := httptest.NewServer(mux)
	defer ts.Close()
	over := func(timeout time.Duration) *world {
		w := newWorld(t, func(c *Config) { c.Transport, c.AllowPrivate, c.Timeout = nil, true, timeout })
		t.Cleanup(w.svc.client.CloseIdleConnections)
		return w
	}
	w, hasty := over(time.Minute), over(300*time.Millisecond)
	for path, want := range map[string]struct {
		status int
		state  fleet.DeliveryState
		err    string
	}{
		"/ok":    {200, fleet.DeliveryDelivered, ""},
		"/away":  {307, fleet.DeliveryFailed, "answered 307; redirects are not followed"},
		"/never": {0, fleet.DeliveryFailed, "no answer in time"},
		"/error": {500, fleet.DeliveryFailed, "answered 500"},
	} {
		w := w
		if path == "/never" {
			w = hasty
		}
		h, _, err := w.svc.Create(t.Context(), Request{URL: new(ts.URL + path), Owner: "ann", Actor: "user:ann"})
		if err != nil {
			t.Fatal(err)
		}
		d, err := w.svc.Test(t.Context(), h.ID, "user:ann")
		if err != nil || d.Status != want.status || d.State != want.state || d.Error != want.err || len(d.Answer) > keptAnswer {
			t.Errorf("%s: %d %s %q %v", path, d.Status, d.State, d.Error, err)
		}
	}
	if redirected {
		t.Error("a redirect was followed")
	}
	ts.Close()
	h, _, err := w.svc.Create(t.Context(), Request{URL: new(ts.URL + "/secret-path"), Owner: "ann", Actor: "user:ann"})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := w.svc.Test(t.Context(), h.ID, "user:ann"); err != nil || d.State != fleet.DeliveryFailed || strings.Contains(d.Error, "secret") {
		t.Errorf("%+v %v", d, err)
	}
}

func TestWebhooksAreBounded(t *testing.T) {
	w := newWorld(t)
	for range MaxWebhooks {
		w.hook()
	}
	if _, _, err := w.svc.Create(t.Context(), Request{URL: new("https://a.example"), Owner: "ann", Actor: "user:ann"}); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Error(err)
	}
	first, more, err := w.svc.List("", 20)
	if err != nil || !more || len(first) != 20 {
		t.Fatal(len(first), more, err)
	}
	rest, more, err := w.svc.List(first[19].ID, 100)
	if err != nil || more || len(rest) != MaxWebhooks-20 {
		t.Error(len(rest), more, err)
	}
}
