package remote_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/provider/remote"
)

const agedToken = "the-token-of-the-aged-host"

// front serves a real host agent over TLS and changes what it says, as one of
// another release would.
func front(t *testing.T, change func(next http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	drv, err := sim.New(sim.Options{VMs: 5, RamMB: 1 << 20, ObjectDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hostd.New(hostd.Config{Dir: t.TempDir(), Driver: drv, Token: agedToken, Version: "7.7.7"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	s := httptest.NewUnstartedServer(change(h.Handler()))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.Close()
		stop()
		if err := errors.Join(<-done, h.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connectTo(t *testing.T, rawURL string) *remote.Provider {
	t.Helper()
	pin, err := remote.FirstContact(t.Context(), rawURL, agedToken)
	if err != nil {
		t.Fatal(err)
	}
	p, err := remote.New(remote.Config{
		URL: rawURL, Token: agedToken, CertSHA256: pin, Fencer: providertest.NewFleet(), Release: "8.8.8", CallTimeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// header is a writer that changes one header of the answer as it goes out.
type header struct {
	http.ResponseWriter
	name, value string
}

func (w header) WriteHeader(status int) {
	w.Header().Set(w.name, w.value)
	w.ResponseWriter.WriteHeader(status)
}

func (w header) Write(p []byte) (int, error) {
	w.Header().Set(w.name, w.value)
	return w.ResponseWriter.Write(p)
}

func (w header) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w header) Flush()                      { _ = http.NewResponseController(w.ResponseWriter).Flush() }

func speaks(version string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(header{w, hostwire.VersionHeader, version}, r)
		})
	}
}

// A host agent one version older or newer works; one further away, and a call
// that an older one does not know, are refused with both sides' names.
func TestHostsOfOtherReleases(t *testing.T) {
	for _, version := range []string{"0", "2"} {
		p := connectTo(t, front(t, speaks(version)).URL)
		if _, err := p.List(t.Context()); err != nil {
			t.Errorf("version %s: %v", version, err)
		}
	}
	refused := func(t *testing.T, err error) {
		t.Helper()
		if !errors.Is(err, hostwire.ErrUnsupported) || fleet.CodeOf(err) != fleet.CodeUnimplemented || errors.Is(err, provider.ErrNoAnswer) {
			t.Errorf("got %v", err)
		}
		for _, named := range []string{"7.7.7", "8.8.8", "wire version"} {
			if err != nil && !strings.Contains(err.Error(), named) {
				t.Errorf("%v does not name %s", err, named)
			}
		}
	}
	t.Run("far newer", func(t *testing.T) {
		_, err := connectTo(t, front(t, speaks("3")).URL).List(t.Context())
		refused(t, err)
	})
	t.Run("far older", func(t *testing.T) {
		s := front(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Set(hostwire.VersionHeader, "9") // as if the server were the far one
				next.ServeHTTP(w, r)
			})
		})
		_, err := connectTo(t, s.URL).List(t.Context())
		refused(t, err)
	})
	t.Run("lacks a call", func(t *testing.T) {
		s := front(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/DestroyVM") {
					r.URL.Path += "Unknown"
				}
				next.ServeHTTP(w, r)
			})
		})
		err := connectTo(t, s.URL).Destroy(t.Context(), provider.Ref{ID: "a", UID: "u", OpID: "o"})
		refused(t, err)
		if err != nil && !strings.Contains(err.Error(), "DestroyVM") {
			t.Errorf("%v does not name the call", err)
		}
	})
}

// A host may stand behind a path of something in between that hands its
// connections through.
func TestPathBeforeTheCalls(t *testing.T) {
	s := front(t, func(next http.Handler) http.Handler { return http.StripPrefix("/rack/7", next) })
	p := connectTo(t, s.URL+"/rack/7/")
	if _, err := p.List(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := p.Capacity(t.Context()); err != nil {
		t.Error(err)
	}
	text, err := p.Metrics(t.Context())
	if err != nil || !strings.Contains(string(text), "# TYPE ") {
		t.Errorf("metrics: %.80q, %v", text, err)
	}
}

func TestFirstContactErrors(t *testing.T) {
	s := front(t, func(next http.Handler) http.Handler { return next })
	if _, err := remote.FirstContact(t.Context(), s.URL, "some other token"); !errors.Is(err, provider.ErrUnauthorized) {
		t.Errorf("a wrong token: %v", err)
	}
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	relay := httputil.NewSingleHostReverseProxy(to)
	relay.Transport = s.Client().Transport
	between := httptest.NewTLSServer(relay)
	defer between.Close()
	if pin, err := remote.FirstContact(t.Context(), between.URL, agedToken); err == nil {
		t.Errorf("who stands in between was taken for the host: %s", pin)
	}
	between.Close()
	if _, err := remote.FirstContact(t.Context(), between.URL, agedToken); !errors.Is(err, provider.ErrNoAnswer) {
		t.Errorf("nobody there: %v", err)
	}
}
