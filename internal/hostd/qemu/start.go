package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/guestmem"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/proc"
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
	version string // of QEMU
	img     image.Image
	kernel  image.Kernel
	nic     nic
	group   *cgroup.Group
	proc    *proc.Process
	files   map[int]*os.File // for QEMU, by descriptor
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
	b := &boot{d: d, vm: vm, id: id, files: map[int]*os.File{}}
	err := b.run(ctx, step)
	b.closeFiles()
	if err == nil {
		return b.inst, nil
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
	return nil, err
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

func (b *boot) run(ctx context.Context, step func(string)) error {
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{stepImage, b.findImage},
		{stepNetwork, b.makeNetwork},
		{stepDisk, b.makeDisk},
		{stepIdentity, b.makeIdentity},
		{stepProcess, b.startProcess},
		{stepGuest, b.awaitGuest},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if step != nil {
			step(s.name)
		}
		err := s.do(ctx)
		if err == nil {
			err = failpoint.Hit("qemu.start." + s.name)
		}
		if err != nil {
			return b.explain(s.name, err)
		}
	}
	return nil
}

// explain gives an error its step, and one of the host's disk its remedy.
func (b *boot) explain(step string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fleet.Errorf(fleet.CodeUnavailable, "%w: the host's disk is full", fleet.ErrNoCapacity).
			With(fleet.DetailStep, step).
			With(fleet.DetailScope, "disk").
			With(fleet.DetailUsage, err.Error()).
			With(fleet.DetailRemedy, "free space below "+b.d.cfg.Dir+", or destroy environments")
	}
	var fe *fleet.Error
	if errors.As(err, &fe) {
		if fe.Details[fleet.DetailStep] == "" {
			return fe.With(fleet.DetailStep, step)
		}
		return err
	}
	return fmt.Errorf("%s: %w", step, err)
}

func (b *boot) closeFiles() {
	for _, f := range b.files {
		_ = f.Close() // closing them twice does no harm
	}
	if b.nic.tap != nil {
		_ = b.nic.tap.Close()
	}
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
	if b.program, err = b.d.prober.program(); err != nil {
		return err
	}
	if b.kernel, err = b.d.cfg.Images.Kernel(ctx, nil); err != nil {
		return err
	}
	p, err := b.d.prober.accelerator(ctx)
	if err != nil {
		return err
	}
	b.accel, b.version = p.Accel, p.Version
	return b.d.checkRoom()
}

// checkRoom refuses a start that would leave the host's disk too full. Disks
// are made as their guests write, so there is no other limit.
func (d *Driver) checkRoom() error {
	free, total, err := disk.Free(d.cfg.Dir)
	if err != nil {
		return err
	}
	if free >= d.cfg.MinFree {
		return nil
	}
	const mib = 1 << 20
	return fleet.Errorf(fleet.CodeUnavailable, "%w: the host's disk is nearly full", fleet.ErrNoCapacity).
		With(fleet.DetailScope, "disk").
		With(fleet.DetailLimit, fmt.Sprintf("%d MiB must stay free", d.cfg.MinFree/mib)).
		With(fleet.DetailUsage, fmt.Sprintf("%d MiB of %d MiB are free", free/mib, total/mib)).
		With(fleet.DetailRemedy, "free space below "+d.cfg.Dir+", or destroy environments")
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
	root, err := os.Open(base)
	if err != nil {
		return err
	}
	b.files[fdRoot] = root
	b.files[fdDisk], err = disk.CreateOverlay(filepath.Join(b.vm.Dir, fileDisk), base, int64(b.vm.StorageGB)<<30)
	return err
}

func (b *boot) makeIdentity(context.Context) error {
	err := writeRecord(b.vm.Dir, fileGuest, guestRecord{
		UID: b.vm.UID, Token: b.id.Token, Port: b.nic.port, Digest: b.img.Digest,
	})
	if err != nil {
		return err
	}
	b.files[fdInitrd], err = makeInitrd(b.vm.Dir, b.kernel.Initrd, b.user(), bootConfig(b.vm, b.id, b.img, b.nic))
	return err
}

// user is the VM's own user id, or -1 where this program cannot change it.
func (b *boot) user() int {
	if !b.d.root {
		return -1
	}
	return b.d.uid(b.vm.Slot)
}

// startProcess starts QEMU, limits it and records which process it is before
// anything depends on it.
func (b *boot) startProcess(ctx context.Context) error {
	if err := b.openFiles(); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(b.vm.Dir, fileLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := b.limit(); err != nil {
		return err
	}
	l := launch{
		program: b.program, log: log, uid: b.user(), group: -1, netns: b.nic.tap != nil,
		args: commandLine(b.d.machine, b.accel, b.d.reaper.prefix+b.vm.UID, b.vm, b.nic.netdev),
	}
	if b.accel == accelKVM {
		l.group = kvmGroup()
	}
	for fd := fdDisk; fd <= fdInitrd; fd++ {
		l.files = append(l.files, b.files[fd])
	}
	if b.nic.tap != nil {
		l.files = append(l.files, b.nic.tap)
	}
	b.proc, err = l.start(b.d.bootID)
	b.closeFiles() // so that a connection to a QEMU that dies ends with it
	if err != nil {
		if errors.Is(err, unix.EACCES) && l.uid >= 0 {
			return fleet.Errorf(fleet.CodeUnavailable, "the VM's own user (%d) may not run %s: %w", l.uid, l.program, err).
				With(fleet.DetailRemedy, "put QEMU where every user may read and execute it")
		}
		return err
	}
	if b.group != nil {
		if err := b.group.Add(b.proc.PID); err != nil && b.proc.Start != 0 {
			return err
		}
	}
	if err := failpoint.Hit("qemu.start.spawned"); err != nil {
		return err
	}
	err = writeRecord(b.vm.Dir, fileProcess, processRecord{
		UID: b.vm.UID, Ident: b.proc.Ident, QEMU: b.version, Accel: b.accel,
		Kernel: b.kernel.Version, Started: time.Now().UTC(),
	})
	if err != nil {
		return err
	}
	return b.connect(ctx)
}

func (b *boot) openFiles() error {
	var err error
	if b.files[fdConsole], err = os.OpenFile(filepath.Join(b.vm.Dir, fileConsole), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return err
	}
	if b.files[fdKernel], err = os.Open(b.kernel.Path); err != nil {
		return err
	}
	b.files[fdQMP], err = listenQMP(b.vm.Dir)
	return err
}

// limit makes the VM's cgroup, where the host has any.
func (b *boot) limit() error {
	if !b.d.cgroups.Works() {
		return nil
	}
	var err error
	b.group, err = b.d.cgroups.Create(b.vm.UID, cgroup.Limits{
		MemoryBytes: int64(b.vm.RamMB+overheadMB(b.accel)+overheadSlack) << 20,
		CPUs:        float64(b.vm.CPUs) + deviceCPUShare,
		Weight:      100 * b.vm.CPUs,
		Pids:        threadsPerVM + b.vm.CPUs,
	})
	return err
}

// connect opens QEMU's control channel; that QEMU greets there says that it
// has taken every argument and read kernel and initramfs.
func (b *boot) connect(ctx context.Context) error {
	inst, err := b.d.attach(ctx, b.vm, b.proc, guestRecord{UID: b.vm.UID, Token: b.id.Token, Digest: b.img.Digest}, b.nic.dial)
	if err != nil {
		if how, text := b.postMortem(); how != "" {
			if err := guestmem.Refused(text, b.vm.RamMB, b.vm.HugePages); err != nil {
				return err
			}
			return fleet.Errorf(fleet.CodeUnavailable, "QEMU ended at boot (%s): %s", how, text).
				With(fleet.DetailRemedy, "the message is QEMU's own; see that "+b.program+" --version works on this host")
		}
		return err
	}
	b.inst, b.proc = inst, nil
	// The secrets in it need not stay on the disk; QEMU keeps its mapping.
	return os.Remove(filepath.Join(b.vm.Dir, fileInitrd))
}

// postMortem says how QEMU ended, if it has.
func (b *boot) postMortem() (how, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
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

// silent is the error of a guest that never answered.
func (b *boot) silent(last error) error {
	said := console.Tail(filepath.Join(b.vm.Dir, fileConsole))
	if said == "" {
		said = "nothing"
	}
	return fleet.Errorf(fleet.CodeDeadlineExceeded, "the guest did not answer within %s (%w); its console ends with: %s",
		b.d.cfg.BootTimeout, errors.Join(errBootTimeout, last), said).
		With(fleet.DetailLimit, b.d.cfg.BootTimeout.String()).
		With(fleet.DetailRemedy, "boot fewer VMs at once; if it happens with a single one, look at the console above")
}
