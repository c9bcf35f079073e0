package hostd

import (
	"context"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/ops"
)

// flight is an operation of this host under way.
type flight = ops.Flight[answer]

// phase is where a life stands on this host.
type phase int

const (
	phaseCreating  phase = iota
	phaseUnadopted       // an earlier process made it; not yet taken hold of
	phaseRunning
	phaseStopped   // with an exit record, until it is destroyed
	phasePaused    // set aside: neither process nor instance
	phaseCondemned // to be removed; a removal runs or is tried again
)

func (p phase) String() string {
	return [...]string{"creating", "unadopted", "running", "stopped", "paused", "condemned"}[p]
}

// life is one VM of the registry. owner never changes; the rest is guarded by
// the registry's lock.
type life struct {
	owner   owner
	phase   phase
	inst    driver.Instance
	rests   bool // its memory is given back
	exit    *fleet.ExitRecord
	answers []answer
	flights map[string]*flight // creates and drains under way, by verb and op id
	removal *flight
	ctx     context.Context // ends with the VM, or once it is to end
	end     context.CancelCauseFunc
}

func newLife(o owner, p phase) *life {
	l := &life{owner: o, phase: p, flights: map[string]*flight{}}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}
