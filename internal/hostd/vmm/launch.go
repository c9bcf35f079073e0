package vmm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/qmp"
)

// Launch is one process to start.
type Launch struct {
	Program string
	Args    []string
	Files   []*os.File // from descriptor 3 on
	Log     *os.File   // stdout and stderr
	UID     int        // user and group; negative: this program's
	Netns   bool       // a network namespace with nothing in it
	Group   int        // one more group, for /dev/kvm; negative: none
}

// Start runs the process in its own session. The calling thread may be any:
// nothing here depends on it.
func (l Launch) Start(bootID string) (*proc.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	fds := []uintptr{null.Fd(), l.Log.Fd(), l.Log.Fd()}
	for _, f := range l.Files {
		fds = append(fds, f.Fd())
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C"},
		Files: fds,
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	if l.UID >= 0 {
		attr.Sys.Credential = Credential(l.UID, l.Group)
	}
	if l.Netns {
		attr.Sys.Cloneflags = syscall.CLONE_NEWNET
	}
	pid, err := syscall.ForkExec(l.Program, append([]string{filepath.Base(l.Program)}, l.Args...), attr)
	runtime.KeepAlive(l.Files)
	runtime.KeepAlive(l.Log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", l.Program, err)
	}
	if pidfd < 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return nil, fmt.Errorf("start %s: the kernel gives no pidfd; Linux 5.4 or newer is needed", l.Program)
	}
	if err := syscall.SetNonblock(pidfd, true); err != nil {
		return nil, err
	}
	p := proc.New(proc.Ident{PID: pid, BootID: bootID}, pidfd)
	p.Start, err = proc.StartTime(pid)
	if err != nil { // it has ended already; its log says why
		p.Start = 0
	}
	return p, nil
}

// Credential is one user, its group of the same number, and one more group
// unless that is negative.
func Credential(uid, group int) *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	if group >= 0 {
		c.Groups = []uint32{uint32(group)}
	}
	return c
}

// Listen makes QEMU's control socket, which this program's user alone may
// connect to.
func Listen(dir, name string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: qmp.ShortPath(d, name), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the control socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	err = errors.Join(err, l.Close(), os.Chmod(filepath.Join(dir, name), 0o600))
	if err != nil && f != nil {
		_ = f.Close()
	}
	return f, err
}
