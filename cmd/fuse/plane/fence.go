package plane

import (
	"github.com/fusevm/fuse/internal/api/fencing"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// fencer adapts the state owner to what providers ask before a mutation.
type fencer struct {
	store  *state.Store
	accept bool // --accept-store
	// volatile is a store in memory that begins again with the same fleet.
	volatile bool
}

// Fence implements provider.Fencer.
func (f fencer) Fence() (provider.Fence, error) {
	fleetID, term, claim, fingerprint, err := f.store.Fence()
	revision, _ := f.store.Head()
	return provider.Fence{FleetID: fleetID, Term: term, ClaimToken: claim, Fingerprint: fingerprint, Revision: revision, Volatile: f.volatile}, err
}

// Proof implements provider.Prover.
func (f fencer) Proof(term int64) provider.Proof {
	token, revision := f.store.Proof(term)
	return provider.Proof{Token: token, Revision: revision}
}

// Accepted implements provider.Prover.
func (f fencer) Accepted() bool { return f.accept }

func (p *Plane) fencingRoutes() []web.Route { return fencing.Routes(p.Hosts, p.keeper) }
