package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// request is what the create asks of admission.
func (b *build) request() admission.Request {
	r := admission.Request{Kind: admission.Create, Spec: b.spec, Owner: b.owner, KeyID: b.keyID, Refused: b.refused}
	if b.fork != nil {
		r.Kind = admission.Fork
	}
	if b.hostID != "" {
		r.Holder = b.id
	}
	return r
}

// hostCreate has a host make the VM. A host knows better than its record what
// it has room for: when it refuses, the next best is asked, up to Limits.Tries
// hosts in all.
func (s *recipe) hostCreate(ctx context.Context, b *build) error {
	for {
		err := s.createAt(ctx, b)
		if err == nil || !errors.Is(err, fleet.ErrNoCapacity) || ctx.Err() != nil || len(b.refused)+1 >= s.cfg.Limits.Tries {
			return err
		}
		if next := s.moveOn(ctx, b, err); next != nil {
			return next
		}
	}
}

// moveOn takes the reservation from the host that refused to another, in one
// transaction under a new generation. The first has to confirm before that
// nothing is left there: a life may be on one host only.
func (s *recipe) moveOn(ctx context.Context, b *build, refusal error) error {
	if err := s.destroyAtHost(ctx, b.hostID, b.ref()); err != nil {
		s.log.Warn("host refused a create and does not confirm that nothing is left of it",
			slog.String("vm_id", b.id), slog.String("host_id", b.hostID), slog.Any("error", err))
		return refusal
	}
	if err := failpoint.Hit("lifecycle.create.move_on"); err != nil {
		return err
	}
	refused := maps.Clone(b.refused)
	if refused == nil {
		refused = map[string]string{}
	}
	refused[b.hostID] = b.redact(message(refusal))
	b.refused = refused
	question := s.cfg.Admission.Prepare(b.request())
	var row fleet.VM
	commit, err := s.cfg.Store.Update(s.base, func(tx *state.Tx) error {
		var err error
		if row, err = b.row(&tx.ReadTx); err != nil {
			return err
		}
		placed, err := question.Admit(&tx.ReadTx)
		if err != nil {
			return nobodyElse(err, refused[b.hostID])
		}
		decision := placed.Decision
		away := placementEvent(&row, fleet.EventVMHostRefused, events.HostRefused{HostID: b.hostID, Why: refused[b.hostID], Try: len(refused)})
		away.HostID = b.hostID
		tx.Emit(away)
		row.HostID, row.Spec, row.Placement = decision.HostID, placed.Spec, &decision
		row.Generation++
		tx.Emit(placementEvent(&row, fleet.EventVMScheduled, admission.Told(placed.Placement)))
		return tx.PutVM(row)
	})
	if err != nil {
		return err
	}
	s.log.Warn("host refused a create, another is asked", slog.String("vm_id", b.id), slog.String("host_id", b.hostID),
		slog.String("next_host_id", row.HostID), slog.String("task_id", b.taskID), slog.Any("error", refusal))
	row.Revision = commit.Revision
	b.hostID, b.generation, b.vm, b.spec = row.HostID, row.Generation, &row, row.Spec
	return nil
}

// nobodyElse says why the last host refused and that no other takes it. The
// names of the others are kept out of the text, which stays with the environment
// for its owner to read; the rest is for who made the call.
func nobodyElse(err error, refusal string) error {
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		return fmt.Errorf("no other host takes it: %w", err)
	}
	out := fleet.Wrap(fe.Code, err, refusal+"; no other host takes it: "+cmp.Or(fe.Details[fleet.DetailReason], "none qualifies"))
	for k, v := range fe.Details {
		out = out.With(k, v)
	}
	return out
}
