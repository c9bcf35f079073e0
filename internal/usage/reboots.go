package usage

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// tellReboots makes events of the reboots that the row does not know of yet, in
// the commit that tells it of them.
func (s *Service) tellReboots(ctx context.Context, vm fleet.VM, reboots []fleet.Reboot) {
	if len(reboots) == 0 || !reboots[len(reboots)-1].At.After(vm.RebootedAt) {
		return
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.VMs().Get(vm.ID)
		if !ok || row.UID != vm.UID {
			return nil // it has ended meanwhile
		}
		now := *row
		for _, r := range reboots {
			if !r.At.After(now.RebootedAt) {
				continue
			}
			payload, err := json.Marshal(r)
			if err != nil {
				return err
			}
			now.RebootedAt = r.At
			tx.Emit(fleet.Event{
				EntityType: fleet.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMRebooted, Payload: payload,
				Reason: &fleet.Reason{Actor: fleet.ActorHost, Rule: fleet.RuleSeen, Evidence: "the boot id of its guest is another one"},
			})
		}
		if now.RebootedAt.Equal(row.RebootedAt) {
			return nil
		}
		return tx.PutVM(now)
	})
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "reboot of a guest not recorded", slog.String("vm_id", vm.ID), slog.Any("error", err))
	}
}
