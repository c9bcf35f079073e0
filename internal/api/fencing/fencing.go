// Package fencing holds the route by which an operator clears away what
// another control plane left on a host.
package fencing

import (
	"context"
	"net/http"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// Purger destroys what another fleet left on a host.
type Purger interface {
	Purge(ctx context.Context, id, fleetID, actor string, force bool) (hosts.Purged, error)
}

type routes struct {
	purger Purger
	keeper web.Keeper
}

// Routes are the routes of fencing.
func Routes(purger Purger, keeper web.Keeper) []web.Route {
	s := routes{purger, keeper}
	return []web.Route{
		{Method: http.MethodPost, Pattern: "/v1/hosts/{id}/purge", BodyLimit: web.BodyLimit, Slow: true, Handle: s.purge},
	}
}

// purge answers a repeat of a request without the counts, which are not kept.
func (s routes) purge(w http.ResponseWriter, r *web.Request) error {
	var body gen.PurgeHost
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	if body.FleetID == "" {
		return fleet.Invalid("fleet_id", "a fleet that has environments there", "take it from foreign_fleets of the host", "is empty")
	}
	var out gen.PurgedHost
	_, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		purged, err := s.purger.Purge(ctx, r.Param, body.FleetID, r.Principal().Actor(), body.Force)
		out = gen.PurgedHost{Destroyed: &purged.Destroyed, Failed: &purged.Failed}
		return idempotency.Answer{Status: http.StatusOK, ResourceID: r.Param}, err
	})
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}
