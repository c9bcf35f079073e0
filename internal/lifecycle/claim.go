package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
)

func (s *recipe) makeCredentials(_ context.Context, b *build) error {
	var err error
	if b.creds, err = secrets.NewVMCredentials(b.id); err != nil {
		return fmt.Errorf("make credentials: %w", err)
	}
	if b.tokenSealed, err = s.cfg.Sealer.Seal(SealKindVMToken, b.uid, []byte(b.creds.Token)); err != nil {
		return fmt.Errorf("seal token: %w", err)
	}
	boot, err := json.Marshal(b.boot)
	if err != nil {
		return fmt.Errorf("encode boot options: %w", err)
	}
	if b.bootSealed, err = s.cfg.Sealer.Seal(SealKindVMBoot, b.uid, boot); err != nil {
		return fmt.Errorf("seal boot options: %w", err)
	}
	return nil
}

// place is the claim: one transaction that refuses a duplicate, picks a host,
// reserves it and writes row, task and events. The commit's outcome must be
// known, so the caller's leaving does not reach it.
func (s *recipe) place(ctx context.Context, b *build) error {
	asker, _ := auth.From(ctx)
	b.keyID = asker.KeyID
	question, sees := s.cfg.Admission.Prepare(b.request()), auth.Visible(ctx)
	var row fleet.VM
	var refused []string
	commit, err := s.cfg.Store.Update(s.base, func(tx *state.Tx) error {
		if err := refuseDuplicate(tx, b, sees); err != nil {
			return err
		}
		if b.spec.SeedSnapshotID != "" {
			seed, err := s.cfg.Seed(&tx.ReadTx, b.spec, sees)
			if err != nil {
				return err
			}
			b.seed, question.Spec.PinnedHostID = seed, seed.HostID
		}
		placed, err := question.Admit(&tx.ReadTx)
		if err != nil {
			return err
		}
		refused = admission.Named(placed.Placement)
		decision := placed.Decision // alone: the rest of placed holds a host's row
		row = fleet.VM{
			ID: b.id, UID: b.uid, Generation: b.generation, Owner: b.owner, KeyID: b.keyID,
			State: fleet.VMStateProvisioning, TaskID: b.taskID, HostID: placed.Host.ID, Spec: placed.Spec,
			AuthTokenSealed: b.tokenSealed, BootSealed: b.bootSealed, CertPEM: b.creds.CertPEM,
			Probed: b.boot.Healthcheck != nil, DrainCommand: fleet.DefaultFusedDrainCommand, Placement: &decision,
			CreatedAt: tx.Now(), UpdatedAt: tx.Now(),
		}
		return claimRows(tx, b, row, admission.Told(placed.Placement))
	})
	if err != nil {
		return err
	}
	row.Revision = commit.Revision
	b.hostID, b.vm, b.spec = row.HostID, &row, row.Spec
	s.log.Info("environment claimed", slog.String("vm_id", b.id), slog.String("uid", b.uid),
		slog.String("host_id", b.hostID), slog.String("task_id", b.taskID), slog.Any("refused", refused))
	return nil
}

func claimRows(tx *state.Tx, b *build, row fleet.VM, placed events.Placement) error {
	if err := tx.PutVM(row); err != nil {
		return err
	}
	task := fleet.Task{TaskID: row.TaskID, VMID: row.ID, UID: row.UID, RunStatus: fleet.TaskRunAssigned, AssignedAt: tx.Now(), UpdatedAt: tx.Now()}
	if err := tx.PutTask(task); err != nil {
		return err
	}
	if b.idempotency != nil {
		rec := *b.idempotency
		rec.Status, rec.ResourceID, rec.Done, rec.CreatedAt = cmp.Or(rec.Status, http.StatusCreated), row.UID, false, tx.Now()
		if err := tx.PutIdempotency(rec); err != nil {
			return err
		}
	}
	asked := fleet.Reason{Actor: b.actor, Rule: fleet.RuleRequested}
	tx.Emit(ending.VMEvent(&row, fleet.EventVMProvisioning, asked))
	tx.Emit(ending.TaskEvent(task, fleet.EventTaskAssigned, asked))
	tx.Emit(placementEvent(&row, fleet.EventVMScheduled, placed))
	return nil
}

func placementEvent(row *fleet.VM, typ string, told any) fleet.Event {
	e := ending.VMEvent(row, typ, byItself(fleet.RulePlacement))
	e.State, e.Payload = "", payload(told)
	return e
}

// refuseDuplicate names the environment that has the task to those who may know
// of it. Task ids are the whole fleet's, so others hear that it is taken.
func refuseDuplicate(tx *state.Tx, b *build, sees func(owner string) bool) error {
	vm, ok := tx.VMs().ByTask(b.taskID)
	if !ok {
		vm, ok = tx.VMs().Get(b.id)
	}
	if !ok {
		return nil
	}
	if !sees(vm.Owner) {
		return fleet.Errorf(fleet.CodeConflict, "task %q: %w", b.taskID, fleet.ErrTaskAlreadyAssigned).
			With(fleet.DetailScope, "task_id").With(fleet.DetailRemedy, "choose another task_id")
	}
	err := fleet.Errorf(fleet.CodeConflict, "task %q: %w to environment %s, which is %s", b.taskID, fleet.ErrTaskAlreadyAssigned, vm.ID, vm.State).
		With(fleet.DetailScope, vm.ID)
	if vm.State != fleet.VMStateDestroying {
		return err.With(fleet.DetailRemedy, "use that environment, destroy it, or choose another task_id")
	}
	return err.With(fleet.DetailHostID, vm.HostID).
		With(fleet.DetailRemedy, fmt.Sprintf("wait until host %s has confirmed its end, or choose another task_id", vm.HostID))
}

// byItself is the reason of what the control plane does on the way to what was
// asked of it.
func byItself(rule string) fleet.Reason { return fleet.Reason{Actor: fleet.ActorLifecycle, Rule: rule} }

// payload encodes what an event tells beside its columns. The values are our
// own plain structs and maps, which always encode.
func payload(v any) json.RawMessage {
	doc, err := json.Marshal(v)
	if err != nil {
		panic("lifecycle: event payload: " + err.Error())
	}
	return doc
}
