package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/manifest"
	"github.com/fusevm/fuse/internal/hostd/capture/sparse"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// captures is the part of a Driver that captures simulated VMs: a capture is
// what the VM's log adds up to.
type captures struct {
	d       *Driver
	checker manifest.Checker
}

var _ driver.Snapshotter = (*Driver)(nil)

const pausedDir = "paused"

func paused(vm driver.VM) driver.Artifact {
	return driver.Artifact{ID: vm.UID, Dir: filepath.Join(vm.Dir, pausedDir)}
}

func facts(vm driver.VM) fleet.MachineFacts {
	return fleet.MachineFacts{Driver: string(fleet.BackendSim), DriverVersion: "1", Machine: "sim", CPUs: vm.CPUs, RamMB: vm.RamMB}
}

// steps runs the steps of a verb, the delay and the failures of the first of
// which are those of the verb.
func (c *captures) steps(ctx context.Context, verb string, told func(string), list ...func() error) error {
	for i, do := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := [...]string{verb, "disk", "resume"}[i]
		if told != nil {
			told(name)
		}
		if i == 0 {
			if err := c.d.pass(ctx, verb); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func (c *captures) running(vm driver.VM) (*instance, error) {
	c.d.mu.Lock()
	i := c.d.vms[vm.UID]
	c.d.mu.Unlock()
	if i == nil {
		return nil, fleet.Errorf(fleet.CodeConflict, "%w: it cannot be captured", fleet.ErrVMNotRunning)
	}
	return i, (guest{i}).alive()
}

// Snapshot implements driver.Snapshotter.
func (c *captures) Snapshot(ctx context.Context, vm driver.VM, req driver.SnapshotRequest) (driver.SnapshotInfo, error) {
	i, err := c.running(vm)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	var m manifest.Manifest
	err = c.steps(ctx, "snapshot", req.Step, func() error { return nil }, func() error {
		m, err = c.write(ctx, vm, i, req)
		return err
	})
	if err != nil {
		return driver.SnapshotInfo{}, errors.Join(err, manifest.Remove(req.To.Dir))
	}
	return m.SnapshotInfo, nil
}

func (c *captures) write(ctx context.Context, vm driver.VM, i *instance, req driver.SnapshotRequest) (manifest.Manifest, error) {
	begun := time.Now()
	m := manifest.Manifest{ImageDigest: i.ImageDigest(), DiskSize: int64(vm.StorageGB) << 30}
	sum, err := load(vm.Dir)
	if err != nil {
		return m, err
	}
	doc, err := json.Marshal(sum)
	if err != nil {
		return m, err
	}
	if err := os.MkdirAll(req.To.Dir, 0o700); err != nil {
		return m, err
	}
	path := filepath.Join(req.To.Dir, chain.File(0))
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		return m, err
	}
	f, err := os.Open(path)
	if err != nil {
		return m, err
	}
	defer f.Close()
	got, err := sparse.Read(ctx, f, driver.Tick(ctx, "disk"))
	if err != nil {
		return m, err
	}
	m.Disk = []chain.Layer{{Digest: got.Digest, Bytes: got.Bytes}}
	m.SnapshotInfo = driver.SnapshotInfo{
		ID: req.To.ID, Kind: fleet.SnapshotKindDisk, SizeBytes: got.Bytes, Layers: 1, Source: vm, Machine: facts(vm), TakenAt: manifest.Taken(),
	}
	if req.Live {
		// What a real one has in memory is in the same file here.
		m.Kind, m.MemoryBytes, m.DevicesSum = fleet.SnapshotKindLive, got.Bytes, got
		if err := os.WriteFile(filepath.Join(req.To.Dir, manifest.Devices), doc, 0o600); err != nil {
			return m, err
		}
	}
	m.Digest, m.Timings.Took, m.Timings.Background = m.Sum(), time.Since(begun), true
	return m, m.Write(req.To.Dir)
}

// open reads a capture for a VM.
func (c *captures) open(ctx context.Context, vm driver.VM, from driver.Artifact) (content, bool, error) {
	m, err := manifest.Read(from)
	if err != nil {
		return content{}, false, err
	}
	if diff := driver.Differences(m.Machine, facts(vm)); m.Live() && len(diff) > 0 {
		return content{}, false, &driver.IncompatibleError{Differences: diff}
	}
	if m.Live() && (vm.CPUs != m.Source.CPUs || vm.RamMB != m.Source.RamMB) || int64(vm.StorageGB)<<30 < m.DiskSize {
		return content{}, false, fleet.Errorf(fleet.CodeInvalidArgument, "a machine that goes on from memory has the shape of its snapshot").
			With(fleet.DetailLimit, fmt.Sprintf("cpus %d, ram_mb %d, storage_gb %d or more", m.Source.CPUs, m.Source.RamMB, m.DiskSize>>30))
	}
	if err := c.checker.Verify(ctx, from, m, false); err != nil {
		return content{}, false, err
	}
	doc, err := os.ReadFile(filepath.Join(from.Dir, chain.File(0)))
	if err != nil {
		return content{}, false, err
	}
	var sum content
	if err := json.Unmarshal(doc, &sum); err != nil {
		return content{}, false, err
	}
	if !m.Live() { // it boots
		sum.State.BootID, sum.State.Started = ulid.Make().String(), time.Now().UTC()
	}
	return sum, m.Live(), nil
}

// Fork implements driver.Snapshotter.
func (c *captures) Fork(ctx context.Context, vm driver.VM, id driver.Identity, from driver.Artifact, step func(string)) (driver.Revived, error) {
	var sum content
	var out driver.Revived
	err := c.steps(ctx, "fork", step, func() (err error) {
		sum, out.Live, err = c.open(ctx, vm, from)
		return err
	}, func() error {
		sum.State.Hostname, sum.Credentials = id.Hostname, nil
		if sum.State.Hostname == "" {
			sum.State.Hostname = vm.ID
		}
		if c.d.opts.ObjectDir != "" {
			return os.WriteFile(c.d.object(vm.Slot), []byte(vm.UID), 0o600)
		}
		return nil
	}, func() error { return add(vm.Dir, sum, os.O_CREATE|os.O_TRUNC) })
	if err != nil {
		return driver.Revived{}, errors.Join(err, c.d.erase(vm))
	}
	out.Instance = c.d.hold(vm, *sum.State)
	return out, nil
}

// Restore implements driver.Snapshotter.
func (c *captures) Restore(ctx context.Context, vm driver.VM, from driver.Artifact, step func(string)) (driver.Revived, error) {
	old, err := c.running(vm)
	if err != nil {
		return driver.Revived{}, err
	}
	return c.revive(ctx, "restore", vm, from, step, old)
}

// revive gives a VM the content of a capture, once it is kept.
func (c *captures) revive(ctx context.Context, verb string, vm driver.VM, from driver.Artifact, step func(string), old *instance) (driver.Revived, error) {
	var sum content
	var live bool
	err := c.steps(ctx, verb, step, func() (err error) {
		sum, live, err = c.open(ctx, vm, from)
		return err
	}, func() error { return nil }, func() error { return nil })
	if err != nil {
		return driver.Revived{}, err
	}
	sum.State.Paused = false
	i := c.d.hold(vm, *sum.State)
	out := driver.Revived{Instance: i, Live: live}
	if old != nil {
		out.Before = old
	}
	out.Keep = func(context.Context) error {
		if err := replace(vm.Dir, sum); err != nil {
			return err
		}
		if old != nil {
			old.leave()
		}
		return os.RemoveAll(paused(vm).Dir)
	}
	out.Undo = func(context.Context) error {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		delete(c.d.vms, vm.UID)
		if old != nil {
			c.d.vms[vm.UID] = old
		}
		i.leave()
		return nil
	}
	return out, nil
}

// Pause implements driver.Snapshotter.
func (c *captures) Pause(ctx context.Context, vm driver.VM, step func(string)) (driver.SnapshotInfo, error) {
	i, err := c.running(vm)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	to := paused(vm)
	var m manifest.Manifest
	err = c.steps(ctx, "pause", step, func() error { return nil }, func() error {
		m, err = c.write(ctx, vm, i, driver.SnapshotRequest{To: to, Live: true})
		if err != nil {
			return err
		}
		s := i.state
		s.Paused = true
		return add(vm.Dir, content{State: &s}, 0)
	})
	if err != nil {
		return driver.SnapshotInfo{}, errors.Join(err, os.RemoveAll(to.Dir))
	}
	c.d.mu.Lock()
	delete(c.d.vms, vm.UID)
	c.d.mu.Unlock()
	i.leave()
	return m.SnapshotInfo, nil
}

// Resume implements driver.Snapshotter.
func (c *captures) Resume(ctx context.Context, vm driver.VM, step func(string)) (driver.Revived, error) {
	sum, err := load(vm.Dir)
	if err != nil {
		return driver.Revived{}, err
	}
	if !sum.State.Paused {
		return driver.Revived{}, fleet.Errorf(fleet.CodeConflict, "%s is not paused", vm.ID)
	}
	return c.revive(ctx, "resume", vm, paused(vm), step, nil)
}

// Inspect implements driver.Snapshotter.
func (c *captures) Inspect(ctx context.Context, a driver.Artifact, verify bool) (driver.SnapshotInfo, error) {
	m, err := manifest.Read(a)
	if err == nil && verify {
		err = c.checker.Verify(ctx, a, m, false)
	}
	return m.SnapshotInfo, err
}

// Discard implements driver.Snapshotter.
func (*captures) Discard(_ context.Context, a driver.Artifact) error { return manifest.Remove(a.Dir) }

// SweepSnapshots implements driver.Snapshotter: simulated captures need no
// process.
func (*captures) SweepSnapshots(context.Context, []driver.Artifact) (driver.SweepReport, error) {
	return driver.SweepReport{At: time.Now().UTC()}, nil
}
