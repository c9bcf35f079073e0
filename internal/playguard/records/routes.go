package records

import (
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/state"
)

// Route writes the routes of a definition into its playground's record. A host
// name that leads to another playground already is a conflict.
func Route(tx state.Reader, p *Playground, file []byte) error {
	p.Routes = compose.Routed(file)
	for _, r := range p.Routes {
		for _, o := range Playgrounds.All(tx) {
			if o.ID == p.ID {
				continue
			}
			for _, other := range o.Routes {
				if other.Host != r.Host {
					continue
				}
				whose := "a playground of somebody else"
				if o.Owner == p.Owner {
					whose = "playground " + o.Name
				}
				return fleet.Errorf(fleet.CodeConflict, "%s leads to %s already", r.Host, whose).
					With(fleet.DetailReason, "route").With(fleet.DetailScope, r.Host).With(fleet.DetailRemedy, "take another host name for the route, such as one with {name} or {id} in it")
			}
		}
	}
	return nil
}
