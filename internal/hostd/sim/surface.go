package sim

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/files"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/guestd/supervise"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// surface is what a simulated guest keeps for calls that are passed on to it:
// the real agent's processes, which run built-in commands.
type surface struct {
	table    *procs.Table
	services *supervise.Supervisor
	stop     func() // ends the supervisor
	mux      *http.ServeMux
}

// root holds the files that came by calls that were passed on.
func (i *instance) root() string { return filepath.Join(i.dir, "root") }

func newSurface(i *instance) *surface {
	var runner procs.Runner = simRunner{i}
	if i.d.opts.Processes != nil {
		runner = i.d.opts.Processes
	}
	s := &surface{table: procs.New(procs.Config{Runner: runner}), mux: http.NewServeMux()}
	opts := []connect.HandlerOption{connect.WithReadMaxBytes(guestwire.MaxMessage), connect.WithCompression("gzip", nil, nil)}
	s.mux.Handle(guestwirev1connect.NewFilesHandler(files.New(i.root(), filepath.Join(i.root(), "fuse"), filepath.Join(i.root(), "etc/fuse")), opts...))
	s.mux.Handle(guestwirev1connect.NewProcessesHandler(procs.Service{Table: s.table}, opts...))
	s.supervise(i, runner)
	s.mux.Handle(guestwirev1connect.NewServicesHandler(supervise.Service{Supervisor: s.services}, opts...))
	return s
}

// ServeHTTP answers a call that the host passes on.
func (g guest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := g.alive()
	var s *surface
	if err == nil {
		s, err = g.i.surface()
	}
	if err != nil {
		_ = connect.NewErrorWriter().Write(w, r, guestwire.Refuse(err)) // the caller is gone if it fails
		return
	}
	s.mux.ServeHTTP(w, r)
}

// surface makes the surface at its first use, so that an idle VM has none.
func (i *instance) surface() (*surface, error) {
	i.surfacing.Lock()
	defer i.surfacing.Unlock()
	if i.shut {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "the simulated host is closing")
	}
	if i.made == nil {
		if err := os.MkdirAll(i.root(), 0o700); err != nil {
			return nil, err
		}
		i.made = newSurface(i)
	}
	return i.made, nil
}

// leave ends what runs for callers; their VM is gone or no longer ours.
func (i *instance) leave() {
	i.surfacing.Lock()
	defer i.surfacing.Unlock()
	i.shut = true
	if i.made != nil {
		i.made.table.Close()
		i.made.stop()
	}
}

// simRunner runs built-in commands as processes.
type simRunner struct{ i *instance }

var lastPID atomic.Int32

// Run implements procs.Runner.
func (r simRunner) Run(ctx context.Context, spec fleet.ExecSpec, stdio process.IO, _ func(pid int)) (fleet.ExecStatus, error) {
	g := guest(r)
	if err := r.i.d.pass(ctx, "exec"); err != nil {
		return fleet.ExecStatus{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &simHandle{pid: int(lastPID.Add(1)), kill: cancel, terminal: stdio.Terminal != nil}
	if stdio.Started != nil {
		stdio.Started(h)
	}
	std := fleet.Stdio{Stdout: stdio.Stdout, Stderr: stdio.Stderr}
	if stdio.Stdin != nil {
		std.Stdin = stdio.Stdin
	}
	status, err := g.run(ctx, spec, std)
	if sig := h.end(); err != nil && sig > 0 {
		return fleet.ExecStatus{ExitCode: 128 + int(sig), Signal: unix.SignalName(sig)[3:]}, nil
	}
	return status, err
}

// simHandle reaches a built-in command: any signal that ends a program by
// default ends it.
type simHandle struct {
	pid      int
	kill     func()
	terminal bool

	mu    sync.Mutex
	sig   syscall.Signal
	ended bool
}

// PID implements process.Handle.
func (h *simHandle) PID() int { return h.pid }

// Signal implements process.Handle.
func (h *simHandle) Signal(sig syscall.Signal, _ bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return fleet.Errorf(fleet.CodeConflict, "the process has ended").With(fleet.DetailReason, "ended")
	}
	switch sig {
	case syscall.SIGCHLD, syscall.SIGWINCH, syscall.SIGURG, syscall.SIGCONT:
		return nil
	}
	if unix.SignalName(sig) != "" {
		h.sig = sig
		h.kill()
	}
	return nil
}

// Resize implements process.Handle.
func (h *simHandle) Resize(process.Size) error {
	if !h.terminal {
		return fleet.Errorf(fleet.CodeConflict, "the process has no terminal").With(fleet.DetailReason, "no_terminal")
	}
	return nil
}

// end says which signal ended the command, if one did.
func (h *simHandle) end() syscall.Signal {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	return h.sig
}
