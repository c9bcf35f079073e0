package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// Process is a server that was started to be measured.
type Process interface {
	PID() int
	Stop() error
	Kill() error // at once, as a crash does
}

// Restart measures how long a server takes from its start until it is ready.
type Restart struct {
	Target   Target
	Sizes    []int // fleet sizes, rising
	Hosts    []RestartHost
	Restarts int  // a size
	Secrets  bool // each environment has one, which is handed over again
	Out      io.Writer
	// Server starts it and returns its URL once it serves.
	Server func(ctx context.Context) (Process, string, error)
	// Limit bounds one start.
	Limit time.Duration
}

// RestartHost is a simulated host that runs already.
type RestartHost struct{ ID, URL, Token string }

// Run fills the fleet and restarts its server, size by size.
func (b Restart) Run(ctx context.Context) error {
	server, _, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }() // the measurement has ended, or its error tells
	for _, h := range b.Hosts {
		if _, err := b.Target.Call(ctx, http.MethodPost, "/v1/hosts", map[string]any{"id": h.ID, "url": h.URL, "token": h.Token}); err != nil {
			return err
		}
	}
	have := 0
	for _, size := range b.Sizes {
		if _, err := Each(ctx, size-have, Workers, func(ctx context.Context, i int) error { return b.create(ctx, have+i) }); err != nil {
			return err
		}
		have = max(have, size)
		var all starts
		for range b.Restarts {
			if err := server.Kill(); err != nil {
				return err
			}
			var took started
			if server, took, err = b.start(ctx); err != nil {
				return err
			}
			all.add(took)
		}
		fmt.Fprintf(b.Out, "at %d environments on %d hosts: serving after %s, ready after %s, processor time %s\n",
			size, len(b.Hosts), spread(all.serving), spread(all.ready), spread(all.cpu))
	}
	return nil
}

func (b Restart) create(ctx context.Context, i int) error {
	body := map[string]any{"task_id": fmt.Sprintf("r-%d", i), "spec": map[string]any{"cpus": 1, "ram_mb": 64, "storage_gb": 1}}
	if b.Secrets {
		body["secrets"] = map[string]string{"KEY": "value"}
	}
	_, err := b.Target.Call(ctx, http.MethodPost, "/v1/environments", body)
	return err
}

// started is how long a start took, and how much of the processor until ready.
type started struct{ serving, ready, cpu time.Duration }

type starts struct{ serving, ready, cpu []time.Duration }

func (s *starts) add(t started) {
	s.serving, s.ready, s.cpu = append(s.serving, t.serving), append(s.ready, t.ready), append(s.cpu, t.cpu)
}

func (b *Restart) start(ctx context.Context) (Process, started, error) {
	var took started
	began := time.Now()
	server, url, err := b.Server(ctx)
	if err != nil {
		return nil, took, err
	}
	took.serving = time.Since(began)
	b.Target.Base = url
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if _, err = b.Target.Call(ctx, http.MethodGet, "/ready", nil); err == nil {
			took.ready = time.Since(began)
			usage, err := ProcessUsage("server", server.PID())
			took.cpu = usage.CPU
			return server, took, err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, took, errors.Join(fmt.Errorf("the server does not become ready: %w", err), server.Stop())
		}
	}
}

// spread renders the median and the worst.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "nothing"
	}
	sorted := slices.Sorted(slices.Values(times))
	return fmt.Sprintf("%.2f s (worst %.2f s)", sorted[len(sorted)/2].Seconds(), sorted[len(sorted)-1].Seconds())
}
