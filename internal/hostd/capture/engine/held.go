package engine

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
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

func (e *Engine) holderName(id string) string { return e.Reaper.Prefix + nameHolder + id }

// hold gives a sealed memory to a process that outlives this one.
func (e *Engine) hold(id string, f *os.File) error {
	pid, err := memory.Hold(f, e.holderName(id))
	if err != nil || !e.Reaper.Cgroups.Works() {
		return err
	}
	// Of its own, or it would end with this program's service.
	g, err := e.Reaper.Cgroups.Create(nameHolder+id, cgroup.Limits{Pids: 4})
	if err != nil {
		return err
	}
	return g.Add(pid)
}

// MemoryOf opens the memory of a live capture: its holder's, or else anew from
// the file. What has no holder and no file is refused for good.
func (e *Engine) MemoryOf(ctx context.Context, a driver.Artifact, m manifest.Manifest) (*os.File, error) {
	unlock, err := e.loading.Take(ctx, a.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, _, err := memory.Held(e.holderName(a.ID))
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
	if f, err = e.LoadMemory(ctx, a, m); err != nil {
		return nil, err
	}
	if err = memory.Seal(ctx, f); err == nil {
		err = e.hold(a.ID, f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// LoadMemory makes memory of the file of a capture, for one machine to write
// on.
func (e *Engine) LoadMemory(ctx context.Context, a driver.Artifact, m manifest.Manifest) (*os.File, error) {
	f, err := memory.Load(ctx, filepath.Join(a.Dir, manifest.Memory), a.ID, m.MemorySum, driver.Tick(ctx, "memory"))
	switch {
	case errors.Is(err, memory.ErrDigest):
		return nil, manifest.Condemn(a, err.Error())
	case errors.Is(err, os.ErrNotExist):
		return nil, manifest.Condemn(a, "its memory is missing")
	}
	return f, err
}

// Held implements driver.MemoryHolder.
func (e *Engine) Held(context.Context) (map[string]int64, error) {
	found, err := proc.Named(e.Reaper.Prefix + nameHolder)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, id := range found {
		f, _, err := memory.Held(e.holderName(id))
		if err != nil {
			continue // it ends just now
		}
		out[id] = memory.Bytes(f)
		_ = f.Close()
	}
	return out, nil
}

// Needs implements driver.MemoryHolder. The template gets all of the guest's
// memory, and the holes are filled of the one that a fork shares.
func (e *Engine) Needs(ctx context.Context, vm driver.VM) (int64, error) {
	facts, err := e.Facts(ctx, vm)
	if err != nil {
		return 0, err
	}
	need := int64(vm.RamMB+vmm.OverheadMB(facts.Accelerator)) << 20
	found, err := proc.Named(e.Reaper.Prefix + vm.UID)
	if err != nil {
		return 0, err
	}
	for pid, rest := range found {
		if rest != "" {
			continue
		}
		holes, err := memory.Holes(pid, int64(vm.RamMB)<<20)
		if err != nil {
			return 0, err
		}
		need += holes
	}
	return need, nil
}

// Unload implements driver.MemoryHolder.
func (e *Engine) Unload(ctx context.Context, a driver.Artifact) error {
	unlock, err := e.loading.Take(ctx, a.ID)
	if err != nil {
		return err
	}
	defer unlock()
	return e.Reaper.EndNamed(ctx, nameHolder+a.ID)
}

// Inspect implements driver.Snapshotter.
func (e *Engine) Inspect(ctx context.Context, a driver.Artifact, verify bool) (driver.SnapshotInfo, error) {
	m, err := manifest.Read(a)
	if err != nil || !verify {
		return m.SnapshotInfo, err
	}
	if m.Live() && m.Volatile {
		f, err := e.MemoryOf(ctx, a, m)
		if err != nil {
			return m.SnapshotInfo, err
		}
		_ = f.Close()
	}
	return m.SnapshotInfo, e.Checker.Verify(ctx, a, m, true)
}

// Discard implements driver.Snapshotter.
func (e *Engine) Discard(ctx context.Context, a driver.Artifact) error {
	err := errors.Join(e.Reaper.EndNamed(ctx, nameTemplate+a.ID), e.Unload(ctx, a))
	if err != nil {
		return fmt.Errorf("end what holds snapshot %s: %w", a.ID, err)
	}
	for _, name := range []string{fileTemplateQMP, fileTemplateLog} {
		err = errors.Join(err, remove(filepath.Join(a.Dir, name)))
	}
	return errors.Join(err, manifest.Remove(a.Dir))
}

// SweepSnapshots implements driver.Snapshotter.
func (e *Engine) SweepSnapshots(ctx context.Context, known []driver.Artifact) (driver.SweepReport, error) {
	var report driver.SweepReport
	keep := map[string]bool{}
	for _, a := range known {
		keep[nameHolder+a.ID] = true
	}
	// Captures begin and end while the host is looked at: what was one's at
	// either end of that is nobody's to take.
	e.keepBusy(keep)
	found, err := proc.Named(e.Reaper.Prefix)
	if err != nil {
		return report, err
	}
	groups, err := e.Reaper.Cgroups.List()
	if err != nil {
		return report, err
	}
	e.keepBusy(keep)
	for pid, name := range found {
		if NotVM(name) && !keep[name] {
			if err := e.Reaper.EndAll(ctx, []int{pid}); err != nil {
				return report, err
			}
			report.Removed = append(report.Removed, driver.Object{Kind: "process", Name: strconv.Itoa(pid), Why: name + " is of no snapshot"})
		}
	}
	for _, name := range groups {
		if NotVM(name) && !keep[name] {
			if err := e.Reaper.EndNamed(ctx, name); err != nil {
				return report, err
			}
			report.Removed = append(report.Removed, driver.Object{Kind: "cgroup", Name: name, Why: "it is of no snapshot"})
		}
	}
	report.At = time.Now().UTC()
	return report, e.Userfault.Settle() // another program may have died with it
}

// keepBusy adds the names of what captures under way have.
func (e *Engine) keepBusy(keep map[string]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.busy {
		keep[nameTemplate+id], keep[nameHolder+id] = true, true
	}
}
