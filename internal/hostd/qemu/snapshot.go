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
	"github.com/fusevm/fuse/internal/hostd/capture/memory"
	"github.com/fusevm/fuse/internal/hostd/capture/sparse"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/qmp"
)

var _ driver.Snapshotter = (*Driver)(nil)

// Limits of one capture.
const (
	freezeLimit  = 20 * time.Second // the guest goes on by itself then
	runAgainIn   = 15 * time.Second // a machine that is stopped
	releaseLimit = 10 * time.Second
	undoCapture  = 30 * time.Second
)

// capture is one under way.
type capture struct {
	d    *Driver
	inst *instance
	vm   driver.VM
	req  driver.SnapshotRequest
	rec  processRecord
	m    manifest.Manifest
	tpl  *template
	next int // overlay that takes the writes afterwards; 0: the machine ends

	begun, frozeAt   time.Time
	stopped, resumed chan time.Time // when it did, by QEMU's clock
	frozen           bool           // the guest has been told to stand still
	rotated          bool
}

// Snapshot implements driver.Snapshotter.
func (d *Driver) Snapshot(ctx context.Context, vm driver.VM, req driver.SnapshotRequest) (driver.SnapshotInfo, error) {
	unlock, err := d.capturing.Take(ctx, vm.UID)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	defer unlock()
	c, err := d.newCapture(ctx, vm, req)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	defer d.captured(req.To.ID)
	steps := []bootStep{{"flatten", c.flatten}, {"prepare", c.prepare}, {"freeze", c.freeze}, {"stop", c.rotate}, {"release", c.release}}
	if req.Live {
		steps = []bootStep{
			{"flatten", c.flatten}, {"template", c.template}, {"prepare", c.prepare}, {"freeze", c.freeze}, {"stop", c.send}, {"release", c.release},
			{"copy", c.await}, {"devices", c.devices}, {"memory", c.memory},
		}
	}
	if err := c.run(ctx, append(steps, bootStep{"disk", c.disk}, bootStep{"record", c.record})); err != nil {
		return driver.SnapshotInfo{}, errors.Join(err, c.undo())
	}
	return c.m.SnapshotInfo, nil
}

// newCapture refuses what cannot work before anything is made.
func (d *Driver) newCapture(ctx context.Context, vm driver.VM, req driver.SnapshotRequest) (*capture, error) {
	inst := d.holder(vm.UID)
	if inst == nil || inst.alive.Err() != nil {
		return nil, fleet.Errorf(fleet.CodeConflict, "%w: it cannot be captured", fleet.ErrVMNotRunning)
	}
	if req.Live && vm.HugePages {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the memory of a machine on huge pages cannot be captured").
			With(fleet.DetailRemedy, "take a snapshot of the disk, or create the environment without huge_pages")
	}
	if err := d.checkRoom(); err != nil {
		return nil, err
	}
	rec, err := readRecord[processRecord](vm.Dir, fileProcess)
	if err != nil {
		return nil, err
	}
	boot, err := readRecord[guestwire.BootConfig](vm.Dir, fileBoot)
	if err != nil {
		return nil, fmt.Errorf("what the guest was booted with is not recorded: %w", err)
	}
	if err := os.MkdirAll(req.To.Dir, 0o700); err != nil {
		return nil, err
	}
	c := &capture{d: d, inst: inst, vm: vm, req: req, rec: rec, begun: time.Now(), stopped: make(chan time.Time, 1), resumed: make(chan time.Time, 1)}
	c.m = manifest.Manifest{ImageDigest: inst.digest, Image: boot.Image}
	c.m.SnapshotInfo = driver.SnapshotInfo{
		ID: req.To.ID, Kind: fleet.SnapshotKindDisk, Volatile: req.Live && req.Volatile, Source: vm, Machine: rec.Machine, TakenAt: manifest.Taken(),
	}
	if req.Live {
		c.m.ThawKey = incarnation() + incarnation()
	}
	f, err := os.Open(c.in(chain.File(rec.Disk.Active)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if c.m.DiskSize, err = disk.Size(f); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[req.To.ID] {
		return nil, fleet.Errorf(fleet.CodeConflict, "snapshot %s is being taken already", req.To.ID)
	}
	d.busy[req.To.ID] = true
	return c, nil
}

func (d *Driver) captured(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, id)
}

func (c *capture) in(name string) string { return filepath.Join(c.vm.Dir, name) }

func (c *capture) run(ctx context.Context, steps []bootStep) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.req.Step != nil {
			c.req.Step(s.name)
		}
		err := s.do(ctx)
		if err == nil {
			err = failpoint.Hit("qemu.capture." + s.name)
		}
		if err != nil {
			if c.inst.alive.Err() != nil {
				err = errors.Join(fleet.Errorf(fleet.CodeConflict, "%w: it ended while it was captured", fleet.ErrVMNotRunning), err)
			}
			return (&boot{d: c.d}).explain(s.name, err)
		}
	}
	return nil
}

func (c *capture) tick(part string) sparse.Tick {
	if c.req.Progress == nil {
		return nil
	}
	return func(done, total int64) { c.req.Progress(driver.Progress{Part: part, Done: done, Total: total}) }
}

// undo lets the machine run on as if nothing had been, but for an overlay that
// may have been frozen.
func (c *capture) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoCapture)
	defer cancel()
	var errs []error
	c.inst.pulse.Store(nil)
	if c.inst.alive.Err() == nil {
		errs = append(errs, live.Recover(ctx, c.inst.qmp), c.release(ctx))
		if c.next != 0 && !c.rotated {
			live.DropOverlay(ctx, c.inst.qmp, c.next)
			c.rec.Disk.Pending = 0
			errs = append(errs, writeRecord(c.vm.Dir, fileProcess, c.rec), tidy(c.vm, c.rec))
		}
	}
	if c.tpl != nil {
		errs = append(errs, c.tpl.close())
	}
	errs = append(errs, c.d.Discard(ctx, c.req.To))
	if err := errors.Join(errs...); err != nil && c.inst.alive.Err() == nil {
		return fmt.Errorf("undo the capture: %w", err)
	}
	return nil
}

// flatten makes a disk of many layers one of none.
func (c *capture) flatten(ctx context.Context) error {
	if len(c.rec.Disk.Layers) < chain.Deepest {
		return nil
	}
	var layers []int
	for _, l := range c.rec.Disk.Layers {
		layers = append(layers, l.Number)
	}
	if err := live.Flatten(ctx, c.inst.qmp, c.rec.Disk.Active, layers, c.tick("layers")); err != nil {
		return err
	}
	c.rec.Disk.Layers = nil
	if err := writeRecord(c.vm.Dir, fileProcess, c.rec); err != nil {
		return err
	}
	return c.rec.Disk.Prune(c.vm.Dir)
}

func (c *capture) template(ctx context.Context) error {
	var err error
	c.tpl, err = c.d.startTemplate(ctx, c.vm, c.req.To, c.m.DiskSize)
	return err
}

// prepare makes the overlay that will take the writes, and has what was written
// so far on the host's disk, so that the machine need not wait for it.
func (c *capture) prepare(ctx context.Context) error {
	active := c.in(chain.File(c.rec.Disk.Active))
	c.next = c.rec.Disk.Next()
	c.rec.Disk.Pending = c.next
	if err := writeRecord(c.vm.Dir, fileProcess, c.rec); err != nil {
		return err
	}
	path := c.in(chain.File(c.next))
	write, err := disk.CreateOn(path, active, disk.Qcow2, c.m.DiskSize)
	if err != nil {
		return err
	}
	defer write.Close()
	read, err := os.Open(path)
	if err != nil {
		return err
	}
	defer read.Close()
	if err := live.AddOverlay(ctx, c.inst.qmp, c.next, write, read); err != nil {
		return err
	}
	return syncFile(active)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// freeze lets the guest stand still: its processes for a capture of the memory,
// its file systems for one of the disk alone.
func (c *capture) freeze(ctx context.Context) error {
	c.frozen, c.frozeAt = true, time.Now()
	f, err := c.inst.guest.Freeze(ctx, guestwire.FreezeOptions{
		Processes: c.req.Live, Filesystem: !c.req.Live, Limit: freezeLimit, ThawKey: c.m.ThawKey,
	})
	c.m.Machine.GuestWire, c.m.SSHKeys = f.WireVersion, f.SSHKeys
	return err
}

// release lets the guest of a machine that runs again go on.
func (c *capture) release(ctx context.Context) error {
	if !c.frozen {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	if _, err := c.inst.guest.Release(ctx); err != nil {
		return fmt.Errorf("the guest stands still for up to %s: %w", freezeLimit, err)
	}
	c.frozen = false
	c.m.Timings.Freeze = time.Since(c.frozeAt)
	if !c.rotated || c.next == 0 {
		return nil
	}
	return writeRecord(c.vm.Dir, fileProcess, c.rec)
}

// rotate freezes the overlay that has been written so far.
func (c *capture) rotate(ctx context.Context) error {
	if c.next == 0 {
		return nil
	}
	if err := live.Rotate(ctx, c.inst.qmp, c.rec.Disk.Active, c.next); err != nil {
		return err
	}
	c.rec.Disk = c.rec.Disk.Frozen(chain.Layer{}, c.next)
	c.rotated = true
	return nil
}

// send stops the machine, freezes its overlay and begins the stream of its
// state; where the kernel lets QEMU protect the memory it runs on then.
func (c *capture) send(ctx context.Context) error {
	c.m.Timings.Background = c.next != 0 && c.d.userfault.Works() == nil
	if c.m.Timings.Background {
		back, err := c.d.userfault.Lend(ctx)
		if err != nil {
			return err
		}
		err = c.sendStream(ctx)
		return errors.Join(err, back())
	}
	return c.sendStream(ctx)
}

func (c *capture) sendStream(ctx context.Context) error {
	src := c.inst.qmp
	if err := live.Protect(ctx, src, c.m.Timings.Background); err != nil {
		return err
	}
	if err := live.Connect(ctx, src, c.tpl.qmp); err != nil {
		return err
	}
	hear := func(e qmp.Event) {
		to := c.stopped
		if e.Name == "RESUME" {
			to = c.resumed
		}
		select {
		case to <- e.At:
		default:
		}
	}
	c.inst.pulse.Store(&hear)
	if err := src.Execute(ctx, "stop", nil, nil); err != nil {
		return err
	}
	if err := c.rotate(ctx); err != nil {
		return err
	}
	if err := failpoint.Hit("qemu.capture.rotated"); err != nil {
		return err
	}
	if err := live.Send(ctx, src); err != nil {
		return err
	}
	if !c.m.Timings.Background {
		if err := live.Await(ctx, src, c.tick("memory")); err != nil || c.next == 0 {
			return err
		}
		if err := live.Go(ctx, src); err != nil {
			return err
		}
	}
	return c.awaitRun(ctx)
}

// awaitRun returns once the machine runs again, and notes how long it did not.
func (c *capture) awaitRun(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runAgainIn)
	defer cancel()
	failed := make(chan error, 1)
	wait, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if err := live.Await(wait, c.inst.qmp, nil); err != nil {
			failed <- err
		}
	}()
	select {
	case at := <-c.resumed:
		select {
		case from := <-c.stopped:
			c.m.Timings.Stop = at.Sub(from)
		default:
		}
		c.inst.pulse.Store(nil)
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the machine does not run again: %w", ctx.Err())
	}
}

// await waits until the template has all of it.
func (c *capture) await(ctx context.Context) error {
	return live.Await(ctx, c.inst.qmp, c.tick("memory"))
}

func (c *capture) devices(ctx context.Context) error {
	var err error
	c.m.DevicesSum, err = c.tpl.finish(ctx, true)
	return err
}

// memory gives the memory to its holder, and writes it to the disk.
func (c *capture) memory(ctx context.Context) error {
	f := c.tpl.memory
	c.m.Kind = fleet.SnapshotKindLive
	if err := c.d.hold(c.m.ID, f); err != nil {
		return err
	}
	return c.saveMemory(ctx)
}

func (c *capture) saveMemory(ctx context.Context) error {
	f := c.tpl.memory
	if c.m.Volatile {
		c.m.MemorySum = sparse.Content{Digest: "volatile:" + c.m.ID, Bytes: memory.Bytes(f), Size: int64(c.vm.RamMB) << 20}
	} else {
		var err error
		if c.m.MemorySum, err = memory.Save(ctx, f, filepath.Join(c.req.To.Dir, manifest.Memory), c.tick("memory")); err != nil {
			return err
		}
	}
	c.m.MemoryBytes = c.m.MemorySum.Bytes
	return c.tpl.close()
}

// disk links the frozen layers and digests those that are new.
func (c *capture) disk(ctx context.Context) error {
	layers := c.rec.Disk.Layers
	if c.next == 0 {
		layers = c.rec.Disk.Frozen(chain.Layer{}, 0).Layers
	}
	added, err := c.digest(ctx, layers)
	if err != nil {
		return err
	}
	if c.next != 0 {
		if err := writeRecord(c.vm.Dir, fileProcess, c.rec); err != nil {
			return err
		}
	}
	c.m.Disk, c.m.Layers = layers, len(layers)
	c.m.SizeBytes = added + c.m.DevicesSum.Bytes
	if !c.m.Volatile {
		c.m.SizeBytes += c.m.MemoryBytes
	}
	if err := os.Link(c.in(fileBase), filepath.Join(c.req.To.Dir, manifest.Base)); err != nil {
		return err
	}
	return chain.Link(layers, c.vm.Dir, c.req.To.Dir)
}

// digest fills in what is not known of layers.
func (c *capture) digest(ctx context.Context, layers []chain.Layer) (added int64, err error) {
	for i, l := range layers {
		if l.Digest != "" {
			continue
		}
		f, err := os.Open(c.in(chain.File(l.Number)))
		if err != nil {
			return 0, err
		}
		got, err := sparse.Read(ctx, f, c.tick("disk"))
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			c.d.checker.Note(f, got.Digest)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return 0, err
		}
		layers[i].Digest, layers[i].Bytes = got.Digest, got.Bytes
		added += got.Bytes
	}
	return added, nil
}

// record makes it a capture.
func (c *capture) record(context.Context) error {
	c.m.Digest = c.m.Sum()
	c.m.Timings.Took = time.Since(c.begun)
	return c.m.Write(c.req.To.Dir)
}
