// Package proc takes hold of processes so that a handle stays on one process,
// whatever happens to its pid, across restarts of this program too.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ident tells one process from every other, of this boot and of others.
type Ident struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // clock ticks after boot
	BootID string `json:"boot_id"`
}

// ErrGone says that a process has certainly ended.
var ErrGone = errors.New("the process has ended")

// BootID is the host's, which changes with each boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the host's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// StartTime reads a process's start from /proc. A zombie counts as ended.
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, ErrGone
	}
	if err != nil {
		return 0, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return parseStat(string(b))
}

// parseStat finds the start time in /proc/PID/stat. The name in it may hold
// anything, parentheses and spaces too, so it is skipped from the right.
func parseStat(stat string) (uint64, error) {
	i := strings.LastIndexByte(stat, ')')
	f := strings.Fields(stat[i+1:])
	if i < 0 || len(f) < 20 {
		return 0, errors.New("/proc/PID/stat has an unknown form")
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, ErrGone
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// Process is a handle on one process that stays on that one, whatever
// happens to its pid.
type Process struct {
	Ident
	pidfd *os.File
}

// Open takes hold of a process; ErrGone means it is certainly not
// there any more.
func Open(id Ident, bootID string) (*Process, error) {
	if id.BootID != bootID {
		return nil, ErrGone
	}
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, ErrGone // EINVAL: the pid is a thread's by now
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	p := New(id, fd)
	// The descriptor holds the pid, so the start time is that process's.
	start, err := StartTime(id.PID)
	if err == nil && start != id.Start {
		err = ErrGone
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// New wraps a pidfd, which must not block.
func New(id Ident, pidfd int) *Process {
	return &Process{id, os.NewFile(uintptr(pidfd), "pidfd")}
}

// Close lets go of the process.
func (p *Process) Close() error { return p.pidfd.Close() }

// File opens what the process has open under a number.
func (p *Process) File(number int) (*os.File, error) {
	var got int
	err := p.control(func(fd int) error {
		var err error
		got, err = unix.PidfdGetfd(fd, number, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take descriptor %d of process %d: %w", number, p.PID, err)
	}
	return os.NewFile(uintptr(got), "descriptor"), nil
}

// Kill sends SIGKILL; an ended process is fine.
func (p *Process) Kill() error {
	err := p.control(func(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func (p *Process) control(f func(fd int) error) error {
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := rc.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// Wait returns once the process has ended, ctx has, or p is closed. One call
// at a time.
func (p *Process) Wait(ctx context.Context) error {
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.pidfd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = rc.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Reap collects an ended child's status and says how it ended; ok is false if
// it was not this program's child.
func (p *Process) Reap() (how string, ok bool) {
	var ws unix.WaitStatus
	err := p.control(func(fd int) error {
		// With the pidfd first: its own pid may have been reaped and reused.
		var info unix.Siginfo
		return unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	if err != nil {
		return "", false
	}
	if pid, err := unix.Wait4(p.PID, &ws, unix.WNOHANG, nil); err != nil || pid != p.PID {
		return "", false
	}
	if ws.Signaled() {
		return fmt.Sprintf("killed by signal %d (%s)", int(ws.Signal()), ws.Signal()), true
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus()), true
}

// End kills the process and waits until it is gone.
func (p *Process) End(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	if err := p.Wait(ctx); err != nil {
		return fmt.Errorf("process %d does not end: %w", p.PID, err)
	}
	p.Reap()
	return nil
}

// Named finds the processes one of whose arguments is "guest=PREFIX…", by
// what follows the prefix up to a comma. It reads what /proc shows, so a process
// that this user may not see is not found.
func Named(prefix string) (map[int]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		for arg := range strings.SplitSeq(string(b), "\x00") {
			if rest, ok := strings.CutPrefix(arg, "guest="+prefix); ok {
				found[pid], _, _ = strings.Cut(rest, ",")
				break
			}
		}
	}
	return found, nil
}

// Reap collects a child that has ended; it does nothing for any other
// process.
func Reap(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return
	}
	p := New(Ident{PID: pid}, fd)
	p.Reap()
	_ = p.Close()
}

// maxAdvice is how many ranges one call of the kernel's takes (UIO_MAXIOV).
const maxAdvice = 1024

// PageOut gives back the memory of the process's mappings of files that
// unneeded names by path; they come back from the file if touched again. It is an
// economy: what cannot be done is only reported.
func (p *Process) PageOut(unneeded func(path string) bool) error {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "maps"))
	if err != nil {
		return err
	}
	ranges := parseMaps(string(b), unneeded)
	if len(ranges) == 0 {
		return nil
	}
	ranges = ranges[:min(len(ranges), maxAdvice)]
	return p.control(func(fd int) error {
		_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd),
			uintptr(unsafe.Pointer(&ranges[0])), uintptr(len(ranges)), unix.MADV_PAGEOUT, 0, 0)
		if errno != 0 {
			return fmt.Errorf("process_madvise: %w", errno)
		}
		return nil
	})
}

// span is the kernel's struct iovec, with addresses of another process.
type span struct{ base, size uintptr }

// parseMaps finds the mappings of some files in /proc/PID/maps: "FROM-TO PERMS
// OFFSET DEVICE INODE PATH".
func parseMaps(maps string, wanted func(path string) bool) []span {
	var out []span
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		if len(f) < 6 || f[4] == "0" || !wanted(f[5]) {
			continue
		}
		from, to, ok := strings.Cut(f[0], "-")
		a, err1 := strconv.ParseUint(from, 16, 64)
		z, err2 := strconv.ParseUint(to, 16, 64)
		if ok && err1 == nil && err2 == nil && z > a {
			out = append(out, span{uintptr(a), uintptr(z - a)})
		}
	}
	return out
}
