// Package raise brings a machine up: from the capture that it is to begin with,
// from the golden capture of its shape, or by booting it. What goes on from
// memory is renewed before it counts.
package raise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/admit"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/golden"
	"github.com/fusevm/fuse/internal/hostd/snapstore"
	"github.com/fusevm/fuse/internal/hostd/thaw"
)

// Source is what a machine begins with; the zero value is its image.
type Source struct {
	// Golden says that a golden capture may stand in for the boot.
	Golden bool
	// SnapshotID names a capture of FleetID; Digest is the caller's record of it.
	FleetID, SnapshotID, Digest string
	// Live goes on from the capture's memory.
	Live bool
	// Files are written before any process of the capture goes on.
	Files []fleet.GuestFile
	// Tell is told how far the reading of the capture is; may be nil.
	Tell func(driver.Progress)
}

// Up is a machine that runs.
type Up struct {
	Instance    driver.Instance
	Mode        fleet.BootMode
	Certificate *fleet.Certificate
}

// Raiser brings machines up. Driver is needed.
type Raiser struct {
	Driver driver.Driver
	Store  *snapstore.Store
	Golden *golden.Keeper // nil: none
	Memory *admit.Gate    // nil admits everything
	// Count counts what became of a golden capture: used, none or failed.
	Count func(result string)
	Log   *slog.Logger
}

const (
	stepThaw  = "thaw" // in which a guest is renewed
	undoLimit = time.Minute
	// loadWait is how long a machine that could boot as well waits for memory that
	// others may give back.
	loadWait = 2 * time.Second
)

// Start brings a machine up. On an error everything the driver made is undone,
// but its directory.
func (r *Raiser) Start(ctx context.Context, vm driver.VM, id driver.Identity, src Source, step func(string)) (Up, error) {
	if src.SnapshotID != "" {
		return r.seed(ctx, vm, id, src, step)
	}
	if src.Golden && r.Golden != nil {
		up, err := r.golden(ctx, vm, id, step)
		if err == nil || ctx.Err() != nil {
			return up, err
		}
	}
	inst, err := r.Driver.Start(ctx, vm, id, step)
	if err == nil && src.Golden {
		r.Golden.Want(ctx, vm)
	}
	return Up{Instance: inst, Mode: fleet.BootCold}, err
}

var errNone = errors.New("there is no golden snapshot of this shape yet")

// golden goes on from the golden capture of the machine's shape.
func (r *Raiser) golden(ctx context.Context, vm driver.VM, id driver.Identity, step func(string)) (Up, error) {
	found, ok := r.Golden.Find(ctx, vm)
	if !ok {
		r.count("none")
		return Up{}, errNone
	}
	snapper, ok := r.Driver.(driver.Snapshotter)
	if !ok {
		found.Release(nil)
		return Up{}, errNone
	}
	wait, over := context.WithTimeout(ctx, loadWait)
	leave, err := r.Memory.Load(wait, found.Artifact.ID, found.Bytes)
	over()
	if err != nil {
		found.Release(nil)
		r.count("failed")
		return Up{}, err
	}
	defer leave()
	inst, cert, err := r.revive(ctx, snapper, found.Artifact, vm, id, thaw.Request{Cause: fleet.ThawGolden, Grow: true}, step)
	if err == nil && cert == nil {
		err = errors.Join(errors.New("the golden snapshot has no memory"), inst.Close(), r.Driver.Remove(ctx, vm))
	}
	if ctx.Err() != nil {
		found.Release(nil)
		return Up{}, errors.Join(err, context.Cause(ctx))
	}
	if errors.Is(err, thaw.ErrLate) {
		found.Release(nil)
	} else {
		found.Release(err)
	}
	if err != nil {
		r.count("failed")
		r.Log.Warn("golden snapshot not used, the machine boots", "vm_id", vm.ID, "uid", vm.UID, "key", found.Key, "error", err)
		return Up{}, err
	}
	r.count("used")
	return Up{Instance: inst, Mode: fleet.BootGolden, Certificate: cert}, nil
}

func (r *Raiser) count(result string) {
	if r.Count != nil {
		r.Count(result)
	}
}

// seed begins with a capture.
func (r *Raiser) seed(ctx context.Context, vm driver.VM, id driver.Identity, src Source, step func(string)) (Up, error) {
	snapper, ok := r.Driver.(driver.Snapshotter)
	if !ok || r.Store == nil {
		return Up{}, fleet.Errorf(fleet.CodeUnimplemented, "%w: the driver of this host makes no snapshots", fleet.ErrSnapshotUnsupported)
	}
	rec, release, err := r.Store.Use(src.FleetID, src.SnapshotID, vm.ID)
	if err != nil {
		return Up{}, err
	}
	defer release()
	if err := Check(rec, src.Digest, src.Live); err != nil {
		return Up{}, err
	}
	if err := failpoint.Hit("hostd.fork.driver"); err != nil {
		return Up{}, err
	}
	if src.Live {
		leave, err := r.Memory.Load(ctx, r.Store.Artifact(rec.ID).ID, rec.Info.MemoryBytes)
		if err != nil {
			return Up{}, err
		}
		defer leave()
	}
	inst, cert, err := r.revive(driver.Telling(ctx, src.Tell), snapper, r.Store.Artifact(rec.ID), vm, id,
		thaw.Request{Cause: fleet.ThawFork, Files: src.Files, Grow: vm.StorageGB > rec.Info.Source.StorageGB}, step)
	if err != nil {
		return Up{}, Explain(r.Store, rec.ID, err)
	}
	return Up{Instance: inst, Mode: fleet.BootSeed, Certificate: cert}, nil
}

// Check compares a capture with what its user has on record.
func Check(rec snapstore.Record, digest string, live bool) error {
	kind := fleet.SnapshotKindDisk
	if live {
		kind = fleet.SnapshotKindLive
	}
	switch {
	case digest != "" && digest != rec.Info.Digest:
		return snapstore.Corrupt(rec.ID, fmt.Sprintf("this host has other bytes by that name: %.24s… instead of %.24s…", rec.Info.Digest, digest))
	case kind != rec.Info.Kind && !live:
		return fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s has memory, and a machine cannot begin with its disk alone", fleet.ErrSnapshotNotSeedable, rec.ID).
			With(fleet.DetailRemedy, "fork it live, or take a snapshot of the disk")
	case kind != rec.Info.Kind:
		return fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s is of the disk alone", fleet.ErrSnapshotInvalidState, rec.ID).
			With(fleet.DetailRemedy, "fork it without live, or take a live snapshot")
	}
	return nil
}

// revive starts a machine from a capture, and renews it where it goes on from
// memory. On an error everything the driver made is undone.
func (r *Raiser) revive(ctx context.Context, snapper driver.Snapshotter, from driver.Artifact, vm driver.VM, id driver.Identity, req thaw.Request, step func(string)) (driver.Instance, *fleet.Certificate, error) {
	revived, err := snapper.Fork(ctx, vm, id, from, step)
	if err != nil {
		return nil, nil, err
	}
	cert, err := r.renew(ctx, revived, vm, id, req, step)
	if err == nil {
		err = failpoint.Hit("hostd.fork.thawed")
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		return nil, nil, errors.Join(err, revived.Instance.Close(), r.Driver.Remove(undo, vm))
	}
	return revived.Instance, cert, nil
}

func (r *Raiser) renew(ctx context.Context, revived driver.Revived, vm driver.VM, id driver.Identity, req thaw.Request, step func(string)) (*fleet.Certificate, error) {
	guest := revived.Instance.Guest()
	agent, ok := thaw.Of(guest)
	if !revived.Live || !ok && revived.ThawKey == "" { // a simulated guest has nothing to renew
		var cert *fleet.Certificate
		if ok {
			info, err := guest.Info(ctx)
			if err != nil {
				return nil, err
			}
			if cert, err = thaw.Booted(req.Cause, info); err != nil {
				return nil, err
			}
		}
		if len(req.Files) == 0 {
			return cert, nil
		}
		return cert, guest.WriteFiles(ctx, req.Files)
	}
	if step != nil {
		step(stepThaw)
	}
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "%w: the guest agent in the snapshot cannot be renewed", fleet.ErrSnapshotIncompatible)
	}
	req.Key, req.VM, req.Identity = revived.ThawKey, vm, id
	req.Address, req.Nameservers, req.SSHKeys = revived.Guest.Address, revived.Guest.Nameservers, revived.Guest.SSHKeys
	cert, err := thaw.Do(ctx, agent, req)
	if err != nil {
		return nil, err
	}
	return &cert, nil
}

// Explain gives an error of a capture's driver its code, and puts a capture that
// is damaged into quarantine.
func Explain(store *snapstore.Store, id string, err error) error {
	var damaged *driver.DamagedError
	var differs *driver.IncompatibleError
	switch {
	case errors.As(err, &damaged):
		if _, qerr := store.Damaged(id, damaged.Why); qerr != nil {
			err = errors.Join(err, qerr)
		}
		return errors.Join(snapstore.Corrupt(id, damaged.Why), err)
	case errors.As(err, &differs):
		return fleet.Errorf(fleet.CodeConflict, "%w: %s", fleet.ErrSnapshotIncompatible, differs.Error()).
			With(fleet.DetailRemedy, "use the host it was taken on as it was then, or take it anew")
	}
	return Full(err)
}

// Full gives the error of a disk that is full its code.
func Full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fleet.Errorf(fleet.CodeUnavailable, "%w: the host's disk is full", fleet.ErrNoCapacity).
			With(fleet.DetailScope, "disk").With(fleet.DetailRemedy, "delete snapshots or environments on this host")
	}
	return err
}
