package process

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
)

// Size is that of a terminal, in characters; zero is unknown.
type Size struct{ Rows, Cols uint16 }

// Handle reaches a command while it runs.
type Handle interface {
	// PID is that of the command's first process.
	PID() int
	// Signal sends a signal to the command's first process, or to all it
	// started. One that has ended is a conflict.
	Signal(sig syscall.Signal, tree bool) error
	// Resize changes the size of the command's terminal.
	Resize(size Size) error
}

type handle struct{ run *running }

// PID implements Handle.
func (h *handle) PID() int { return h.run.child.PID }

// Signal implements Handle.
func (h *handle) Signal(sig syscall.Signal, tree bool) error {
	x := h.run
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return errEnded()
	}
	if tree {
		if sig == syscall.SIGKILL {
			x.kill()
			return nil
		}
		return x.signalTree(sig)
	}
	err := unix.PidfdSendSignal(x.pidfd, sig, nil, 0)
	if err == unix.ESRCH {
		return errEnded()
	}
	return os.NewSyscallError("pidfd_send_signal", err)
}

func errEnded() error {
	return fleet.Errorf(fleet.CodeConflict, "the process has ended").With(fleet.DetailReason, "ended")
}

// signalTree reaches those that are there now; a process that forks meanwhile
// may leave a child out, which only KILL does not allow.
func (x *running) signalTree(sig syscall.Signal) error {
	if x.leaf == nil {
		if err := unix.Kill(-x.child.PID, sig); err != nil && err != unix.ESRCH {
			return os.NewSyscallError("kill", err)
		}
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(x.leaf.path, "cgroup.procs"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(raw)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
			_ = unix.Kill(pid, sig) // it may have ended
		}
	}
	return nil
}

// Resize implements Handle.
func (h *handle) Resize(size Size) error {
	x := h.run
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.tty {
		return fleet.Errorf(fleet.CodeConflict, "the process has no terminal").With(fleet.DetailReason, "no_terminal")
	}
	if x.ended {
		return errEnded()
	}
	return setSize(x.outs[0].r, size)
}

// over ends the use of handles.
func (x *running) over() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	if x.pidfd >= 0 {
		_ = unix.Close(x.pidfd)
		x.pidfd = -1
	}
}

// openTerminal makes a terminal that belongs to the command's user.
func (x *running) openTerminal(size Size, stdio IO) error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	x.outs = []*output{{r: master, w: writerOr(stdio.Stdout)}}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return os.NewSyscallError("unlock the terminal", err)
	}
	// By the master itself: whatever is mounted at /dev/pts, it is the peer.
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("open the terminal", errno)
	}
	x.theirs[0] = int(peer)
	for i := 1; i < 3; i++ {
		if x.theirs[i], err = dup(x.theirs[0]); err != nil {
			return err
		}
	}
	if err := setSize(master, size); err != nil {
		return err
	}
	if who := x.command.who; who.uid != 0 {
		_ = unix.Fchown(x.theirs[0], int(who.uid), int(who.gid)) // else only /dev/tty works
	}
	mine, err := dup(fd)
	if err != nil {
		return err
	}
	x.stdin, x.tty = os.NewFile(uintptr(mine), "/dev/ptmx"), true
	return nil
}

func dup(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return n, os.NewSyscallError("dup", err)
}

func writerOr(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func setSize(f *os.File, size Size) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ioctlErr error
	err = raw.Control(func(fd uintptr) {
		ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	if err == nil {
		err = os.NewSyscallError("set the terminal's size", ioctlErr)
	}
	return err
}
