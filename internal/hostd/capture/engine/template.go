package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/hostd/capture/live"
	"github.com/fusevm/fuse/internal/hostd/capture/manifest"
	"github.com/fusevm/fuse/internal/hostd/capture/memory"
	"github.com/fusevm/fuse/internal/hostd/capture/sparse"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/svcdisk"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/accel"
)

// What follows the prefix in the names of processes that are no VM's. No uid
// has a dot.
const (
	nameTemplate = "capture."
	nameHolder   = "hold."
)

// NotVM tells these names from uids of VMs.
func NotVM(name string) bool {
	return strings.HasPrefix(name, nameTemplate) || strings.HasPrefix(name, nameHolder)
}

// Files of a template in the directory of its capture; they go with it.
const (
	fileTemplateQMP = "template.sock"
	fileTemplateLog = "template.log"
)

// template is a QEMU process that takes a machine's state and never runs. Its
// memory is of this program's.
type template struct {
	e      *Engine
	a      driver.Artifact
	memory *os.File
	proc   *proc.Process
	qmp    *qmp.Client
	group  *cgroup.Group
}

// startTemplate starts one with the shape of a VM.
func (e *Engine) startTemplate(ctx context.Context, vm driver.VM, a driver.Artifact, diskSize int64) (*template, error) {
	t := &template{e: e, a: a}
	err := t.start(ctx, vm, diskSize)
	if err == nil {
		t.qmp, err = qmp.Dial(ctx, filepath.Join(a.Dir, fileTemplateQMP), nil)
	}
	if err != nil {
		said := console.Tail(filepath.Join(a.Dir, fileTemplateLog))
		return nil, errors.Join(fmt.Errorf("start the template: %w: %s", err, said), t.close())
	}
	return t, nil
}

func (t *template) start(ctx context.Context, vm driver.VM, diskSize int64) error {
	e := t.e
	facts, err := e.Facts(ctx, vm)
	if err != nil {
		return err
	}
	program, err := e.Program()
	if err != nil {
		return err
	}
	kernel, err := e.Images.Kernel(ctx, nil)
	if err != nil {
		return err
	}
	name := nameTemplate + t.a.ID
	if t.memory, err = memory.New(t.a.ID, int64(vm.RamMB)<<20); err != nil {
		return err
	}
	var files vmm.Files
	defer files.Close()
	s := vmm.Spec{Accel: facts.Accelerator, Name: e.Reaper.Prefix + name, VM: vm, Incarnation: vmm.NewIncarnation(), NullSize: diskSize, Shared: true, Incoming: true}
	if err := t.open(&files, &s, kernel.Path, kernel.Initrd); err != nil {
		return err
	}
	if s.Extra, err = e.ServiceDisks(&files, vm); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(t.a.Dir, fileTemplateLog), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if e.Reaper.Cgroups.Works() {
		t.group, err = e.Reaper.Cgroups.Create(name, cgroup.Limits{
			MemoryBytes: int64(vm.RamMB+vmm.OverheadMB(facts.Accelerator)+vmm.OverheadSlack) << 20, CPUs: 2, Pids: vmm.ThreadsPerVM + vm.CPUs,
		})
		if err != nil {
			return err
		}
	}
	l := vmm.Launch{Program: program, Args: e.Machine.Args(s), Files: files.List(), Log: log, UID: e.UID(vm.Slot), Netns: e.Slots, Group: -1}
	if facts.Accelerator == vmm.KVM {
		l.Group = accel.KVMGroup()
	}
	if t.proc, err = l.Start(e.Reaper.BootID); err != nil {
		return err
	}
	if t.group != nil {
		return t.group.Add(t.proc.PID)
	}
	return nil
}

// open opens what the process gets. The guest it becomes has no identity: its
// initramfs is the base one.
func (t *template) open(files *vmm.Files, s *vmm.Spec, kernel, initrd string) error {
	open := func(to *int, path string, flags int) error {
		f, err := os.OpenFile(path, flags, 0)
		if err == nil {
			*to = files.Add(f)
		}
		return err
	}
	errs := []error{
		open(&s.Kernel, kernel, os.O_RDONLY), open(&s.Initrd, initrd, os.O_RDONLY), open(&s.Console, os.DevNull, os.O_WRONLY),
		open(&s.Memory, fmt.Sprintf("/proc/self/fd/%d", t.memory.Fd()), os.O_RDWR),
	}
	control, err := vmm.Listen(t.a.Dir, fileTemplateQMP)
	if err == nil {
		s.QMP = files.Add(control)
	}
	errs = append(errs, err)
	s.Netdev = "user,id=n0,ipv6=off,restrict=on"
	if t.e.Slots {
		tap, err := network.SpareTap()
		if err == nil {
			s.Netdev = fmt.Sprintf("tap,id=n0,fd=%d", files.Add(tap))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ServiceDisks are those of a machine's services, which cannot be written. A
// template has the same as its machine.
func (e *Engine) ServiceDisks(files *vmm.Files, vm driver.VM) ([]string, error) {
	disks, err := svcdisk.Attach(e.Images, vm.Dir, vm.ServiceImages)
	var fds []int
	for _, f := range disks {
		fds = append(fds, files.Add(f))
	}
	return svcdisk.Args(fds), err
}

// finish writes the state of the devices and ends the process; the memory is
// sealed then, unless it is to be written on.
func (t *template) finish(ctx context.Context, seal bool) (devices sparse.Content, err error) {
	if err := live.AwaitStatus(ctx, t.qmp, "paused"); err != nil {
		return devices, err
	}
	f, err := os.OpenFile(filepath.Join(t.a.Dir, manifest.Devices), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return devices, err
	}
	defer f.Close()
	if err := live.WriteDevices(ctx, t.qmp, f); err != nil {
		return devices, fmt.Errorf("write the state of the devices: %w", err)
	}
	if err := t.end(ctx); err != nil {
		return devices, err
	}
	if devices, err = sparse.Read(ctx, f, nil); err != nil {
		return devices, err
	}
	if err := f.Sync(); err != nil {
		return devices, err
	}
	t.e.Checker.Note(f, devices.Digest)
	if seal {
		err = memory.Seal(ctx, t.memory)
	}
	return devices, err
}

// end ends the process.
func (t *template) end(ctx context.Context) error {
	var errs []error
	if t.qmp != nil {
		errs = append(errs, t.qmp.Close())
		t.qmp = nil
	}
	if t.proc != nil {
		errs = append(errs, t.proc.End(ctx), t.proc.Close())
		t.proc = nil
	}
	if t.group != nil {
		errs = append(errs, t.group.Remove(ctx))
		t.group = nil
	}
	for _, name := range []string{fileTemplateQMP, fileTemplateLog} {
		errs = append(errs, remove(filepath.Join(t.a.Dir, name)))
	}
	return errors.Join(errs...)
}

const endTimeout = 10 * time.Second

// close ends the process, if it runs, and lets go of the memory.
func (t *template) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	err := t.end(ctx)
	if t.memory != nil {
		err = errors.Join(err, t.memory.Close())
		t.memory = nil
	}
	return err
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
