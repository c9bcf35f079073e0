package converge

import (
	"cmp"
	"context"
	"maps"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/settings"
)

// Pauses are kept in the journal, so that they outlive the server.
const (
	settingPauses = "reconcile.pauses"
	// maxPauseReason bounds the reason of a pause, in bytes.
	maxPauseReason = 512
	wholeFleetID   = "fleet" // stands for the fleet where a host id may stand
)

func pauses(tx state.Reader) fleet.Pauses {
	if doc, ok := settings.Documents.Get(tx, settingPauses); ok && doc.Pauses != nil {
		return *doc.Pauses
	}
	return fleet.Pauses{}
}

// pauser keeps where destruction is stopped.
type pauser struct{ store Store }

// Pauses are where destruction is stopped now.
func (l *pauser) Pauses() (p fleet.Pauses, err error) {
	err = l.store.View(func(tx *state.ReadTx) error {
		p = pauses(tx)
		return nil
	})
	return p, err
}

// Pause stops what the passes would destroy on one host, or with "" anywhere.
// Looking goes on, and so does what users ask to destroy. A pause that is there
// keeps its time and takes the new reason.
func (l *pauser) Pause(ctx context.Context, hostID, actor, reason string) (fleet.Pauses, error) {
	if len(reason) > maxPauseReason || strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' }) {
		return fleet.Pauses{}, fleet.Invalid("reason", "one line of at most 512 bytes", "say it shorter", "is %d bytes or more than a line", len(reason))
	}
	return l.setPauses(ctx, fleet.EventReconcilePaused, hostID, fleet.Reason{Actor: actor, Rule: fleet.RuleRequested, Evidence: reason}, func(tx *state.Tx, p *fleet.Pauses) error {
		by := fleet.Pause{Actor: actor, Reason: reason, At: tx.Now()}
		if hostID == "" {
			if p.All != nil {
				by.At = p.All.At
			}
			p.All = &by
			return nil
		}
		if _, ok := tx.Hosts().Get(hostID); !ok {
			return fleet.Errorf(fleet.CodeNotFound, "host %.80q: %w", hostID, fleet.ErrHostNotFound).With(fleet.DetailHostID, hostID)
		}
		if before, ok := p.Hosts[hostID]; ok {
			by.At = before.At
		}
		p.Hosts = maps.Clone(p.Hosts)
		if p.Hosts == nil {
			p.Hosts = map[string]fleet.Pause{}
		}
		p.Hosts[hostID] = by
		return nil
	})
}

// Resume ends the pause of one host, or with "" that of the fleet; pauses of
// single hosts stay. One that is not there is no error.
func (l *pauser) Resume(ctx context.Context, hostID, actor string) (fleet.Pauses, error) {
	return l.setPauses(ctx, fleet.EventReconcileResumed, hostID, fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}, func(tx *state.Tx, p *fleet.Pauses) error {
		if hostID == "" {
			p.All = nil
			return nil
		}
		p.Hosts = maps.Clone(p.Hosts)
		delete(p.Hosts, hostID)
		// Hosts that are gone need no pause.
		maps.DeleteFunc(p.Hosts, func(id string, _ fleet.Pause) bool { _, ok := tx.Hosts().Get(id); return !ok })
		return nil
	})
}

func (l *pauser) setPauses(ctx context.Context, typ, hostID string, why fleet.Reason, change func(*state.Tx, *fleet.Pauses) error) (fleet.Pauses, error) {
	var now fleet.Pauses
	_, err := l.store.Update(ctx, func(tx *state.Tx) error {
		now = pauses(tx)
		if err := change(tx, &now); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityReconcile, EntityID: cmp.Or(hostID, wholeFleetID), Type: typ, Reason: &why})
		if !now.Any() {
			return settings.Documents.Delete(tx, settingPauses)
		}
		return settings.Documents.Put(tx, settingPauses, &fleet.Setting{Pauses: &now})
	})
	return now, err
}
