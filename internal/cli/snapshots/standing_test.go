package snapshots

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/cli/kit"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// screen is a terminal; it says when a text was on it.
type screen struct {
	want string
	text strings.Builder
	seen chan struct{}
}

func (s *screen) Write(p []byte) (int, error) {
	s.text.Write(p)
	if s.seen != nil && strings.Contains(s.text.String(), s.want) {
		close(s.seen)
		s.seen = nil
	}
	return len(p), nil
}

// While the server works, a terminal shows the phase, the bytes and the rate.
func TestFarIsShown(t *testing.T) {
	const (
		progress = `"progress":{"phase":"memory","done_bytes":1048576,"total_bytes":4194304,"bytes_per_second":2097152}`
		environ  = `{"id":"fuse-a","state":"running","activity":"resuming","paused":{"since":"2026-01-02T03:04:05Z","reason":{"actor":"user:a","rule":"requested"},` + progress + `}}`
		snap     = `{"id":"snap-a","vm_id":"fuse-a","state":"ready",` + progress + `}`
		bytes    = "memory 1.0 MiB of 4.0 MiB (25%), 2.0 MiB/s"
	)
	for _, tt := range []struct {
		args  []string
		slow  string // the call that takes until the screen shows how far it is
		after string
	}{
		{[]string{"pause", "fuse-a"}, "POST /v1/environments/fuse-a", "pausing fuse-a"},
		{[]string{"resume", "fuse-a"}, "POST /v1/environments/fuse-a", "resuming fuse-a"},
		{[]string{"snapshot", "restore", "snap-a"}, "POST /v1/snapshots/snap-a", "restoring"},
		{[]string{"fork", "fuse-a", "--snapshot", "snap-a", "--live"}, "POST /v1/environments/fuse-a", "forking"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			seen := make(chan struct{})
			s := &screen{want: bytes, seen: seen}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method+" "+r.URL.Path == tt.slow {
					select {
					case <-seen:
					case <-r.Context().Done():
					}
				}
				w.Header().Set("Content-Type", "application/json")
				if strings.HasPrefix(r.URL.Path, "/v1/snapshots/") {
					_, _ = io.WriteString(w, snap)
				} else {
					_, _ = io.WriteString(w, environ)
				}
			}))
			defer srv.Close()
			api, err := client.New(srv.URL, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			tools := kit.Tools{
				Server: func() (*client.API, error) { return api, nil }, Format: func() (string, error) { return "", nil },
				Out: io.Discard, Err: s, Progress: func(string, ...any) {}, IsTerminal: func(any) bool { return true },
				Cell: func(s string) string { return s }, Environments: func(int) cobra.CompletionFunc { return nil },
			}
			for _, cmd := range Commands(tools) {
				if cmd.Name() != tt.args[0] {
					continue
				}
				cmd.SetArgs(tt.args[1:])
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := cmd.ExecuteContext(ctx); err != nil {
					t.Error(err)
				}
			}
			if got := s.text.String(); !strings.Contains(got, tt.after) || !strings.Contains(got, bytes) {
				t.Errorf("it showed %q", got)
			}
		})
	}
}
