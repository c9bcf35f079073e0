package api

import (
	"context"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// OwnerOf finds whose an object is; ok is false for one that is not there. What
// is meant by a name may depend on who asks, who is in ctx.
type OwnerOf func(ctx context.Context, tx *state.ReadTx, id string) (owner string, ok bool)

// owners are the kinds of objects whose owner decides who may know of them. A
// kind that is not here is there for nobody but those who see everything.
var owners = map[auth.Object]OwnerOf{
	auth.Environment: ownerOfEnvironment,
	auth.Snapshot: func(_ context.Context, tx *state.ReadTx, id string) (string, bool) {
		s, ok := tx.Snapshots().Get(id)
		if !ok {
			return "", false
		}
		return s.Owner, true
	},
}

// ownerOfEnvironment takes what a path may name: an id, live or ended lately,
// or a task's.
func ownerOfEnvironment(_ context.Context, tx *state.ReadTx, id string) (string, bool) {
	if vm, ok := tx.VMs().Get(id); ok {
		return vm.Owner, true
	}
	if life, ok := latestLife(tx, id); ok {
		return life.Owner, true
	}
	if vm, ok := tx.VMs().ByTask(id); ok {
		return vm.Owner, true
	}
	return "", false
}

// allow holds the caller's role to the verb of the route.
func allow(r *web.Request) error {
	p, ok := auth.From(r.Context())
	if !ok {
		return nil // the route asks nobody who they are
	}
	rule, _ := auth.RuleOf(r.Route.Method, r.Route.Pattern)
	if !p.Can(rule.Verb) {
		return p.Refuse(rule.Verb)
	}
	return nil
}

// reveal answers for an object of somebody else as if it were not there. What
// is not there gets the same answer here, so that the two cannot be told apart
// by what a handler would say. Services look once more when they act: an id may
// have another owner by then. Where a rule Lists the handler looks.
func (s *Server) reveal(r *web.Request) error {
	p, ok := auth.From(r.Context())
	rule, _ := auth.RuleOf(r.Route.Method, r.Route.Pattern)
	if !ok || rule.Object == auth.NoObject || rule.Lists || p.SeesAll() {
		return nil
	}
	find := s.cfg.Owners[rule.Object]
	if find == nil {
		find = owners[rule.Object]
	}
	visible := false
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if find != nil {
			owner, ok := find(r.Context(), tx, r.Param)
			visible = ok && p.Sees(owner)
		}
		return nil
	})
	if err != nil || visible {
		return err
	}
	return fleet.Errorf(fleet.CodeNotFound, "%s %.140q: %w", rule.Object, r.Param, sentinels[rule.Object])
}

var sentinels = map[auth.Object]error{
	auth.Environment: fleet.ErrVMNotFound,
	auth.Snapshot:    fleet.ErrSnapshotNotFound,
	auth.Playground:  fleet.ErrPlaygroundNotFound,
	auth.Schedule:    fleet.ErrTrickScheduleNotFound,
	auth.Route:       fleet.ErrNotificationRouteNotFound,
}
