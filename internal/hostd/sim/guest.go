package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/simguest"
)

// maxFiles bounds, in bytes, the files that one simulated guest keeps.
const maxFiles = 2 << 20

// guest is the agent of a simulated VM.
type guest struct{ i *instance }

func (g guest) alive() error {
	select {
	case <-g.i.done:
		return fleet.Errorf(fleet.CodeConflict, "%w: %s", fleet.ErrVMNotRunning, g.i.exit.Cause)
	default:
		return nil
	}
}

// Info says what a real agent would.
func (g guest) Info(ctx context.Context) (fleet.GuestInfo, error) {
	if err := g.alive(); err != nil {
		return fleet.GuestInfo{}, err
	}
	return fleet.GuestInfo{
		Version: "sim", WireVersion: 1, BootID: g.i.state.BootID,
		UptimeMS: time.Since(g.i.state.Started).Milliseconds(), Ready: true, Health: g.verdict(ctx),
	}, nil
}

// verdict is what a written verdict says; without one, what the healthcheck
// gives that was written: its command is run, a page always answers.
func (g guest) verdict(ctx context.Context) *fleet.HealthStatus {
	if told, ok, err := g.read(fleet.GuestHealthStatePath); err == nil && ok {
		return fleet.ParseHealth(told)
	}
	doc, ok, err := g.read(fleet.GuestHealthcheckPath)
	if err != nil || !ok {
		return nil
	}
	var spec fleet.HealthcheckSpec
	if err := json.Unmarshal(doc, &spec); err != nil {
		return nil
	}
	h := fleet.HealthStatus{State: fleet.HealthPassing, Since: g.i.state.Started}
	if len(spec.Exec) > 0 {
		status, err := g.run(ctx, fleet.ExecSpec{Argv: spec.Exec, Timeout: time.Second}, fleet.Stdio{})
		if err != nil {
			return nil
		}
		if status.ExitCode != 0 {
			h.State, h.Failures, h.Message = fleet.HealthFailing, 1, fmt.Sprintf("exit code %d", status.ExitCode)
		}
	}
	return &h
}

// Exec runs one of the built-in commands.
func (g guest) Exec(ctx context.Context, spec fleet.ExecSpec, stdio fleet.Stdio) (fleet.ExecStatus, error) {
	if err := g.alive(); err != nil {
		return fleet.ExecStatus{}, err
	}
	if err := g.i.d.pass(ctx, "exec"); err != nil {
		return fleet.ExecStatus{}, err
	}
	return g.run(ctx, spec, stdio)
}

func (g guest) run(ctx context.Context, spec fleet.ExecSpec, stdio fleet.Stdio) (fleet.ExecStatus, error) {
	m := simguest.Machine{Hostname: g.i.state.Hostname, Done: g.i.done, Read: g.read}
	status, err := simguest.Run(ctx, m, spec, stdio)
	if errors.Is(err, simguest.ErrStopped) {
		return status, g.alive()
	}
	return status, err
}

func (g guest) read(path string) ([]byte, bool, error) {
	c, err := load(g.i.dir)
	f, ok := c.Files[path]
	if ok || err != nil {
		return f.Data, ok, err
	}
	data, rerr := g.uploaded(path)
	return data, rerr == nil, nil
}

// uploaded reads a file that came by a call that was passed on.
func (g guest) uploaded(path string) ([]byte, error) {
	root, err := os.OpenRoot(g.i.root())
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.ReadFile(strings.TrimPrefix(path, "/"))
}

// WriteFiles keeps files, at most maxFiles bytes of them.
func (g guest) WriteFiles(ctx context.Context, files []fleet.GuestFile) error {
	if err := g.alive(); err != nil {
		return err
	}
	if err := g.i.d.pass(ctx, "write"); err != nil {
		return err
	}
	select {
	case g.i.writing <- struct{}{}:
		defer func() { <-g.i.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	kept, err := load(g.i.dir)
	if err != nil {
		return err
	}
	added := map[string]file{}
	for _, f := range files {
		if f, err = simguest.File(f); err != nil {
			return err
		}
		added[f.Path] = file{f.Mode, f.Data}
	}
	maps.Copy(kept.Files, added)
	total := 0
	for f := range maps.Values(kept.Files) {
		total += len(f.Data)
	}
	if total > maxFiles {
		return fleet.Errorf(fleet.CodePayloadTooLarge, "the simulated guest is full").
			With(fleet.DetailLimit, fmt.Sprintf("%d bytes", maxFiles)).
			With(fleet.DetailUsage, fmt.Sprintf("%d bytes", total))
	}
	if err := add(g.i.dir, content{Files: added}, 0); err != nil {
		return err
	}
	return g.manifest(added)
}

// Drain stops the services, then runs the command if there is one.
func (g guest) Drain(ctx context.Context, command string) (fleet.ExecStatus, error) {
	if err := g.alive(); err != nil {
		return fleet.ExecStatus{}, err
	}
	if err := g.i.d.pass(ctx, "drain"); err != nil {
		return fleet.ExecStatus{}, err
	}
	if err := g.stopServices(ctx); err != nil || command == "" {
		return fleet.ExecStatus{}, err
	}
	return g.run(ctx, fleet.ExecSpec{Argv: []string{"sh", "-lc", command}}, fleet.Stdio{})
}
