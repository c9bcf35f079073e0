package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxFiles bounds, in bytes, the files that one simulated guest keeps.
const maxFiles = 4 << 20

// filesFile keeps a guest's files, so that an idle VM holds no memory for
// them.
const filesFile = "sim-files.json"

type file struct {
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

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
func (g guest) Info(context.Context) (fleet.GuestInfo, error) {
	if err := g.alive(); err != nil {
		return fleet.GuestInfo{}, err
	}
	return fleet.GuestInfo{
		Version: "sim", WireVersion: 1, BootID: g.i.state.BootID,
		UptimeMS: time.Since(g.i.state.Started).Milliseconds(), Ready: true,
	}, nil
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
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	if spec.Timeout > 0 {
		timer := time.AfterFunc(spec.Timeout, func() { cancel(errTimeout) })
		defer timer.Stop()
	}
	p := newProcess(inner, g, spec, stdio)
	defer context.AfterFunc(inner, p.closeStdin)()
	code, err := p.exec(spec.Argv)
	var ended exitError
	switch {
	case errors.As(err, &ended):
		return fleet.ExecStatus{ExitCode: int(ended)}, nil
	case errors.Is(context.Cause(inner), errTimeout):
		return fleet.ExecStatus{ExitCode: 124, Signal: "KILL", TimedOut: true}, nil
	case ctx.Err() != nil:
		return fleet.ExecStatus{}, context.Cause(ctx)
	case g.alive() != nil:
		return fleet.ExecStatus{}, g.alive()
	case err != nil:
		return fleet.ExecStatus{}, fmt.Errorf("streams of the command: %w", err)
	}
	return fleet.ExecStatus{ExitCode: code}, nil
}

var errTimeout = errors.New("the command's time is over")

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
	kept, err := g.files()
	if err != nil {
		return err
	}
	for _, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" || strings.ContainsRune(f.Path, 0) {
			return fleet.Errorf(fleet.CodeInvalidArgument, "%.120q is not an absolute, clean path", f.Path)
		}
		mode := f.Mode
		switch {
		case mode != 0:
		case strings.HasPrefix(f.Path, fleet.ReservedGuestDir+"/"):
			mode = 0o600
		default:
			mode = 0o644
		}
		kept[f.Path] = file{mode, f.Data}
	}
	total := 0
	for f := range maps.Values(kept) {
		total += len(f.Data)
	}
	if total > maxFiles {
		return fleet.Errorf(fleet.CodePayloadTooLarge, "the simulated guest is full").
			With(fleet.DetailLimit, fmt.Sprintf("%d bytes", maxFiles)).
			With(fleet.DetailUsage, fmt.Sprintf("%d bytes", total))
	}
	if err := writeFile(filepath.Join(g.i.dir, filesFile), kept); err != nil {
		return fmt.Errorf("keep the files: %w", err)
	}
	return nil
}

func (g guest) files() (map[string]file, error) {
	kept := map[string]file{}
	doc, err := os.ReadFile(filepath.Join(g.i.dir, filesFile))
	if errors.Is(err, os.ErrNotExist) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(doc, &kept)
	}
	if err != nil {
		return nil, fmt.Errorf("read the files: %w", err)
	}
	return kept, nil
}

// Drain has no services to stop; it runs the command if there is one.
func (g guest) Drain(ctx context.Context, command string) (fleet.ExecStatus, error) {
	if err := g.alive(); err != nil {
		return fleet.ExecStatus{}, err
	}
	if err := g.i.d.pass(ctx, "drain"); err != nil || command == "" {
		return fleet.ExecStatus{}, err
	}
	return g.run(ctx, fleet.ExecSpec{Argv: []string{"sh", "-lc", command}}, fleet.Stdio{})
}
