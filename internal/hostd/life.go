package hostd

import (
	"context"
	"errors"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
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
	phaseCondemned // to be removed; a removal runs or is tried again
)

func (p phase) String() string {
	return [...]string{"creating", "unadopted", "running", "stopped", "condemned"}[p]
}

// Causes with which a life's context ends.
var (
	errDestroyed = errors.New("the environment is being destroyed")
	errStopped   = errors.New("the environment has stopped")
)

// life is one VM of the registry. owner never changes; the rest is guarded by
// the registry's lock.
type life struct {
	owner   owner
	phase   phase
	inst    driver.Instance
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

// answered returns the recorded answer to an operation.
func answered(answers []answer, verb, opID string) (answer, bool) {
	for _, a := range answers {
		if a.Verb == verb && a.OpID == opID {
			return a, true
		}
	}
	return answer{}, false
}

// answerError is an error as it is kept: what callers saw the first time.
type answerError struct {
	Code     string            `json:"code"`
	Message  string            `json:"message"`
	Details  map[string]string `json:"details,omitempty"`
	Sentinel string            `json:"sentinel,omitempty"`
}

func keepError(err error) *answerError {
	if err == nil {
		return nil
	}
	i := hostwire.Info(err)
	return &answerError{i.GetCode(), i.GetMessage(), i.GetDetails(), i.GetSentinel()}
}

func (a answer) failure() error {
	if a.Error == nil {
		return nil
	}
	return hostwire.FromInfo(&hostwirev1.ErrorInfo{
		Code: a.Error.Code, Message: a.Error.Message, Details: a.Error.Details, Sentinel: a.Error.Sentinel,
	})
}
