package qemu

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/guestmem"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/qmp"
)

// Descriptors that QEMU gets, after the three standard ones.
const (
	fdDisk = 3 + iota
	fdRoot
	fdConsole
	fdQMP
	fdKernel
	fdInitrd
	fdTap // with slots only
)

// rootSerial names the root disk to the guest.
const rootSerial = "fuse-root"

// commandLine is QEMU's, without the program. It names no file of ours.
func commandLine(m machine, accel, name string, vm driver.VM, netdev string) []string {
	args := []string{
		"-name", "guest=" + name + ",debug-threads=on",
		"-no-user-config", "-nodefaults", "-display", "none",
		"-machine", m.options,
	}
	args = append(args, m.accelArgs(accel)...)
	for _, rom := range m.bios {
		if _, err := os.Stat(rom); err == nil {
			args = append(args, "-bios", rom)
			break
		}
	}
	return append(args,
		"-smp", strconv.Itoa(vm.CPUs),
		"-m", strconv.Itoa(guestmem.Size(vm.RamMB, vm.HugePages)),
		"-object", guestmem.Object(vm.RamMB, vm.HugePages),
		// A guest that powers off leaves its process waiting, so that the
		// reason can be read even if nobody listened at that moment.
		"-no-shutdown",
		"-add-fd", fmt.Sprintf("fd=%d,set=1", fdDisk),
		"-add-fd", fmt.Sprintf("fd=%d,set=2", fdRoot),
		"-add-fd", fmt.Sprintf("fd=%d,set=3", fdConsole),
		"-blockdev", "driver=file,node-name=root-file,filename=/dev/fdset/2,read-only=on",
		"-blockdev", "driver=raw,node-name=root,file=root-file,read-only=on",
		"-blockdev", "driver=file,node-name=disk-file,filename=/dev/fdset/1,discard=unmap",
		"-blockdev", "driver=qcow2,node-name=disk,file=disk-file,backing=root,discard=unmap",
		// A full host disk is an I/O error in the guest, not a frozen guest.
		"-device", "virtio-blk-pci,drive=disk,serial="+rootSerial+",werror=report,rerror=report",
		"-netdev", netdev,
		"-device", "virtio-net-pci,netdev=n0,romfile=,mac="+network.GuestMAC.String(),
		"-chardev", "file,id=console,path=/dev/fdset/3,append=on",
		"-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d,server=on,wait=off", fdQMP),
		"-mon", "chardev=qmp,mode=control",
		"-kernel", fmt.Sprintf("/proc/self/fd/%d", fdKernel),
		"-initrd", fmt.Sprintf("/proc/self/fd/%d", fdInitrd),
		"-append", m.kernelArgs(accel),
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
	)
}

// launch is one process to start.
type launch struct {
	program string
	args    []string
	files   []*os.File // from descriptor 3 on
	log     *os.File   // stdout and stderr
	uid     int        // user and group; negative: this program's
	netns   bool       // a network namespace with nothing in it
	group   int        // one more group, for /dev/kvm; negative: none
}

// start runs the process in its own session. The calling thread may be any:
// nothing here depends on it.
func (l launch) start(bootID string) (*proc.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	fds := []uintptr{null.Fd(), l.log.Fd(), l.log.Fd()}
	for _, f := range l.files {
		fds = append(fds, f.Fd())
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C"},
		Files: fds,
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	if l.uid >= 0 {
		attr.Sys.Credential = credential(l.uid, l.group)
	}
	if l.netns {
		attr.Sys.Cloneflags = syscall.CLONE_NEWNET
	}
	pid, err := syscall.ForkExec(l.program, append([]string{filepath.Base(l.program)}, l.args...), attr)
	runtime.KeepAlive(l.files)
	runtime.KeepAlive(l.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", l.program, err)
	}
	if pidfd < 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return nil, fmt.Errorf("start %s: the kernel gives no pidfd; Linux 5.4 or newer is needed", l.program)
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

// credential is one user, its group of the same number, and one more group
// unless that is negative.
func credential(uid, group int) *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	if group >= 0 {
		c.Groups = []uint32{uint32(group)}
	}
	return c
}

// listenQMP makes QEMU's control socket, which this program's user alone may
// connect to.
func listenQMP(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: qmp.ShortPath(d, fileQMP), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the control socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	err = errors.Join(err, l.Close(), os.Chmod(filepath.Join(dir, fileQMP), 0o600))
	if err != nil && f != nil {
		_ = f.Close()
	}
	return f, err
}
