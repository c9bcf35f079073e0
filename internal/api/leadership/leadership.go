// Package leadership holds the route that tells which server leads.
package leadership

import (
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
)

// Status is what a leader tells of itself.
type Status struct {
	Name, Address, Version, FleetID string
	Started                         time.Time
	Term                            int64
	// Left is for how long the lease lasts unless it is renewed; Lasting says
	// that it ends with the process.
	Left          time.Duration
	Lasting       bool
	Store         string // kind
	Revision, Seq uint64
	CommittedAt   time.Time // zero: never
	Standbys      []string
}

// Routes are the routes of the leadership; status reads it.
func Routes(status func() Status) []web.Route {
	return []web.Route{{Method: http.MethodGet, Pattern: "/v1/server", Handle: func(w http.ResponseWriter, _ *web.Request) error {
		web.WriteJSON(w, http.StatusOK, toWire(status(), time.Now()))
		return nil
	}}}
}

func toWire(s Status, now time.Time) gen.ServerStatus {
	out := gen.ServerStatus{
		Role: "leader", Name: s.Name, Address: s.Address, Version: s.Version, FleetID: s.FleetID,
		StartedAt: s.Started.UTC(), UptimeSeconds: int64(now.Sub(s.Started).Seconds()),
		Term: s.Term, LeaseLasting: s.Lasting, Store: s.Store, Revision: s.Revision, EventSeq: s.Seq,
		CommittedAt: s.CommittedAt.UTC(), Standbys: s.Standbys,
	}
	if !s.Lasting {
		out.LeaseExpiresAt = now.Add(s.Left).UTC().Truncate(time.Millisecond)
	}
	if out.Standbys == nil {
		out.Standbys = []string{}
	}
	return out
}
