package plane

import (
	"context"

	snapshotroutes "github.com/fusevm/fuse/internal/api/snapshots"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/pausing"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// seedOf finds the snapshot that a create begins with.
func seedOf(tx *state.ReadTx, spec fleet.Spec, sees func(owner string) bool) (lifecycle.Seed, error) {
	snap, err := snapshots.Seed(tx, spec, sees)
	if err != nil {
		return lifecycle.Seed{}, err
	}
	return lifecycle.Seed{SnapshotID: snap.SnapshotID, Digest: snap.Digest, HostID: snap.HostID}, nil
}

// wireSnapshots makes what captures environments and lets them stand still. The
// two share their locks: a machine that is being captured is not paused.
func wireSnapshots(p *Plane, sealer *secrets.Sealer) (err error) {
	locks := &keylock.Lock{}
	p.snapshots, err = snapshots.New(snapshots.Config{
		Store: p.Store, Providers: p.Hosts, Logger: p.log, Opener: sealer, BootKind: lifecycle.SealKindVMBoot, Create: createChild(p),
		Restored: func(ctx context.Context, vm *fleet.VM) { p.back.Reattach(ctx, []*fleet.VM{vm}) },
		Locks:    locks, Admission: p.desk, Quotas: p.quotas, Limits: snapshotLimits(p.settings.Reconcile),
		Done: p.metrics.OperationCompleted, Interval: p.settings.ReconcileInterval,
		Paused: func() (fleet.Pauses, error) { return p.loop.Pauses() },
	})
	if err != nil {
		return err
	}
	p.pausing, err = pausing.New(pausing.Config{
		Store: p.Store, Providers: p.Hosts, Admission: p.desk, Logger: p.log, Locks: locks, Done: p.metrics.OperationCompleted,
	})
	return err
}

// createChild has lifecycle make the environments of forks.
func createChild(p *Plane) func(context.Context, snapshots.Child) (*fleet.VM, error) {
	return func(ctx context.Context, c snapshots.Child) (*fleet.VM, error) {
		return p.life.Create(ctx, lifecycle.CreateRequest{
			TaskID: c.TaskID, Owner: c.Owner, Actor: c.Actor, Spec: c.Spec, Boot: c.Boot, Idempotency: c.Idempotency,
			Fork: &lifecycle.Fork{Ancestors: c.Ancestors, Live: c.Live},
			Progress: func(u lifecycle.Progress) {
				if c.Progress != nil && u.Read != nil {
					c.Progress(*u.Read)
				} else if c.Progress != nil && u.Sub == "" && !u.Done {
					c.Progress(provider.SnapshotProgress{Phase: u.Step})
				}
			},
		})
	}
}

func snapshotLimits(s config.Reconcile) decide.Limits {
	return decide.Limits{Count: s.SnapshotQuotaCount, Bytes: int64(s.SnapshotQuotaMB) << 20}
}

func snapshotRoutes(p *Plane) []web.Route { return snapshotroutes.Routes(p.snapshots, p.keeper) }
