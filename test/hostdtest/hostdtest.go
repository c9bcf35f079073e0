// Package hostdtest runs a host agent inside a test, over a real unix socket,
// and makes the providertest harness of it. Only tests import it.
package hostdtest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/provider/remote"
)

// Token is the bearer token of every host of this package.
const Token = "a-token-for-tests-0123456789"

// Host is a running host agent.
type Host struct {
	*hostd.Host
	URL, CertSHA256 string

	t    testing.TB
	stop func()
}

// Start runs a host agent until the test ends or Stop is called. It serves on
// a unix socket if addr is empty. The driver's Close is the host's business.
func Start(t testing.TB, cfg hostd.Config, addr string) *Host {
	t.Helper()
	cfg.Token = Token
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	h, err := hostd.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if addr == "" {
		addr = "unix://" + socket(t)
	}
	srv, err := hostwire.Listen(hostwire.ServerConfig{
		Addr: addr, Handler: h.Handler(), CertDir: filepath.Join(cfg.Dir, "tls"), Grace: time.Second,
	})
	if err != nil {
		t.Fatal(errors.Join(err, h.Close()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	wg.Go(func() {
		if err := srv.Serve(ctx); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	host := &Host{Host: h, URL: srv.URL(), CertSHA256: srv.CertSHA256(), t: t}
	host.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := h.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(host.stop)
	host.awaitReady()
	return host
}

// socket returns a path that is short enough for any test's name.
func socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// Stop ends the host agent and leaves its VMs running.
func (h *Host) Stop() { h.stop() }

// awaitReady waits for the first complete listing.
func (h *Host) awaitReady() {
	h.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if h.List("nobody").Complete {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			h.t.Fatalf("host not ready: %s", h.List("nobody").Reason)
		}
	}
}

// Connect returns a provider of the host, closed when the test ends.
func (h *Host) Connect(f provider.Fencer) *remote.Provider {
	return h.connect(f, nil)
}

func (h *Host) connect(f provider.Fencer, wrap func(http.RoundTripper) http.RoundTripper) *remote.Provider {
	h.t.Helper()
	p, err := remote.New(remote.Config{URL: h.URL, CertSHA256: h.CertSHA256, Token: Token, Fencer: f, Wrap: wrap})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = p.Close() })
	return p
}

// Harness makes the provider suite's harness: it starts a host agent, over
// real sockets.
func Harness(t *testing.T, cfg hostd.Config, spec fleet.Spec) providertest.Harness {
	t.Helper()
	h := Start(t, cfg, "")
	losers := map[provider.Provider]*loser{}
	return providertest.Harness{
		Spec: spec,
		Connect: func(f provider.Fencer) provider.Provider {
			l := &loser{}
			p := h.connect(f, func(rt http.RoundTripper) http.RoundTripper { return losing{rt, l} })
			losers[p] = l
			return p
		},
		LoseAnswer: func(p provider.Provider) { losers[p].armed.Store(true) },
	}
}

// loser is told to lose the answer of the next change.
type loser struct{ armed atomic.Bool }

type losing struct {
	next http.RoundTripper
	l    *loser
}

func (r losing) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	change := strings.HasSuffix(req.URL.Path, "/CreateVM") || strings.HasSuffix(req.URL.Path, "/DestroyVM")
	if !change || !r.l.armed.CompareAndSwap(true, false) {
		return resp, nil
	}
	// The host has done it all once its answer is here to the end.
	_, err = io.Copy(io.Discard, resp.Body)
	return nil, errors.Join(errors.New("the test loses this answer"), err, resp.Body.Close())
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}
