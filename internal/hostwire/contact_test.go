package hostwire_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
)

const contactToken = "a-token-of-the-host"

func hostServer(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func contactHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+hostwire.ContactPath, hostwire.Contact(contactToken))
	return mux
}

func TestFirstContact(t *testing.T) {
	host := hostServer(t, contactHandler())
	sum := sha256.Sum256(host.Certificate().Raw)
	got, err := hostwire.FirstContact(t.Context(), host.URL, contactToken)
	if err != nil || got != hex.EncodeToString(sum[:]) {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := hostwire.FirstContact(t.Context(), host.URL, "another token than that"); !errors.Is(err, hostwire.ErrWrongToken) {
		t.Errorf("a wrong token: %v", err)
	}
	if _, err := hostwire.FirstContact(t.Context(), "http://127.0.0.1:1", contactToken); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("without TLS: %v", err)
	}
	nobody := hostServer(t, nil)
	nobody.Close()
	if _, err := hostwire.FirstContact(t.Context(), nobody.URL, contactToken); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("nobody there: %v", err)
	}
}

// Whoever answers at the address learns nothing that he could use, and is not
// taken for the host.
func TestFirstContactWithSomebodyElse(t *testing.T) {
	host := hostServer(t, contactHandler())
	to, err := url.Parse(host.URL)
	if err != nil {
		t.Fatal(err)
	}
	var heard strings.Builder
	relay := httputil.NewSingleHostReverseProxy(to)
	relay.Transport = host.Client().Transport
	for name, other := range map[string]http.Handler{
		"passes everything on": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.Header.Write(&heard)
			relay.ServeHTTP(w, r)
		}),
		"says yes": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.Header.Write(&heard)
			w.Header().Set("Fuse-Contact-Proof", r.Header.Get("Fuse-Contact-Proof"))
			w.WriteHeader(http.StatusNoContent)
		}),
		"knows nothing": http.NotFoundHandler(),
		"answers at length": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}),
	} {
		s := hostServer(t, other)
		if got, err := hostwire.FirstContact(t.Context(), s.URL, contactToken); err == nil {
			t.Errorf("%s: taken for the host, with %q", name, got)
		}
	}
	if heard.Len() == 0 || strings.Contains(heard.String(), contactToken) || strings.Contains(heard.String(), "Authorization") {
		t.Errorf("what was heard: %q", heard.String())
	}
}

// A stranger who contacts a host gets nothing that depends on its token.
func TestContactTellsStrangersNothing(t *testing.T) {
	host := hostServer(t, contactHandler())
	for _, proof := range []string{"", "00", strings.Repeat("ab", 32), "x"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, host.URL+hostwire.ContactPath, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Fuse-Contact-Proof", proof)
		resp, err := host.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("Fuse-Contact-Proof") != "" {
			t.Errorf("%q: %d %q, proof %q", proof, resp.StatusCode, body, resp.Header.Get("Fuse-Contact-Proof"))
		}
	}
	plain := httptest.NewServer(contactHandler())
	defer plain.Close()
	resp, err := http.Post(plain.URL+hostwire.ContactPath, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: %d, %v", resp.StatusCode, err)
	}
}
