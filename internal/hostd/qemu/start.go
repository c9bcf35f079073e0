package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/bounds"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/guestmem"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/svcdisk"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/accel"
	"github.com/fusevm/fuse/internal/hostd/vmm/initrd"
	"github.com/fusevm/fuse/internal/hostd/vmm/nic"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// Steps of a start, in order.
const (
	stepImage    = "image"
	stepNetwork  = "network"
	stepDisk     = "disk"
	stepIdentity = "identity"
	stepProcess  = "process"
	stepGuest    = "guest"
)

// undoTimeout bounds the undoing of a start that failed.
const undoTimeout = 30 * time.Second

// boot is one start under way.
type boot struct {
	d  *Driver
	vm driver.VM
	id driver.Identity

	program string
	accel   string
	img     image.Image
	extra   svcdisk.Set // images of services
	kernel  image.Kernel
	nic     nic.NIC
	initrd  *os.File
	memory  *os.File // of a capture; nil: the guest boots
	shared  bool     // nobody else uses that memory
	rec     processRecord
	group   *cgroup.Group
	proc    *proc.Process
	inst    *instance
}

// Start makes and boots a VM and returns when its guest answers. On error
// everything made is undone.
func (d *Driver) Start(ctx context.Context, vm driver.VM, id driver.Identity, step func(name string)) (driver.Instance, error) {
	if err := checkShape(vm); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(vm.Dir, fileProcess)); err == nil {
		return nil, fleet.Errorf(fleet.CodeConflict, "life %s of %s was started before", vm.UID, vm.ID)
	}
	b := &boot{d: d, vm: vm, id: id}
	if err := b.start(ctx, step, b.coldSteps()); err != nil {
		return nil, err
	}
	return b.inst, nil
}

// start runs steps and undoes everything if one fails.
func (b *boot) start(ctx context.Context, step func(string), steps []vmm.Step) error {
	d, vm := b.d, b.vm
	err := b.run(ctx, step, steps)
	b.closeFiles()
	if err == nil {
		return nil
	}
	if b.inst != nil {
		err = errors.Join(err, b.inst.Close())
	} else if b.proc != nil {
		_ = b.proc.Close()
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if uerr := d.Remove(undo, vm); uerr != nil {
		err = errors.Join(err, fmt.Errorf("undo the start: %w", uerr))
	}
	return err
}

func checkShape(vm driver.VM) error {
	for _, f := range []struct {
		name            string
		value, min, max int
	}{{"cpus", vm.CPUs, 1, 255}, {"ram_mb", vm.RamMB, 128, 1 << 24}, {"storage_gb", vm.StorageGB, 1, disk.MaxSize >> 30}} {
		if f.value < f.min || f.value > f.max {
			return fleet.Errorf(fleet.CodeInvalidArgument, "%s is %d", f.name, f.value).
				With(fleet.DetailLimit, fmt.Sprintf("%d to %d", f.min, f.max))
		}
	}
	return nil
}

func (b *boot) coldSteps() []vmm.Step {
	return []vmm.Step{
		{Name: stepImage, Do: b.findImage},
		{Name: stepNetwork, Do: b.makeNetwork},
		{Name: stepDisk, Do: b.makeDisk},
		{Name: stepIdentity, Do: b.makeIdentity},
		{Name: stepProcess, Do: b.startProcess},
		{Name: stepGuest, Do: b.awaitGuest},
	}
}

func (b *boot) run(ctx context.Context, step func(string), steps []vmm.Step) error {
	return vmm.Steps(ctx, "qemu.start.", b.d.cfg.Dir, step, steps)
}

// findImage resolves all that is shared between VMs, and refuses what cannot
// work, before anything is made.
func (b *boot) findImage(ctx context.Context) error {
	var err error
	if b.img, err = b.d.cfg.Images.Get(b.vm.Image); err != nil {
		return err
	}
	if room := int64(b.vm.StorageGB) << 30; b.img.Size > room {
		return fleet.Errorf(fleet.CodeInvalidArgument, "image %s does not fit into a disk of %d GiB", b.vm.Image, b.vm.StorageGB).
			With(fleet.DetailScope, "spec.storage_gb").
			With(fleet.DetailLimit, fmt.Sprintf("%d or more", (b.img.Size+1<<30-1)>>30)).
			With(fleet.DetailRemedy, "ask for a larger disk with spec.storage_gb")
	}
	if b.vm.Digest != "" && b.vm.Digest != b.img.Digest {
		b.img.Digest = b.vm.Digest
		if b.img.Path, err = b.d.cfg.Images.At(b.vm.Image, b.vm.Digest); err != nil {
			return err
		}
	}
	if b.extra, err = svcdisk.Find(b.d.cfg.Images, b.vm.ServiceImages); err != nil {
		return err
	}
	return b.findMachine(ctx)
}

// findMachine finds what runs the VM.
func (b *boot) findMachine(ctx context.Context) error {
	var err error
	if b.program, err = b.d.prober.Program(); err != nil {
		return err
	}
	if b.kernel, err = b.d.cfg.Images.Kernel(ctx, nil); err != nil {
		return err
	}
	facts, err := b.d.machineFacts(ctx, b.vm)
	if err != nil {
		return err
	}
	b.accel = facts.Accelerator
	b.rec = processRecord{UID: b.vm.UID, QEMU: facts.DriverVersion, Accel: b.accel, Kernel: b.kernel.Version, Machine: facts}
	return disk.CheckRoom(b.d.cfg.Dir, b.d.cfg.MinFree)
}

func (b *boot) makeNetwork(ctx context.Context) error {
	var err error
	b.nic, err = b.d.makeNIC(ctx, b.vm)
	return err
}

func (b *boot) makeDisk(context.Context) error {
	base := filepath.Join(b.vm.Dir, fileBase)
	if err := b.d.cfg.Images.Hold(b.img, base); err != nil {
		return fmt.Errorf("hold the image: %w", err)
	}
	f, err := disk.CreateOverlay(filepath.Join(b.vm.Dir, chain.File(0)), base, int64(b.vm.StorageGB)<<30)
	if err != nil {
		return err
	}
	return f.Close()
}

func (b *boot) makeIdentity(context.Context) error {
	c := initrd.Config(b.vm, b.id, initrd.ImageOf(b.img), b.nic.Guest)
	c.Services = b.extra.Boot()
	return b.introduce(c)
}

// introduce writes down how the guest is reached and what it boots with.
func (b *boot) introduce(c guestwire.BootConfig) error {
	err := record.Write(b.vm.Dir, fileGuest, guestRecord{UID: b.vm.UID, Token: b.id.Token, Port: b.nic.Port, Digest: b.img.Digest})
	if err != nil {
		return err
	}
	if err := record.Write(b.vm.Dir, fileBoot, c); err != nil {
		return err
	}
	b.initrd, err = initrd.Make(b.vm.Dir, b.kernel.Initrd, b.user(), c)
	return err
}

// user is the VM's own user id, or -1 where this program cannot change it.
func (b *boot) user() int {
	return b.d.user(b.vm.Slot)
}

// startProcess starts QEMU, limits it and records which process it is before
// anything depends on it.
func (b *boot) startProcess(ctx context.Context) error {
	if err := b.limit(1); err != nil {
		return err
	}
	if err := b.spawn(); err != nil {
		return err
	}
	if err := failpoint.Hit("qemu.start.spawned"); err != nil {
		return err
	}
	if err := record.Write(b.vm.Dir, fileProcess, b.rec); err != nil {
		return err
	}
	return b.connect(ctx)
}

// spawn starts QEMU within the VM's limits and fills in the record of it.
func (b *boot) spawn() error {
	log, err := os.OpenFile(filepath.Join(b.vm.Dir, fileLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	var files vmm.Files
	defer files.Close()
	spec, err := b.spec(&files)
	if err != nil {
		return err
	}
	l := vmm.Launch{
		Program: b.program, Log: log, UID: b.user(), Group: -1, Netns: b.nic.Tap != nil,
		Args: b.d.machine.Args(spec), Files: files.List(),
	}
	if b.accel == vmm.KVM {
		l.Group = accel.KVMGroup()
	}
	b.proc, err = l.Start(b.d.bootID)
	files.Close() // so that a connection to a QEMU that dies ends with it
	b.initrd, b.nic.Tap, b.memory = nil, nil, nil
	if err != nil {
		if errors.Is(err, unix.EACCES) && l.UID >= 0 {
			return fleet.Errorf(fleet.CodeUnavailable, "the VM's own user (%d) may not run %s: %w", l.UID, l.Program, err).
				With(fleet.DetailRemedy, "put QEMU where every user may read and execute it")
		}
		return err
	}
	if b.group != nil {
		if err := b.group.Add(b.proc.PID); err != nil && b.proc.Start != 0 {
			return err
		}
	}
	b.rec.Ident, b.rec.Started, b.rec.Port = b.proc.Ident, time.Now().UTC(), b.nic.Port
	return nil
}

// spec opens everything that QEMU gets; files owns it.
func (b *boot) spec(files *vmm.Files) (vmm.Spec, error) {
	s := vmm.Spec{Accel: b.accel, Name: b.d.reaper.Prefix + b.vm.UID, VM: b.vm, Incarnation: vmm.NewIncarnation(), Netdev: b.nic.Netdev, Shared: b.shared}
	add := func(to *int, f *os.File, err error) error {
		if err == nil {
			*to = files.Add(f)
		}
		return err
	}
	open := func(to *int, path string, flags int) error {
		f, err := os.OpenFile(path, flags, 0o600)
		return add(to, f, err)
	}
	in := func(name string) string { return filepath.Join(b.vm.Dir, name) }
	if b.initrd != nil {
		s.Initrd = files.Add(b.initrd)
	}
	if b.nic.Tap != nil {
		b.rec.Tap = files.Add(b.nic.Tap)
		s.Netdev += strconv.Itoa(b.rec.Tap)
	}
	if b.memory != nil {
		s.Memory, s.Incoming = files.Add(b.memory), true
	}
	errs := []error{
		open(&s.Root, in(fileBase), os.O_RDONLY),
		open(&s.Console, in(fileConsole), os.O_WRONLY|os.O_CREATE|os.O_APPEND),
		open(&s.Kernel, b.kernel.Path, os.O_RDONLY),
	}
	var err error
	s.Extra, err = b.d.ServiceDisks(files, b.vm)
	errs = append(errs, err)
	qmp, err := vmm.Listen(b.vm.Dir, b.rec.socket())
	errs = append(errs, add(&s.QMP, qmp, err))
	for _, n := range b.rec.Disk.Numbers() {
		l := vmm.Layer{Number: n}
		if n == b.rec.Disk.Active {
			errs = append(errs, open(&l.FD, in(chain.File(n)), os.O_RDWR), open(&l.ReadOnly, in(chain.File(n)), os.O_RDONLY))
		} else {
			errs = append(errs, open(&l.FD, in(chain.File(n)), os.O_RDONLY))
		}
		s.Layers = append(s.Layers, l)
	}
	return s, errors.Join(errs...)
}

// closeFiles closes what no process has been given.
func (b *boot) closeFiles() {
	for _, f := range []*os.File{b.initrd, b.nic.Tap, b.memory} {
		if f != nil {
			_ = f.Close()
		}
	}
	b.initrd, b.nic.Tap, b.memory = nil, nil, nil
}

// limit makes the VM's cgroup, where the host has any, for so many processes
// at a time.
func (b *boot) limit(processes int) error {
	if !b.d.cgroups.Works() {
		return nil
	}
	l, err := bounds.Of(b.vm)
	if err != nil {
		return err
	}
	cpus, weight := bounds.CPU(b.vm, l, vmm.DeviceCPUShare)
	b.group, err = b.d.cgroups.Create(b.vm.UID, cgroup.Limits{
		MemoryBytes: int64(processes) * int64(b.vm.RamMB+vmm.OverheadMB(b.accel)+vmm.OverheadSlack) << 20,
		CPUs:        cpus,
		Weight:      weight,
		Pids:        processes * (vmm.ThreadsPerVM + b.vm.CPUs),
	})
	return err
}

// connect opens QEMU's control channel; that QEMU greets there says that it
// has taken every argument and read kernel and initramfs.
func (b *boot) connect(ctx context.Context) error {
	inst, err := b.d.attach(ctx, b.vm, b.proc, b.rec.socket(), guestRecord{UID: b.vm.UID, Token: b.id.Token, Digest: b.img.Digest}, b.nic.Dial)
	if err != nil {
		if how, text := b.postMortem(ctx); how != "" {
			if err := guestmem.Refused(text, b.vm.RamMB, b.vm.HugePages); err != nil {
				return err
			}
			return fleet.Errorf(fleet.CodeUnavailable, "QEMU ended at boot (%s): %s", how, text).
				With(fleet.DetailRemedy, "the message is QEMU's own; see that "+b.program+" --version works on this host")
		}
		return err
	}
	b.inst, b.proc = inst, nil
	if err := inst.Machine.Start(ctx); err != nil {
		return err
	}
	// The secrets in it need not stay on the disk; QEMU keeps its mapping.
	return os.Remove(filepath.Join(b.vm.Dir, fileInitrd))
}

// postMortem says how QEMU ended, if it has: its channel ends a while before it.
func (b *boot) postMortem(ctx context.Context) (how, text string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if b.proc.Wait(ctx) != nil {
		return "", ""
	}
	how, _ = b.proc.Reap()
	if text = console.Tail(filepath.Join(b.vm.Dir, fileLog)); text == "" {
		text = "it printed nothing"
	}
	return how, text
}

// awaitGuest polls until the guest agent is ready.
func (b *boot) awaitGuest(ctx context.Context) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, b.d.cfg.BootTimeout, errBootTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		info, err := b.inst.guest.Info(ctx)
		if err == nil && info.Ready {
			b.d.log.Debug("guest answers", "vm_id", b.vm.ID, "uid", b.vm.UID, "took", time.Since(begun))
			b.giveBack()
			return nil
		}
		last = err
		select {
		case <-tick.C:
		case <-b.inst.Done():
			e := b.inst.Exit()
			return fleet.Errorf(fleet.CodeUnavailable, "the guest ended while booting (%s): %s", e.Cause, e.Detail)
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errBootTimeout) {
				return ctx.Err()
			}
			return b.silent(last)
		}
	}
}

// giveBack returns the memory of kernel and initramfs, which the guest has
// copied and QEMU keeps mapped for a reboot.
func (b *boot) giveBack() {
	initrd := filepath.Join(b.vm.Dir, fileInitrd)
	err := b.inst.proc.PageOut(func(path string) bool { return path == b.kernel.Path || path == initrd })
	if err != nil {
		b.d.log.Debug("memory of the kernel not given back", "vm_id", b.vm.ID, "uid", b.vm.UID, "error", err)
	}
}

var errBootTimeout = errors.New("the guest did not answer in time")

// unanswered says errBootTimeout once, and what was heard last if that says more.
func unanswered(within time.Duration, last error) error {
	if last == nil || errors.Is(last, errBootTimeout) {
		return fmt.Errorf("%w, which is %s", errBootTimeout, within)
	}
	return fmt.Errorf("%w, which is %s (%w)", errBootTimeout, within, last)
}

// silent is the error of a guest that never answered.
func (b *boot) silent(last error) error {
	said := cmp.Or(console.Tail(filepath.Join(b.vm.Dir, fileConsole)), "nothing")
	return fleet.Errorf(fleet.CodeDeadlineExceeded, "%w; its console ends with: %s", unanswered(b.d.cfg.BootTimeout, last), said).
		With(fleet.DetailLimit, b.d.cfg.BootTimeout.String()).
		With(fleet.DetailRemedy, "boot fewer VMs at once; if it happens with a single one, look at the console above")
}
