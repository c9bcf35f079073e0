package plane

import (
	"github.com/fusevm/fuse/internal/api/guest"
	"github.com/fusevm/fuse/internal/api/web"
)

// guestRoutes are the routes that reach into environments.
func guestRoutes(p *Plane) []web.Route {
	return guest.Routes(guest.Config{Sessions: p.guests, Streams: p.streams})
}
