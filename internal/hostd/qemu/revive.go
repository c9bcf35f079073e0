package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/live"
	"github.com/fusevm/fuse/internal/hostd/capture/manifest"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/initrd"
	"github.com/fusevm/fuse/internal/hostd/vmm/nic"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// Steps of a start from a capture, beside those of any.
const (
	stepSeed   = "seed"
	stepResume = "resume"
)

// revival is a start from a capture.
type revival struct {
	boot
	from driver.Artifact
	m    manifest.Manifest
	took time.Duration // from the process's start until the machine ran
}

// Fork implements driver.Snapshotter.
func (c *captures) Fork(ctx context.Context, vm driver.VM, id driver.Identity, from driver.Artifact, step func(string)) (driver.Revived, error) {
	d := c.d
	if err := checkShape(vm); err != nil {
		return driver.Revived{}, err
	}
	if _, err := os.Stat(filepath.Join(vm.Dir, fileProcess)); err == nil {
		return driver.Revived{}, fleet.Errorf(fleet.CodeConflict, "life %s of %s was started before", vm.UID, vm.ID)
	}
	r := &revival{boot: boot{d: d, vm: vm, id: id}, from: from}
	err := r.start(ctx, step, []vmm.Step{
		{Name: stepSeed, Do: r.findSeed}, {Name: stepNetwork, Do: r.makeNetwork}, {Name: stepDisk, Do: r.seedDisk},
		{Name: stepIdentity, Do: r.seedIdentity}, {Name: stepProcess, Do: r.startProcess}, {Name: stepResume, Do: r.goOn},
	})
	if err != nil {
		return driver.Revived{}, err
	}
	return r.revived(), nil
}

func (r *revival) revived() driver.Revived {
	return driver.Revived{
		Instance: r.inst, Live: r.m.Live(), ThawKey: r.m.ThawKey, Resumed: r.took,
		Guest: driver.Renewable{
			Hostname: r.id.Hostname, MachineID: r.id.MachineID, Token: r.id.Token, CertPEM: r.id.CertPEM, KeyPEM: r.id.KeyPEM,
			Address: r.nic.Guest.Address, Nameservers: r.nic.Guest.Nameservers, SSHKeys: r.m.SSHKeys,
		},
	}
}

// findSeed refuses what cannot be gone on from, by name, before anything is
// made.
func (r *revival) findSeed(ctx context.Context) error {
	var err error
	if r.m, err = manifest.Read(r.from); err != nil {
		return err
	}
	if err := r.findMachine(ctx); err != nil {
		return err
	}
	if r.extra, err = r.m.ServiceSet(r.d.cfg.Images, r.vm.ServiceImages); err != nil {
		return err
	}
	if err := r.fits(); err != nil {
		return err
	}
	r.img.Digest = r.m.ImageDigest
	if err := r.d.Checker.Verify(ctx, r.from, r.m, false); err != nil || !r.m.Live() {
		return err
	}
	if r.shared { // by nobody else: its own copy, to write on
		r.memory, err = r.d.LoadMemory(ctx, r.from, r.m)
	} else {
		r.memory, err = r.d.MemoryOf(ctx, r.from, r.m)
	}
	return err
}

// fits compares the capture with the VM and with this host.
func (r *revival) fits() error {
	m, vm := r.m, r.vm
	if int64(vm.StorageGB)<<30 < m.DiskSize {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the disk of %d GiB is smaller than the snapshot's", vm.StorageGB).
			With(fleet.DetailScope, "spec.storage_gb").
			With(fleet.DetailLimit, fmt.Sprintf("%d or more", (m.DiskSize+1<<30-1)>>30))
	}
	if !m.Live() {
		if m.Machine.Arch != r.rec.Machine.Arch {
			return &driver.IncompatibleError{Differences: []string{fmt.Sprintf("architecture is %q here and %q in the snapshot", r.rec.Machine.Arch, m.Machine.Arch)}}
		}
		return nil
	}
	if vm.CPUs != m.Source.CPUs || vm.RamMB != m.Source.RamMB || vm.HugePages != m.Source.HugePages {
		return fleet.Errorf(fleet.CodeInvalidArgument, "a machine that goes on from memory has the shape of its snapshot").
			With(fleet.DetailLimit, fmt.Sprintf("cpus %d, ram_mb %d", m.Source.CPUs, m.Source.RamMB)).
			With(fleet.DetailUsage, fmt.Sprintf("cpus %d, ram_mb %d", vm.CPUs, vm.RamMB))
	}
	if diff := driver.Differences(m.Machine, r.rec.Machine); len(diff) > 0 {
		return &driver.IncompatibleError{Differences: diff}
	}
	return nil
}

// seedDisk makes the VM's disk on the capture's layers.
func (r *revival) seedDisk(context.Context) error {
	if err := os.Link(filepath.Join(r.from.Dir, manifest.Base), filepath.Join(r.vm.Dir, fileBase)); err != nil {
		return fmt.Errorf("hold the image: %w", err)
	}
	if err := r.m.LinkServices(r.from.Dir, r.vm.Dir, r.vm.ServiceImages); err != nil {
		return err
	}
	return r.overlay(chain.Chain{Layers: r.m.Disk}.Next())
}

// overlay lets the VM write on the capture's layers.
func (r *revival) overlay(number int) error {
	if err := chain.Link(r.m.Disk, r.from.Dir, r.vm.Dir); err != nil {
		return err
	}
	r.rec.Disk = chain.Chain{Layers: r.m.Disk, Active: number}
	size := r.m.DiskSize
	if !r.m.Live() {
		size = int64(r.vm.StorageGB) << 30
	}
	below := filepath.Join(r.vm.Dir, chain.File(r.m.Disk[len(r.m.Disk)-1].Number))
	f, err := disk.CreateOn(filepath.Join(r.vm.Dir, chain.File(number)), below, disk.Qcow2, size)
	if err != nil {
		return err
	}
	return f.Close()
}

func (r *revival) seedIdentity(context.Context) error {
	return r.introduce(r.config())
}

// config is what the guest boots with, now or later.
func (r *revival) config() guestwire.BootConfig {
	c := initrd.Config(r.vm, r.id, r.m.Image, r.nic.Guest)
	c.Services = r.extra.Boot()
	return c
}

// goOn lets the machine run: from where the capture was, or from its boot on.
func (r *revival) goOn(ctx context.Context) error {
	if !r.m.Live() {
		err := r.awaitGuest(ctx)
		r.took = time.Since(r.rec.Started)
		return err
	}
	f, err := os.Open(filepath.Join(r.from.Dir, manifest.Devices))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := live.Resume(ctx, r.inst.qmp, f); err != nil {
		if r.inst.alive.Err() != nil {
			<-r.inst.Done()
			err = errors.Join(err, errors.New(r.inst.Exit().Detail))
		}
		return fmt.Errorf("resume the machine: %w", err)
	}
	r.took = time.Since(r.rec.Started)
	r.giveBack()
	if size := int64(r.vm.StorageGB) << 30; size > r.m.DiskSize {
		return live.Grow(ctx, r.inst.qmp, r.rec.Disk.Active, size)
	}
	return nil
}

// Restore implements driver.Snapshotter. The earlier machine only stands still
// until the new one is kept.
func (c *captures) Restore(ctx context.Context, vm driver.VM, from driver.Artifact, step func(string)) (driver.Revived, error) {
	d := c.d
	unlock, err := c.lock.Take(ctx, vm.UID)
	if err != nil {
		return driver.Revived{}, err
	}
	defer unlock()
	old := d.holder(vm.UID)
	if old == nil || old.alive.Err() != nil {
		return driver.Revived{}, fleet.Errorf(fleet.CodeConflict, "%w: it cannot be restored", fleet.ErrVMNotRunning)
	}
	was, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil {
		return driver.Revived{}, err
	}
	if was.Disk.Pending != 0 {
		if was, err = settledDisk(ctx, old, was); err != nil {
			return driver.Revived{}, err
		}
	}
	r := &revival{boot: boot{d: d, vm: vm}, from: from}
	if r.id, err = c.identityOf(vm); err != nil {
		return driver.Revived{}, err
	}
	undo := func(ctx context.Context) error {
		return errors.Join(r.drop(ctx, was), c.runAgain(ctx, old, was))
	}
	err = r.run(ctx, step, []vmm.Step{
		{Name: stepSeed, Do: r.findSeed},
		{Name: stepDisk, Do: func(context.Context) error {
			return r.overlay(max(was.Disk.Next(), chain.Chain{Layers: r.m.Disk}.Next()))
		}},
		{Name: stepNetwork, Do: func(context.Context) error { return r.shareNIC(old, was) }},
		{Name: "stop", Do: func(ctx context.Context) error { old.hangUp(); return old.qmp.Execute(ctx, "stop", nil, nil) }},
		{Name: stepProcess, Do: r.replaceProcess}, {Name: stepResume, Do: r.goOn},
	})
	r.closeFiles()
	if err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if uerr := undo(end); uerr != nil {
			err = errors.Join(err, driver.ErrUnsure, fmt.Errorf("undo the restore: %w", uerr))
		}
		return driver.Revived{}, err
	}
	out := r.revived()
	out.Before, out.Undo = old, undo
	out.Keep = func(ctx context.Context) error { return r.keep(ctx, old) }
	return out, nil
}

// runAgain lets an earlier machine go on.
func (c *captures) runAgain(ctx context.Context, old *instance, was processRecord) error {
	d := c.d
	d.keep(old)
	d.tender.Add(old.vm.Dir)
	b := boot{d: d, vm: old.vm, accel: was.Accel}
	mended := nic.Mend(old.proc, was.Tap)
	_, err := live.Recover(ctx, old.qmp, freeing(old))
	return errors.Join(mended, err, b.limit(1))
}

// shareNIC gives the new process the tap of the old one.
func (r *revival) shareNIC(old *instance, was processRecord) error {
	if r.d.slots == nil {
		var err error
		r.nic, err = nic.User()
		return err
	}
	tap, err := old.proc.File(was.Tap)
	if err != nil {
		return fmt.Errorf("share the machine's tap: %w", err)
	}
	return r.slotNIC(tap)
}

// replaceProcess starts the process in the place of another, without a record:
// until it is kept it never was.
func (r *revival) replaceProcess(ctx context.Context) error {
	if err := r.limit(2); err != nil {
		return err
	}
	r.rec.Socket = fmt.Sprintf("qmp-%d.sock", r.rec.Disk.Active)
	var err error
	if r.initrd, err = initrd.Make(r.vm.Dir, r.kernel.Initrd, r.user(), r.config()); err != nil {
		return err
	}
	if err := r.spawn(); err != nil {
		return err
	}
	if err := failpoint.Hit("qemu.revive.spawned"); err != nil {
		return err
	}
	return r.connect(ctx)
}

// drop ends the new process and what it had.
func (r *revival) drop(ctx context.Context, was processRecord) error {
	var errs []error
	if r.inst != nil {
		r.inst.remove()
		errs = append(errs, r.inst.Close())
	} else if r.proc != nil {
		errs = append(errs, r.proc.Close())
	}
	pid := was.PID
	if was.Paused {
		pid = 0
	}
	return errors.Join(append(errs, r.d.reaper.EndOthers(ctx, r.vm.UID, pid), tidy(r.vm, was), remove(filepath.Join(r.vm.Dir, fileInitrd)))...)
}

// keep makes the new machine the one that counts.
func (r *revival) keep(ctx context.Context, old *instance) error {
	guest, err := record.Read[guestRecord](r.vm.Dir, fileGuest)
	if err != nil {
		return err
	}
	if guest.Digest != r.m.ImageDigest {
		guest.Digest = r.m.ImageDigest
		if err := record.Write(r.vm.Dir, fileGuest, guest); err != nil {
			return err
		}
	}
	if err := record.Change(r.vm.Dir, fileProcess, func(rec *processRecord) { *rec = r.rec }); err != nil {
		return err
	}
	// From here on it counts, whatever fails; adoption ends the rest.
	if old != nil {
		err = old.Close()
		r.d.keep(r.inst)
		r.d.tender.Add(r.vm.Dir)
	}
	err = errors.Join(err, failpoint.Hit("qemu.revive.kept"), r.d.reaper.EndOthers(ctx, r.vm.UID, r.rec.PID), tidy(r.vm, r.rec), r.limit(1))
	if err != nil {
		r.d.log.Error("remains of the machine before not cleared", "vm_id", r.vm.ID, "uid", r.vm.UID, "error", err)
	}
	return nil
}

// identityOf is a VM's present identity: that of its boot, with what has been
// rotated since.
func (c *captures) identityOf(vm driver.VM) (driver.Identity, error) {
	boot, err := record.Read[guestwire.BootConfig](vm.Dir, fileBoot)
	if err != nil {
		return driver.Identity{}, fmt.Errorf("what the guest was booted with is not recorded: %w", err)
	}
	guest, err := record.Read[guestRecord](vm.Dir, fileGuest)
	if err != nil {
		return driver.Identity{}, fmt.Errorf("how to reach the guest is not recorded: %w", err)
	}
	id := driver.Identity{Hostname: boot.Hostname, MachineID: boot.MachineID, Token: guest.Token, CertPEM: []byte(boot.CertPEM), KeyPEM: []byte(boot.KeyPEM)}
	if guest.Cert != "" {
		id.CertPEM, id.KeyPEM = []byte(guest.Cert), []byte(guest.Key)
	}
	return id, nil
}

// Pause implements driver.Snapshotter.
func (c *captures) Pause(ctx context.Context, vm driver.VM, step func(string)) (driver.SnapshotInfo, error) {
	d := c.d
	unlock, err := c.lock.Take(ctx, vm.UID)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	defer unlock()
	src, inst, err := c.source(ctx, vm)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	info, err := c.SetAside(ctx, src, driver.SnapshotRequest{To: pausedArtifact(vm), Step: step}, func(disk chain.Chain) error {
		return record.Change(vm.Dir, fileProcess, func(r *processRecord) {
			r.Paused, r.Ident, r.Socket, r.Disk = true, proc.Ident{}, "", disk
		})
	})
	if err != nil {
		return info, errors.Join(err, os.RemoveAll(pausedArtifact(vm).Dir))
	}
	if err := c.endPaused(ctx, vm, inst); err != nil {
		d.log.Error("process of a paused vm not cleared", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
	return info, nil
}

// endPaused ends what still runs of a paused VM.
func (c *captures) endPaused(ctx context.Context, vm driver.VM, inst *instance) error {
	d := c.d
	err := inst.Close()
	rec, rerr := record.Read[processRecord](vm.Dir, fileProcess)
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	return errors.Join(err, d.reaper.EndOthers(ctx, vm.UID, 0), d.cgroups.Group(vm.UID).Remove(ctx), tidy(vm, rec))
}

// Resume implements driver.Snapshotter.
func (c *captures) Resume(ctx context.Context, vm driver.VM, step func(string)) (driver.Revived, error) {
	d := c.d
	unlock, err := c.lock.Take(ctx, vm.UID)
	if err != nil {
		return driver.Revived{}, err
	}
	defer unlock()
	was, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil {
		return driver.Revived{}, err
	}
	if !was.Paused {
		return driver.Revived{}, fleet.Errorf(fleet.CodeConflict, "%s is not paused", vm.ID)
	}
	r := &revival{boot: boot{d: d, vm: vm, shared: true}, from: pausedArtifact(vm)}
	if r.id, err = c.identityOf(vm); err != nil {
		return driver.Revived{}, err
	}
	undo := func(ctx context.Context) error {
		return errors.Join(r.drop(ctx, was), d.cgroups.Group(vm.UID).Remove(ctx))
	}
	err = r.run(ctx, step, []vmm.Step{
		{Name: stepSeed, Do: r.findSeed}, {Name: stepNetwork, Do: r.reuseNIC},
		{Name: stepDisk, Do: func(context.Context) error { return r.overlay(was.Disk.Active) }},
		{Name: stepProcess, Do: r.replaceProcess}, {Name: stepResume, Do: r.goOn},
	})
	r.closeFiles()
	if err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if uerr := undo(end); uerr != nil {
			err = errors.Join(err, driver.ErrUnsure, fmt.Errorf("undo the resume: %w", uerr))
		}
		return driver.Revived{}, err
	}
	out := r.revived()
	out.Undo = undo
	out.Keep = func(ctx context.Context) error { return r.keep(ctx, nil) }
	return out, nil
}
