package hostd

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	"github.com/fusevm/fuse/internal/hostwire"
)

// Claim raises the fleet's mark when a term begins.
func (h *Host) Claim(c Claim) error {
	err := h.core.reg.marks.Claim(c, inhabited(h.core.reg))
	switch {
	case err == nil && c.AcceptTerm != 0:
		h.core.log.Warn("another state store leads the fleet now, as its operator confirmed", slog.String("fleet_id", c.FleetID),
			slog.Int64("term", c.Term), slog.Int64("replaced_term", c.AcceptTerm))
	case err == nil:
		h.core.log.Info("term claimed", slog.String("fleet_id", c.FleetID), slog.Int64("term", c.Term))
	case fleet.CodeOf(err) == fleet.CodeConflict && !errors.Is(err, hostwire.ErrNeedProof) && firstRefusal(h.core.reg, c):
		h.core.log.Warn("claim refused", slog.String("fleet_id", c.FleetID), slog.Int64("term", c.Term), slog.Any("error", err))
	}
	return err
}

// firstRefusal is whether the last refused claim was another one: a server
// that is refused asks again with each of its looks.
func firstRefusal(r *registry, c Claim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.refused
	r.refused = c.Fence
	r.refused.Revision = 0
	return before != r.refused
}

// inhabited tells which fleets have VMs here.
func inhabited(r *registry) func(fleetID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := map[string]bool{}
	for _, l := range r.lives {
		have[l.owner.FleetID] = true
	}
	return func(id string) bool { return have[id] }
}

// purgeQuiet is how long a fleet has to have been silent before another may
// clear away what it left.
const purgeQuiet = 5 * time.Minute

// purgeAtOnce bounds the removals at a time of one purge.
const purgeAtOnce = 16

// PurgeFleet destroys the VMs of another fleet, whose control plane is gone. It
// is refused while that one has called within a few minutes, or may have; force
// overrides that. The fleet's mark stays.
func (h *Host) PurgeFleet(ctx context.Context, f Fence, fleetID string, force bool) (destroyed, failed int, err error) {
	reg := h.core.reg
	if err := reg.marks.Check(f); err != nil {
		return 0, 0, err
	}
	switch {
	case fleetID == "":
		return 0, 0, fleet.Errorf(fleet.CodeInvalidArgument, "the purge names no fleet")
	case fleetID == f.FleetID:
		return 0, 0, fleet.Errorf(fleet.CodeInvalidArgument, "%s is the fleet of the server that asks", fleetID).
			With(fleet.DetailRemedy, "destroy its environments instead")
	case !force && reg.marks.SeenSince(fleetID, time.Now().Add(-purgeQuiet)):
		return 0, 0, refusal.Conflict("fleet %s was led on this host within the last %s, or may have been", fleetID, purgeQuiet).
			With(fleet.DetailReason, "fleet_active").
			With(fleet.DetailRemedy, "make sure that its server is gone, then wait or use --force")
	}
	doomed := reg.list(func(l *life) bool { return l.owner.FleetID == fleetID })
	h.core.log.Warn("environments of another fleet are destroyed on an operator's word", slog.String("fleet_id", fleetID),
		slog.String("asked_by", f.FleetID), slog.Int("environments", len(doomed)))
	var gone, left atomic.Int64
	var g errgroup.Group
	g.SetLimit(purgeAtOnce)
	for _, l := range doomed {
		g.Go(func() error {
			reg.mu.Lock()
			fl, err := h.removalLocked(l)
			reg.mu.Unlock()
			if err == nil {
				_, err = fl.Wait(ctx, nil)
			}
			if err != nil {
				left.Add(1)
				return err
			}
			gone.Add(1)
			return nil
		})
	}
	err = errors.Join(g.Wait(), h.core.snaps.Purge(ctx, fleetID))
	if ctx.Err() != nil {
		return int(gone.Load()), int(left.Load()), context.Cause(ctx)
	}
	if err != nil {
		h.core.log.Error("not all environments of another fleet could be destroyed yet", slog.String("fleet_id", fleetID), slog.Any("error", err))
	}
	return int(gone.Load()), int(left.Load()), nil
}
