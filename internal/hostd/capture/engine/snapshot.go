package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

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
	"github.com/fusevm/fuse/internal/hostd/svcdisk"
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

// Limits of one capture.
const (
	freezeLimit  = 20 * time.Second // the guest goes on by itself then
	runAgainIn   = 15 * time.Second // a machine that is stopped
	releaseLimit = 10 * time.Second
	undoCapture  = 30 * time.Second
	noticeWithin = 10 * time.Second // the end of a process whose channel has closed
)

// capture is one under way.
type capture struct {
	e   *Engine
	src Source
	vm  driver.VM
	req driver.SnapshotRequest
	m   manifest.Manifest
	tpl *template

	next int // overlay that takes the writes afterwards; 0: the machine ends

	begun, frozeAt   time.Time      // frozeAt: the guest was told to stand still
	stillAt          time.Time      // it did
	stopped, resumed chan time.Time // when it did, by QEMU's clock
	frozen           bool           // the guest has been told to stand still
	rotated          bool
	written          int64 // by the disk, before the guest stood still
	still            bool  // the machine does not run while its memory is made ready
}

// Snapshot captures a machine, which runs on.
func (e *Engine) Snapshot(ctx context.Context, src Source, req driver.SnapshotRequest) (driver.SnapshotInfo, error) {
	return e.snapshot(ctx, src, req, e.take)
}

// snapshot takes a capture, and once more of a machine that stands still for it
// if the disk was written meanwhile.
func (e *Engine) snapshot(ctx context.Context, src Source, req driver.SnapshotRequest, take func(context.Context, *capture) error) (driver.SnapshotInfo, error) {
	c, err := e.begin(src, req)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	defer e.captured(req.To.ID)
	begun := c.begun
	err = take(ctx, c)
	if errors.Is(err, errWritten) && ctx.Err() == nil {
		if c, err = e.plan(c.src, req); err != nil {
			return driver.SnapshotInfo{}, err
		}
		c.still, c.begun = true, begun
		err = take(ctx, c)
	}
	return c.m.SnapshotInfo, err
}

// take makes a capture, or undoes what there is of it.
func (e *Engine) take(ctx context.Context, c *capture) error {
	req := c.req
	steps := []vmm.Step{{Name: "flatten", Do: c.flatten}}
	if req.Live {
		steps = append(steps, vmm.Step{Name: "template", Do: c.template})
	}
	steps = append(steps, vmm.Step{Name: "prepare", Do: c.prepare}, vmm.Step{Name: "freeze", Do: c.freeze})
	if req.Live {
		steps = append(steps, vmm.Step{Name: "stop", Do: c.send}, vmm.Step{Name: "release", Do: c.release},
			vmm.Step{Name: "copy", Do: c.await}, vmm.Step{Name: "devices", Do: c.devices}, vmm.Step{Name: "memory", Do: c.memory})
	} else {
		steps = append(steps, vmm.Step{Name: "rotate", Do: c.rotate}, vmm.Step{Name: "release", Do: c.release})
	}
	err := c.run(ctx, append(steps, vmm.Step{Name: "disk", Do: c.disk}, vmm.Step{Name: "record", Do: c.record}))
	if err == nil {
		return nil
	}
	undone := c.undo()
	c.m.SnapshotInfo = driver.SnapshotInfo{}
	if undone != nil && errors.Is(err, errWritten) {
		err = errors.New(err.Error()) // no second try
	}
	return errors.Join(err, undone)
}

// SetAside captures a machine that is not to run on. done makes that durable,
// with the disk that it will have; until then the machine can run on.
func (e *Engine) SetAside(ctx context.Context, src Source, req driver.SnapshotRequest, done func(chain.Chain) error) (driver.SnapshotInfo, error) {
	req.Live = true
	c, err := e.begin(src, req)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	defer e.captured(req.To.ID)
	err = c.run(ctx, []vmm.Step{
		{Name: "flatten", Do: c.flatten}, {Name: "template", Do: c.template},
		{Name: "sync", Do: func(context.Context) error { return syncFile(c.in(chain.File(src.Disk.Active))) }},
		{Name: "freeze", Do: c.freeze}, {Name: "stop", Do: c.send}, {Name: "copy", Do: c.await}, {Name: "devices", Do: c.devicesAside},
		{Name: "disk", Do: c.disk}, {Name: "record", Do: c.record},
		{Name: "pause", Do: func(context.Context) error {
			return done(chain.Chain{Layers: c.m.Disk, Active: c.src.Disk.Next()})
		}},
	})
	if err != nil {
		return driver.SnapshotInfo{}, errors.Join(err, c.undo())
	}
	return c.m.SnapshotInfo, nil
}

// begin refuses what cannot work before anything is made, and keeps others from
// the capture's id until captured is called.
func (e *Engine) begin(src Source, req driver.SnapshotRequest) (*capture, error) {
	c, err := e.plan(src, req)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy[req.To.ID] {
		return nil, fleet.Errorf(fleet.CodeConflict, "snapshot %s is being taken already", req.To.ID)
	}
	if e.busy == nil {
		e.busy = map[string]bool{}
	}
	e.busy[req.To.ID] = true
	return c, nil
}

// plan says what is to be captured.
func (e *Engine) plan(src Source, req driver.SnapshotRequest) (*capture, error) {
	vm := src.VM
	switch {
	case src.Alive.Err() != nil:
		return nil, NotRunning()
	case req.Live && vm.HugePages:
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the memory of a machine on huge pages cannot be captured").
			With(fleet.DetailRemedy, "take a snapshot of the disk, or create the environment without huge_pages")
	}
	if err := e.Room(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(req.To.Dir, 0o700); err != nil {
		return nil, err
	}
	c := &capture{e: e, src: src, vm: vm, req: req, begun: time.Now(), stopped: make(chan time.Time, 1), resumed: make(chan time.Time, 1)}
	c.m = manifest.Manifest{ImageDigest: src.ImageDigest, Image: src.Image}
	c.m.SnapshotInfo = driver.SnapshotInfo{
		ID: req.To.ID, Kind: fleet.SnapshotKindDisk, Volatile: req.Live && req.Volatile, Source: vm, Machine: src.Machine, TakenAt: manifest.Taken(),
	}
	if req.Live {
		c.m.ThawKey = vmm.NewIncarnation() + vmm.NewIncarnation()
	}
	f, err := os.Open(c.in(chain.File(src.Disk.Active)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c.m.DiskSize, err = disk.Size(f)
	return c, err
}

// NotRunning refuses to capture what does not run.
func NotRunning() error {
	return fleet.Errorf(fleet.CodeConflict, "%w: it cannot be captured", fleet.ErrVMNotRunning)
}

func (e *Engine) captured(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.busy, id)
}

func (c *capture) in(name string) string { return filepath.Join(c.vm.Dir, name) }

func (c *capture) run(ctx context.Context, steps []vmm.Step) error {
	err := vmm.Steps(ctx, "qemu.capture.", c.e.Dir, c.req.Step, steps)
	if errors.Is(err, qmp.ErrClosed) {
		c.src.notice(ctx)
	}
	if err != nil && c.src.Alive.Err() != nil {
		err = errors.Join(fleet.Errorf(fleet.CodeConflict, "%w: it ended while it was captured", fleet.ErrVMNotRunning), err)
	}
	return err
}

// notice waits until the machine's end is known, if its channel has closed and
// not the template's alone: the process ends a while after that.
func (s Source) notice(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noticeWithin)
	defer cancel()
	if _, err := live.Status(ctx, s.QMP); !errors.Is(err, qmp.ErrClosed) {
		return
	}
	select {
	case <-s.Alive.Done():
	case <-ctx.Done():
	}
}

// undo lets the machine run on as if nothing had been, but for an overlay that
// may have been frozen.
func (c *capture) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoCapture)
	defer cancel()
	var errs []error
	c.src.Watch(nil)
	if c.src.Alive.Err() == nil {
		if _, err := live.Recover(ctx, c.src.QMP, c.src.Free); err != nil {
			errs = append(errs, driver.ErrUnsure, err)
		}
		errs = append(errs, c.release(ctx))
		if c.next != 0 && !c.rotated {
			errs = append(errs, c.settleDisk(ctx))
		}
	}
	if c.tpl != nil {
		errs = append(errs, c.tpl.close())
	}
	errs = append(errs, c.e.Discard(ctx, c.req.To))
	if err := errors.Join(errs...); err != nil && c.src.Alive.Err() == nil {
		return fmt.Errorf("undo the capture: %w", err)
	}
	return nil
}

// settleDisk asks QEMU which overlay takes the writes: a command whose answer
// was not waited for may have been obeyed. As long as nobody knows, both stay.
func (c *capture) settleDisk(ctx context.Context) error {
	top, err := live.Top(ctx, c.src.QMP, c.src.Disk.Active, c.next)
	if err != nil {
		return err
	}
	if top != c.next {
		live.DropOverlay(ctx, c.src.QMP, c.next)
	}
	c.src.Disk = c.src.Disk.Settled(top)
	return errors.Join(c.src.Record(c.src.Disk), c.src.Disk.Prune(c.vm.Dir))
}

// flatten makes a disk of many layers one of none.
func (c *capture) flatten(ctx context.Context) error {
	if len(c.src.Disk.Layers) < chain.Deepest {
		return nil
	}
	var layers []int
	for _, l := range c.src.Disk.Layers {
		layers = append(layers, l.Number)
	}
	err := c.e.withRoom(ctx, func(ctx context.Context) error {
		return live.Flatten(ctx, c.src.QMP, c.src.Disk.Active, layers, driver.Tick(ctx, "layers"))
	})
	if err != nil {
		return err
	}
	c.src.Disk.Layers = nil
	if err := c.src.Record(c.src.Disk); err != nil {
		return err
	}
	return c.src.Disk.Prune(c.vm.Dir)
}

func (c *capture) template(ctx context.Context) error {
	var err error
	c.tpl, err = c.e.startTemplate(ctx, c.vm, c.req.To, c.m.DiskSize)
	return err
}

// prepare makes the overlay that will take the writes, and has what was written
// so far on the host's disk and all its memory there, so that the machine need
// not wait for it.
func (c *capture) prepare(ctx context.Context) error {
	if c.req.Live {
		if err := memory.Fill(ctx, c.src.PID, int64(c.vm.RamMB)<<20); err != nil {
			return err
		}
	}
	active := c.in(chain.File(c.src.Disk.Active))
	c.next = c.src.Disk.Next()
	c.src.Disk.Pending = c.next
	if err := c.src.Record(c.src.Disk); err != nil {
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
	if err := live.AddOverlay(ctx, c.src.QMP, c.next, write, read); err != nil {
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
	if c.req.Live {
		var err error
		if c.written, err = live.Written(ctx, c.src.QMP); err != nil {
			return err
		}
	}
	c.frozen, c.frozeAt = true, time.Now()
	f, err := c.src.Guest.Freeze(ctx, guestwire.FreezeOptions{
		Processes: c.req.Live, Filesystem: !c.req.Live, Limit: freezeLimit, ThawKey: c.m.ThawKey,
	})
	// What the guest did before is not part of its stillness.
	c.stillAt = time.Now().Add(-max(f.Froze, f.Synced))
	c.m.Machine.GuestWire, c.m.SSHKeys = f.WireVersion, f.SSHKeys
	return err
}

// release lets the guest of a machine that runs again go on. Which overlay it
// writes is durable then, whatever the guest says.
func (c *capture) release(ctx context.Context) error {
	if !c.frozen {
		return nil
	}
	var recorded error
	limited, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	_, err := c.src.Guest.Release(limited)
	if c.rotated {
		recorded = c.src.Record(c.src.Disk)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the guest stands still for up to %s: %w", freezeLimit, err), recorded)
	}
	c.frozen = false
	c.m.Timings.Freeze = time.Since(c.stillAt)
	return recorded
}

// rotate freezes the overlay that has been written so far.
func (c *capture) rotate(ctx context.Context) error {
	if c.next == 0 {
		return nil
	}
	if err := live.Rotate(ctx, c.src.QMP, c.src.Disk.Active, c.next); err != nil {
		return err
	}
	c.src.Disk = c.src.Disk.Frozen(chain.Layer{}, c.next)
	c.rotated = true
	return c.stillFrozen()
}

// stillFrozen is an error unless the guest certainly still stood still: one that
// went on by itself is not shut in what is made of the capture.
func (c *capture) stillFrozen() error {
	if took := time.Since(c.frozeAt); took > freezeLimit*3/4 {
		return fleet.Errorf(fleet.CodeDeadlineExceeded, "the guest stood still for %s before it was captured", took.Round(time.Millisecond)).
			With(fleet.DetailLimit, (freezeLimit*3/4).String()).
			With(fleet.DetailRemedy, "the host is overloaded: try again when it is less busy")
	}
	return nil
}

// send stops the machine, freezes its overlay and begins the stream of its
// state; where its memory can be protected it runs on then.
func (c *capture) send(ctx context.Context) error {
	back, err := c.protect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.sendStream(ctx), back())
}

// protect has QEMU protect the memory as it is streamed, if the kernel lets it
// and knows how to for memory of this kind. back ends what that takes.
func (c *capture) protect(ctx context.Context) (back func() error, err error) {
	if c.next != 0 && c.e.Userfault.Works() == nil {
		if back, err = c.e.Userfault.Lend(ctx); err == nil {
			if err = live.Protect(ctx, c.src.QMP, true); err == nil {
				c.m.Timings.Background = true
				return back, nil
			}
			err = errors.Join(err, back())
		}
		if ctx.Err() != nil || errors.Is(err, qmp.ErrClosed) {
			return nil, err
		}
	}
	return func() error { return nil }, errors.Join(c.e.forget(ctx, c.src.QMP), live.Protect(ctx, c.src.QMP, false))
}

// forget ends what a QEMU believes of its memory after a stream that broke off.
func (e *Engine) forget(ctx context.Context, m live.Monitor) error {
	broke, err := live.BrokeOff(ctx, m)
	// Where memory is never protected, there is nothing to forget.
	protects := e.Userfault.Works() == nil
	if err != nil || !broke || !protects {
		return err
	}
	back, err := e.Userfault.Lend(ctx)
	if err != nil {
		return err
	}
	// Nor where that of this kind never is.
	if err = live.Protect(ctx, m, true); err == nil {
		err = live.Blank(ctx, m)
	} else if ctx.Err() == nil && !errors.Is(err, qmp.ErrClosed) {
		err = nil
	}
	return errors.Join(err, back())
}

func (c *capture) sendStream(ctx context.Context) error {
	if err := live.Connect(ctx, c.src.QMP, c.tpl.qmp); err != nil {
		return err
	}
	return c.sendMoment(ctx)
}

// awaitRun returns once the machine runs again, and notes how long it did not.
func (c *capture) awaitRun(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runAgainIn)
	defer cancel()
	failed := make(chan error, 1)
	wait, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if err := live.Await(wait, c.src.QMP, nil); err != nil {
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
		c.src.Watch(nil)
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the machine does not run again: %w", ctx.Err())
	}
}

// await waits until the template has all of it.
func (c *capture) await(ctx context.Context) error {
	return live.Await(ctx, c.src.QMP, driver.Tick(ctx, "memory"))
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
	if err := c.e.hold(c.m.ID, f); err != nil {
		return err
	}
	return c.saveMemory(ctx)
}

func (c *capture) saveMemory(ctx context.Context) error {
	f := c.tpl.memory
	if c.m.Volatile {
		c.m.MemorySum = sparse.Content{Digest: "volatile:" + c.m.ID, Bytes: memory.Bytes(f), Size: int64(c.vm.RamMB) << 20}
	} else {
		err := c.e.withRoom(ctx, func(ctx context.Context) (err error) {
			c.m.MemorySum, err = memory.Save(ctx, f, filepath.Join(c.req.To.Dir, manifest.Memory), driver.Tick(ctx, "memory"))
			return err
		})
		if err != nil {
			return err
		}
	}
	c.m.MemoryBytes = c.m.MemorySum.Bytes
	return c.tpl.close()
}

// devicesAside writes devices and memory of a machine that will not run on.
func (c *capture) devicesAside(ctx context.Context) error {
	var err error
	if c.m.DevicesSum, err = c.tpl.finish(ctx, false); err != nil {
		return err
	}
	c.m.Kind = fleet.SnapshotKindLive
	return c.saveMemory(ctx)
}

// disk links the frozen layers and digests those that are new.
func (c *capture) disk(ctx context.Context) error {
	layers := c.src.Disk.Layers
	if c.next == 0 {
		layers = c.src.Disk.Frozen(chain.Layer{}, 0).Layers
	}
	added, err := c.digest(ctx, layers)
	if err != nil {
		return err
	}
	if c.next != 0 {
		if err := c.src.Record(c.src.Disk); err != nil {
			return err
		}
	}
	c.m.Disk, c.m.Layers = layers, len(layers)
	c.m.SizeBytes = added + c.m.DevicesSum.Bytes
	if !c.m.Volatile {
		c.m.SizeBytes += c.m.MemoryBytes
	}
	if c.m.Base, err = c.e.Checker.Digest(ctx, c.in(manifest.Base)); err != nil {
		return err
	}
	if err := os.Link(c.in(manifest.Base), filepath.Join(c.req.To.Dir, manifest.Base)); err != nil {
		return err
	}
	if err := c.services(ctx); err != nil {
		return err
	}
	return chain.Link(layers, c.vm.Dir, c.req.To.Dir)
}

// services links and digests the images of services.
func (c *capture) services(ctx context.Context) error {
	for i, img := range c.src.Services {
		digest, err := c.e.Checker.Digest(ctx, c.in(svcdisk.File(i)))
		if err != nil {
			return err
		}
		c.m.Services = append(c.m.Services, manifest.Service{BootServiceImage: img, Digest: digest})
	}
	return svcdisk.Link(len(c.src.Services), c.vm.Dir, c.req.To.Dir)
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
		got, err := sparse.Read(ctx, f, driver.Tick(ctx, "disk"))
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			c.e.Checker.Note(f, got.Digest)
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
