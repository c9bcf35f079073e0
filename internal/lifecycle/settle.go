package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/persist"
	"github.com/fusevm/fuse/internal/state"
)

// settleCreate makes the environment running if the claim still holds.
func (s *recipe) settleCreate(_ context.Context, b *build) error {
	var row fleet.VM
	commit, err := s.cfg.Store.Update(s.base, func(tx *state.Tx) error {
		var err error
		if row, err = b.row(&tx.ReadTx); err != nil {
			return err
		}
		row.State, row.UpdatedAt = fleet.VMStateRunning, tx.Now()
		row.ImageDigest, row.Boot = b.created.ImageDigest, b.record
		row.SetEndpoints(b.endpoints)
		row.URL = cmp.Or(row.URL, b.created.Environment.URL())
		row.Certificate = b.created.Certificate
		row.Boot.Steps = slices.Clone(row.Boot.Steps) // without the room to grow, for as long as the row lives
		if err := tx.PutVM(row); err != nil {
			return err
		}
		task := fleet.Task{TaskID: row.TaskID, VMID: row.ID, UID: row.UID, RunStatus: fleet.TaskRunRunning, AssignedAt: row.CreatedAt, UpdatedAt: tx.Now()}
		if err := tx.PutTask(task); err != nil {
			return err
		}
		if b.startupLog != nil {
			if err := tx.PutStartupLog(*b.startupLog); err != nil {
				return err
			}
		}
		if err := b.settleIdempotency(tx, true); err != nil {
			return err
		}
		running := ending.VMEvent(&row, fleet.EventVMRunning, byItself(fleet.RuleSettled))
		running.Payload = payload(row.Boot)
		tx.Emit(running)
		tx.Emit(ending.TaskEvent(task, fleet.EventTaskRunning, byItself(fleet.RuleSettled)))
		if n := len(b.boot.Secrets); n > 0 {
			tx.Emit(fleet.Event{
				EntityType: fleet.EntitySecrets, EntityID: row.ID, UID: row.UID, Type: fleet.EventSecretsDeployed, Reason: running.Reason,
				Payload: payload(map[string]any{"count": n, "names": slices.Sorted(maps.Keys(b.boot.Secrets))}),
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	row.Revision = commit.Revision
	b.vm = &row
	return nil
}

// settleIdempotency completes the create's record, or withdraws it so that a
// repeated request creates anew.
func (b *build) settleIdempotency(tx *state.Tx, done bool) error {
	if b.idempotency == nil {
		return nil
	}
	rec, ok := tx.Idempotency(b.idempotency.Owner, b.idempotency.Key)
	if !ok || rec.ResourceID != b.uid {
		return nil
	}
	if !done {
		return tx.DeleteIdempotency(rec.Owner, rec.Key)
	}
	settled := *rec
	settled.Done = true
	return tx.PutIdempotency(settled)
}

// claimFailure records durably that a create failed and why, before anything
// is undone at the host.
func (s *recipe) claimFailure(ctx context.Context, b *build, cause error) error {
	claimed := b.generation + 1
	err := s.persist(ctx, func(tx *state.Tx) error {
		row, err := b.row(&tx.ReadTx)
		if err != nil {
			return err
		}
		row.Generation = claimed
		row.LastError = message(cause)
		row.Boot = b.record
		reason := b.failure(cause)
		if err := ending.Claim(tx, &row, reason, fleet.TaskRunFailed); err != nil {
			return err
		}
		return b.recordFailure(tx, &row, cause)
	})
	if err == nil {
		b.generation = claimed
	}
	return err
}

func (b *build) failure(cause error) fleet.Reason {
	evidence := message(cause)
	var fe *fleet.Error
	if errors.As(cause, &fe) && fe.Details[fleet.DetailStep] != "" {
		evidence = fmt.Sprintf("step %s: %s", fe.Details[fleet.DetailStep], evidence)
	}
	return fleet.Reason{Actor: fleet.ActorLifecycle, Rule: fleet.RuleProvisionFailed, Evidence: evidence}
}

// recordFailure keeps what a failed create left to read.
func (b *build) recordFailure(tx *state.Tx, row *fleet.VM, cause error) error {
	if b.startupLog != nil {
		if err := tx.PutStartupLog(*b.startupLog); err != nil {
			return err
		}
	}
	failed := ending.VMEvent(row, fleet.EventVMFailed, b.failure(cause))
	failed.State, failed.Error, failed.Payload = "", message(cause), payload(b.record)
	tx.Emit(failed)
	return b.settleIdempotency(tx, false)
}

// undoPlace removes the row, which returns what it had reserved, and keeps the
// record of the life.
func (s *recipe) undoPlace(ctx context.Context, b *build, cause error) error {
	return s.persist(ctx, func(tx *state.Tx) error {
		vm, ok := tx.VMs().Get(b.id)
		if !ok || vm.UID != b.uid {
			return nil
		}
		row := *vm
		if row.State == fleet.VMStateProvisioning {
			// Nothing was made at a host: the claim alone is undone.
			reason := b.failure(cause)
			row.End, row.LastError = &reason, message(cause)
			if err := ending.EndTask(tx, &row, reason, fleet.TaskRunFailed); err != nil {
				return err
			}
			if err := b.recordFailure(tx, &row, cause); err != nil {
				return err
			}
		}
		return ending.Remove(tx, row)
	})
}

// persist is Update for work that must not end half done: while the store
// cannot be written it waits and tries again, until ctx ends or leadership has
// ended.
func (s *core) persist(ctx context.Context, fn func(*state.Tx) error) error {
	return persist.Update(ctx, s.cfg.Store, fn)
}
