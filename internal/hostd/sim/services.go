package sim

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/guestd/supervise"
)

// supervise runs the manifest's services, as the real agent does, with the
// built-in commands.
func (s *surface) supervise(i *instance, runner procs.Runner) {
	s.services = supervise.New(supervise.Config{
		Processes: s.table, Log: slog.New(slog.DiscardHandler),
		Read: func(path string) ([]byte, error) {
			data, ok, err := guest{i}.read(path)
			if err == nil && !ok {
				err = fs.ErrNotExist
			}
			return data, err
		},
		Probe: func(ctx context.Context, spec fleet.ExecSpec) (int, string, error) {
			status, err := runner.Run(ctx, spec, process.IO{Started: func(process.Handle) {}}, nil)
			return status.ExitCode, "", err
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { s.services.Run(ctx) })
	s.stop = func() { cancel(); wait.Wait() }
}

// manifest starts the services of a manifest that was just written. One
// without services costs nothing.
func (g guest) manifest(written map[string]file) error {
	var m struct {
		Services map[string]json.RawMessage `json:"services"`
	}
	_ = json.Unmarshal(written[fleet.GuestManifestPath].Data, &m) // what is no manifest has no services
	if len(m.Services) == 0 {
		return nil
	}
	s, err := g.i.surface()
	if err == nil {
		s.services.Changed()
	}
	return err
}

// stopServices ends the services, if any were ever started.
func (g guest) stopServices(ctx context.Context) error {
	g.i.surfacing.Lock()
	s := g.i.made
	g.i.surfacing.Unlock()
	if s == nil {
		return nil
	}
	return s.services.Drain(ctx)
}
