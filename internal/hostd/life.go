package hostd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

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

// errDestroyed is the cause with which a life's context ends.
var errDestroyed = errors.New("the environment is being destroyed")

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
	ctx     context.Context // ends with errDestroyed once the life is to end
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

// flight is an operation under way. It goes on without those who wait for it.
type flight struct {
	done chan struct{}
	// Valid once done is closed.
	ans answer
	err error

	mu      sync.Mutex
	steps   []stepMark
	changed chan struct{} // closed and replaced when a step begins
}

type stepMark struct {
	name string
	at   time.Time
}

func newFlight() *flight {
	return &flight{done: make(chan struct{}), changed: make(chan struct{})}
}

func (f *flight) land(ans answer, err error) {
	f.ans, f.err = ans, err
	close(f.done)
}

func (f *flight) step(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, stepMark{name, time.Now()})
	close(f.changed)
	f.changed = make(chan struct{})
}

// stepsFrom returns the steps after the first n, and a channel that closes
// when another begins.
func (f *flight) stepsFrom(n int) ([]stepMark, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps[n:len(f.steps):len(f.steps)], f.changed
}

// times turns the steps into durations, the last one ending at end.
func (f *flight) times(end time.Time) []fleet.StepTime {
	steps, _ := f.stepsFrom(0)
	out := make([]fleet.StepTime, len(steps))
	for i, s := range steps {
		next := end
		if i+1 < len(steps) {
			next = steps[i+1].at
		}
		out[i] = fleet.StepTime{Step: s.name, Took: next.Sub(s.at)}
	}
	return out
}

// wait returns the outcome, or the caller's own end: the flight goes on.
// report, if not nil, is called with each step in order.
func (f *flight) wait(ctx context.Context, report func(string) error) (answer, error) {
	for seen := 0; ; {
		steps, changed := f.stepsFrom(seen)
		seen += len(steps)
		for _, s := range steps {
			if report == nil {
				break
			}
			if err := report(s.name); err != nil {
				return answer{}, err
			}
		}
		if len(steps) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-f.done:
			if more, _ := f.stepsFrom(seen); len(more) > 0 && report != nil {
				continue
			}
			return f.ans, f.err
		case <-ctx.Done():
			return answer{}, context.Cause(ctx)
		}
	}
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
