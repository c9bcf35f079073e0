package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/hostd/capture/manifest"
	"github.com/fusevm/fuse/internal/hostd/capture/memory"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/proc"
)

var _ driver.MemoryHolder = (*Driver)(nil)

func (d *Driver) holderName(id string) string { return d.reaper.prefix + nameHolder + id }

// hold gives a sealed memory to a process that outlives this one.
func (d *Driver) hold(id string, f *os.File) error {
	pid, err := memory.Hold(f, d.holderName(id))
	if err != nil || !d.cgroups.Works() {
		return err
	}
	// Of its own, or it would end with this program's service.
	g, err := d.cgroups.Create(nameHolder+id, cgroup.Limits{Pids: 4})
	if err != nil {
		return err
	}
	return g.Add(pid)
}

// memoryOf opens the memory of a live capture: its holder's, or else anew from
// the file. What has no holder and no file is refused for good.
func (d *Driver) memoryOf(ctx context.Context, a driver.Artifact, m manifest.Manifest) (*os.File, error) {
	unlock, err := d.loading.Take(ctx, a.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, _, err := memory.Held(d.holderName(a.ID))
	if err == nil {
		if err = memory.CheckSealed(f, m.MemorySum.Size); err == nil {
			return f, nil
		}
		_ = f.Close()
		return nil, fmt.Errorf("the memory that is held for snapshot %s: %w", a.ID, err)
	}
	if m.Volatile {
		return nil, manifest.Condemn(a, "its memory was in RAM alone, and the process that held it has ended")
	}
	if f, err = d.loadMemory(ctx, a, m); err != nil {
		return nil, err
	}
	if err = memory.Seal(ctx, f); err == nil {
		err = d.hold(a.ID, f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (d *Driver) loadMemory(ctx context.Context, a driver.Artifact, m manifest.Manifest) (*os.File, error) {
	f, err := memory.Load(ctx, filepath.Join(a.Dir, manifest.Memory), a.ID, m.MemorySum)
	switch {
	case errors.Is(err, memory.ErrDigest):
		return nil, manifest.Condemn(a, err.Error())
	case errors.Is(err, os.ErrNotExist):
		return nil, manifest.Condemn(a, "its memory is missing")
	}
	return f, err
}

// Held implements driver.MemoryHolder.
func (d *Driver) Held(context.Context) (map[string]int64, error) {
	found, err := proc.Named(d.reaper.prefix + nameHolder)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, id := range found {
		f, _, err := memory.Held(d.holderName(id))
		if err != nil {
			continue // it ends just now
		}
		out[id] = memory.Bytes(f)
		_ = f.Close()
	}
	return out, nil
}

// Unload implements driver.MemoryHolder.
func (d *Driver) Unload(ctx context.Context, a driver.Artifact) error {
	unlock, err := d.loading.Take(ctx, a.ID)
	if err != nil {
		return err
	}
	defer unlock()
	return d.endNamed(ctx, nameHolder+a.ID)
}

// endNamed ends what bears a name, and its cgroup.
func (d *Driver) endNamed(ctx context.Context, name string) error {
	pids, err := d.reaper.processes(name)
	if err != nil {
		return err
	}
	return errors.Join(d.reaper.endAll(ctx, pids), d.cgroups.Group(name).Remove(ctx))
}

// Inspect implements driver.Snapshotter.
func (d *Driver) Inspect(ctx context.Context, a driver.Artifact, verify bool) (driver.SnapshotInfo, error) {
	m, err := manifest.Read(a)
	if err != nil || !verify {
		return m.SnapshotInfo, err
	}
	if m.Live() && m.Volatile {
		f, err := d.memoryOf(ctx, a, m)
		if err != nil {
			return m.SnapshotInfo, err
		}
		_ = f.Close()
	}
	return m.SnapshotInfo, d.checker.Verify(ctx, a, m, true)
}

// Discard implements driver.Snapshotter.
func (d *Driver) Discard(ctx context.Context, a driver.Artifact) error {
	err := errors.Join(d.endNamed(ctx, nameTemplate+a.ID), d.Unload(ctx, a))
	if err != nil {
		return fmt.Errorf("end what holds snapshot %s: %w", a.ID, err)
	}
	for _, name := range []string{fileTemplateQMP, fileTemplateLog} {
		err = errors.Join(err, remove(filepath.Join(a.Dir, name)))
	}
	return errors.Join(err, manifest.Remove(a.Dir))
}

// SweepSnapshots implements driver.Snapshotter.
func (d *Driver) SweepSnapshots(ctx context.Context, known []driver.Artifact) (driver.SweepReport, error) {
	s := sweep{d: d}
	keep := map[string]bool{}
	for _, a := range known {
		keep[nameHolder+a.ID] = true
	}
	d.mu.Lock()
	for id := range d.busy {
		keep[nameTemplate+id], keep[nameHolder+id] = true, true
	}
	d.mu.Unlock()
	found, err := proc.Named(d.reaper.prefix)
	if err != nil {
		return s.report, err
	}
	for pid, name := range found {
		if notVM(name) && !keep[name] {
			if err := d.reaper.endAll(ctx, []int{pid}); err != nil {
				return s.report, err
			}
			s.removed("process", strconv.Itoa(pid), name+" is of no snapshot")
		}
	}
	groups, err := d.cgroups.List()
	if err != nil {
		return s.report, err
	}
	for _, name := range groups {
		if notVM(name) && !keep[name] {
			if err := d.endNamed(ctx, name); err != nil {
				return s.report, err
			}
			s.removed("cgroup", name, "it is of no snapshot")
		}
	}
	s.report.At = time.Now().UTC()
	return s.report, nil
}
