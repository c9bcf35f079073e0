package bench_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/bench"
)

// process is this process, standing in for a server.
type process struct{ killed, stopped *atomic.Int32 }

func (process) PID() int      { return os.Getpid() }
func (p process) Stop() error { p.stopped.Add(1); return nil }
func (p process) Kill() error { p.killed.Add(1); return nil }

func TestRestart(t *testing.T) {
	var hosts, creates, secrets, looks, starts, killed, stopped atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/hosts", func(http.ResponseWriter, *http.Request) { hosts.Add(1) })
	mux.HandleFunc("POST /v1/environments", func(_ http.ResponseWriter, r *http.Request) {
		creates.Add(1)
		var body bytes.Buffer
		if _, err := body.ReadFrom(r.Body); err == nil && strings.Contains(body.String(), `"secrets"`) {
			secrets.Add(1)
		}
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if looks.Add(1)%3 != 0 { // ready at the third look
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	var out bytes.Buffer
	b := bench.Restart{
		Target: bench.Target{Client: srv.Client(), Token: "t"}, Sizes: []int{0, 20, 50}, Restarts: 2, Secrets: true, Out: &out, Limit: time.Minute,
		Hosts: []bench.RestartHost{{ID: "a"}, {ID: "b"}},
		Server: func(context.Context) (bench.Process, string, error) {
			starts.Add(1)
			return process{&killed, &stopped}, srv.URL, nil
		},
	}
	if err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		got  *atomic.Int32
		want int32
	}{
		{"hosts", &hosts, 2}, {"creates", &creates, 50}, {"with secrets", &secrets, 50}, {"starts", &starts, 7},
		{"kills", &killed, 6}, {"stops", &stopped, 1}, {"looks", &looks, 21},
	} {
		if c.got.Load() != c.want {
			t.Errorf("%d %s, want %d", c.got.Load(), c.what, c.want)
		}
	}
	if n := strings.Count(out.String(), "ready after "); n != 3 || !strings.Contains(out.String(), "at 50 environments on 2 hosts") {
		t.Errorf("printed\n%s", out.String())
	}
}

func TestRestartThatFails(t *testing.T) {
	var stopped atomic.Int32
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	broken := errors.New("it ended")
	for name, tt := range map[string]struct {
		err  error
		want string
	}{"does not start": {broken, "it ended"}, "never ready": {nil, "does not become ready"}} {
		b := bench.Restart{
			Target: bench.Target{Client: srv.Client()}, Sizes: []int{0}, Restarts: 1, Out: &bytes.Buffer{}, Limit: 20 * time.Millisecond,
			Server: func(context.Context) (bench.Process, string, error) {
				return process{new(atomic.Int32), &stopped}, srv.URL, tt.err
			},
		}
		if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if stopped.Load() != 1 {
		t.Errorf("%d processes were ended, want the one that was never ready", stopped.Load())
	}
}
