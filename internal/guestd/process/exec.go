package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
)

const (
	// MaxRunning bounds the commands that run at once.
	MaxRunning = 256
	// outputGrace is how long output is awaited from processes that outlive
	// their command, once it has ended.
	outputGrace = 200 * time.Millisecond
	// killWait is how long a killed command may take to go: one that waits in
	// the kernel for a dead disk cannot be killed at all. The server waits a
	// little longer for its answer.
	killWait = 10 * time.Second
)

// Exit codes for commands that did not end by themselves.
const (
	exitTimeout       = 124
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
)

// Config is what a Runner needs to know of its machine.
type Config struct {
	Reaper *Reaper
	// CgroupDir names a directory to make in a cgroup v2 hierarchy. Empty means
	// that trees are found by scanning /proc instead.
	CgroupDir string
	Env       map[string]string // of the image, for every command
	Workdir   string            // of commands that name none; empty: /
	User      string            // of commands that name none; empty: root
}

// Runner runs commands.
type Runner struct {
	cfg     Config
	groups  *cgroups // nil: scan
	slots   chan struct{}
	gate    gate
	lingers lingers
}

// IO are the streams of a command. Stdin may be nil; it is closed when the
// command has ended, and Close must end a Read in progress. The writers must
// fail once the context of the run has ended.
type IO struct {
	Stdin          io.ReadCloser
	Stdout, Stderr io.Writer
	// Terminal, if set, is the command's input and output: what it writes goes
	// to Stdout, and Stderr is used only if it cannot be started.
	Terminal *Size
	// Namespaces are flags of clone: what the command gets of its own.
	Namespaces uintptr
	// Started, if set, is called once the command runs.
	Started func(Handle)
}

// NewRunner returns a runner. Close ends what it left in the background.
func NewRunner(cfg Config) (*Runner, error) {
	r := &Runner{cfg: cfg, slots: make(chan struct{}, MaxRunning)}
	if cfg.CgroupDir != "" {
		groups, err := newCgroups(cfg.CgroupDir)
		if err != nil {
			return nil, err
		}
		r.groups = groups
	}
	return r, nil
}

// Close stops draining the output of background processes. They live on.
func (r *Runner) Close() {
	r.lingers.close()
	if r.groups != nil {
		r.groups.close()
	}
}

// Run runs one command and returns when it has ended and its output is
// written. Processes that it left in the background live on. When ctx ends
// first, or the spec's timeout, the whole tree is killed. started, if not nil,
// is called with the pid.
func (r *Runner) Run(ctx context.Context, spec fleet.ExecSpec, stdio IO, started func(pid int)) (fleet.ExecStatus, error) {
	if stdio.Stdin != nil {
		defer stdio.Stdin.Close()
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		return fleet.ExecStatus{}, fleet.Errorf(fleet.CodeUnavailable, "the guest already runs %d commands, its limit; wait for one to end", MaxRunning).
			With(fleet.DetailLimit, fmt.Sprint(MaxRunning))
	}
	cmd, err := r.prepare(spec)
	if err != nil {
		return fleet.ExecStatus{}, err
	}
	run := &running{runner: r, command: cmd, marker: rand.Text(), pidfd: -1, own: stdio.Namespaces}
	if err := run.open(stdio); err != nil {
		return fleet.ExecStatus{}, fmt.Errorf("prepare command: %w", err)
	}
	defer run.close()
	if err := r.gate.enter(ctx); err != nil {
		return fleet.ExecStatus{}, fmt.Errorf("command ended early: %w", err)
	}
	err = run.start()
	r.gate.leave()
	if err != nil {
		return notStarted(cmd, err, stdio.Stderr)
	}
	if started != nil {
		started(run.child.PID)
	}
	if stdio.Started != nil {
		stdio.Started(&handle{run})
	}
	defer run.over()
	return run.finish(ctx, spec.Timeout, stdio)
}

// notStarted turns a failed start into the exit code a shell would give, with
// a line of explanation on standard error.
func notStarted(cmd command, err error, stderr io.Writer) (fleet.ExecStatus, error) {
	code, why := ExitOf(err), err.Error()
	switch {
	case code == exitNotFound:
		why = "not found"
	case errors.Is(err, syscall.E2BIG):
		return fleet.ExecStatus{}, fleet.Errorf(fleet.CodeInvalidArgument, "arguments and environment are longer than the guest's kernel takes").
			With(fleet.DetailLimit, "128 KiB for each of them, a quarter of the stack's limit (2 MiB as a rule) for all").
			With(fleet.DetailRemedy, "pass the data on standard input or in a file")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE):
		return fleet.ExecStatus{}, fleet.Wrap(fleet.CodeUnavailable, err, "the guest cannot start another process: "+err.Error())
	}
	if stderr != nil {
		if _, err := fmt.Fprintf(stderr, "fused: cannot run %s: %s\n", cmd.argv[0], why); err != nil {
			return fleet.ExecStatus{}, fmt.Errorf("write standard error: %w", err)
		}
	}
	return fleet.ExecStatus{ExitCode: code}, nil
}

// running is one command under way.
type running struct {
	runner  *Runner
	command command
	marker  string
	leaf    *leaf
	child   *Child

	theirs [3]int // the command's descriptors; -1 once closed
	stdin  *os.File
	outs   []*output
	pumps  sync.WaitGroup
	tty    bool
	own    uintptr // namespaces

	mu    sync.Mutex
	pidfd int  // of the child; -1: none
	ended bool // nothing of the run may be touched any more
}

// open makes the pipes and the cgroup.
func (x *running) open(stdio IO) (err error) {
	x.theirs = [3]int{-1, -1, -1}
	defer func() {
		if err != nil {
			x.close()
		}
	}()
	if stdio.Terminal != nil {
		if err := x.openTerminal(*stdio.Terminal, stdio); err != nil {
			return err
		}
		return x.openLeaf()
	}
	if stdio.Stdin == nil {
		x.theirs[0], err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		x.stdin, x.theirs[0], err = pipe(false)
	}
	if err != nil {
		return err
	}
	for i, w := range []io.Writer{stdio.Stdout, stdio.Stderr} {
		if w == nil {
			x.theirs[i+1], err = unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		} else {
			o := &output{w: w}
			if o.r, x.theirs[i+1], err = pipe(true); err == nil {
				x.outs = append(x.outs, o)
			}
		}
		if err != nil {
			return err
		}
	}
	return x.openLeaf()
}

func (x *running) openLeaf() (err error) {
	if x.runner.groups != nil {
		x.leaf, err = x.runner.groups.make()
	}
	return err
}

func (x *running) start() error {
	cmd := x.command
	path, err := cmd.find()
	if err != nil {
		return err
	}
	sys := &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: cmd.who.uid, Gid: cmd.who.gid, Groups: cmd.who.groups},
		PidFD:      &x.pidfd,
		Cloneflags: x.own,
	}
	if x.tty {
		sys.Setctty, sys.Ctty = true, 0
	}
	env := cmd.env
	if x.leaf != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(x.leaf.dir.Fd())
	} else {
		env = append(env, markerVar+"="+x.marker)
	}
	files := []uintptr{uintptr(x.theirs[0]), uintptr(x.theirs[1]), uintptr(x.theirs[2])}
	x.child, err = x.runner.cfg.Reaper.Start(path, cmd.argv, &syscall.ProcAttr{Dir: cmd.cwd, Env: env, Files: files, Sys: sys})
	x.closeTheirs()
	return err
}

// finish moves the streams until the command has ended.
func (x *running) finish(ctx context.Context, timeout time.Duration, stdio IO) (fleet.ExecStatus, error) {
	var input sync.WaitGroup
	if x.stdin != nil && stdio.Stdin != nil {
		input.Go(func() { // ends with the command: both its ends are closed below
			_, _ = io.CopyBuffer(onlyWriter{x.stdin}, onlyReader{stdio.Stdin}, make([]byte, ChunkSize))
			_ = x.stdin.Close() // end of file; a command that closed its input early is no error
		})
	}
	for _, o := range x.outs {
		x.pumps.Go(o.pump)
	}
	timedOut, gone := x.wait(ctx, timeout)
	grace := time.Now().Add(outputGrace)
	for _, o := range x.outs {
		_ = o.r.SetReadDeadline(grace)
	}
	if x.stdin != nil {
		_ = x.stdin.Close()
	}
	if stdio.Stdin != nil {
		_ = stdio.Stdin.Close()
	}
	input.Wait()
	x.pumps.Wait()
	for _, o := range x.outs {
		if o.err != nil && ctx.Err() == nil {
			return fleet.ExecStatus{}, fmt.Errorf("write output: %w", o.err)
		}
	}
	switch {
	case ctx.Err() != nil && !timedOut:
		return fleet.ExecStatus{}, fmt.Errorf("command ended early: %w", context.Cause(ctx))
	case timedOut:
		return fleet.ExecStatus{ExitCode: exitTimeout, Signal: "KILL", TimedOut: true}, nil
	case !gone:
		return fleet.ExecStatus{}, errors.New("command could not be killed")
	}
	return statusOf(x.child.Status()), nil
}

// wait returns when the command has ended, killing its tree first when time is
// up. gone is false if even that did not end it.
func (x *running) wait(ctx context.Context, timeout time.Duration) (timedOut, gone bool) {
	var expired <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-x.child.Done():
		return false, true
	case <-expired:
		timedOut = true
	case <-ctx.Done():
	}
	x.kill()
	late := time.NewTimer(killWait)
	defer late.Stop()
	select {
	case <-x.child.Done():
		return timedOut, true
	case <-late.C:
		return timedOut, false
	}
}

func (x *running) kill() {
	if x.leaf == nil || x.leaf.kill() != nil {
		killScan(x.child.PID, x.marker, time.Now().Add(time.Second))
	}
}

func (x *running) closeTheirs() {
	for i, fd := range x.theirs {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		x.theirs[i] = -1
	}
}

func (x *running) close() {
	x.over()
	x.closeTheirs()
	if x.stdin != nil {
		_ = x.stdin.Close()
	}
	for _, o := range x.outs {
		if x.child != nil && !o.eof {
			_ = o.r.SetReadDeadline(time.Time{})
			x.runner.lingers.add(o.r)
		} else {
			_ = o.r.Close()
		}
	}
	if x.leaf != nil {
		x.runner.groups.release(x.leaf)
	}
}

func statusOf(ws syscall.WaitStatus) fleet.ExecStatus {
	if ws.Signaled() {
		return fleet.ExecStatus{ExitCode: exitSignal + int(ws.Signal()), Signal: signalName(ws.Signal())}
	}
	return fleet.ExecStatus{ExitCode: ws.ExitStatus()}
}

// signalName is the name without SIG; a real-time signal has only a number.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); len(name) > 3 {
		return name[3:]
	}
	return fmt.Sprint(int(s))
}

// onlyReader and onlyWriter hide methods that would make io.CopyBuffer leave
// its buffer unused.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }
