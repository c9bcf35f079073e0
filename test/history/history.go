// Package history writes down what clients of the API asked and were told, and
// checks that it could have happened in some order, one thing at a time
// (linearizability), environment by environment.
//
// Every call and every answer gets a stamp, a number that rises with each. An
// answer that never came leaves its operation open: it may take effect at any
// time, or never.
package history

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Clock gives stamps. One clock serves a whole run, so that stamps of clients
// and of hosts compare.
type Clock struct{ n atomic.Int64 }

// Now returns a stamp that is greater than every earlier one.
func (c *Clock) Now() int64 { return c.n.Add(1) }

// Verb is what a client asks for.
type Verb string

// Verbs. Died is no client's: it stands for a machine that ended by itself, or
// that a rule may end from then on; without a uid it may be any of that id.
const (
	Create   Verb = "create"
	Destroy  Verb = "destroy"
	Complete Verb = "complete"
	Drain    Verb = "drain"
	Look     Verb = "look" // get, or one id's part of a list
	Died     Verb = "died"
)

// Outcome is how an operation ended for its client.
type Outcome string

// Outcomes.
const (
	Done     Outcome = "done"
	Pending  Outcome = "pending" // 202: begun for certain, and not done
	NotFound Outcome = "not found"
	Refused  Outcome = "refused" // a definite answer: nothing was done
	Failed   Outcome = "failed"  // an answer that leaves open what was done
	Lost     Outcome = "lost"    // no answer
)

// Never is the stamp of an answer that has not come.
const Never = math.MaxInt64

// Op is one operation on one environment.
type Op struct {
	Client       int
	Verb         Verb
	ID           string // of the environment
	Call, Return int64
	Outcome      Outcome
	UID, State   string // of the answer
	Note         string // for people: the error
}

// Ended reports whether the answer came.
func (o Op) Ended() bool { return o.Return != Never }

func (o Op) String() string {
	ret := "never"
	if o.Ended() {
		ret = fmt.Sprint(o.Return)
	}
	return fmt.Sprintf("[%d, %s] client %d: %s %s: %s %s %s %s", o.Call, ret, o.Client, o.Verb, o.ID, o.Outcome, o.UID, o.State, o.Note)
}

// Log is the history of a run. It is safe for concurrent use.
type Log struct {
	Clock *Clock

	mu  sync.Mutex
	ops []*Op
}

// New makes an empty history.
func New(c *Clock) *Log { return &Log{Clock: c} }

// Begin writes down a call; until End its answer counts as lost.
func (l *Log) Begin(client int, verb Verb, id string) *Op {
	op := &Op{Client: client, Verb: verb, ID: id, Return: Never, Outcome: Lost}
	l.mu.Lock()
	defer l.mu.Unlock()
	op.Call = l.Clock.Now()
	l.ops = append(l.ops, op)
	return op
}

// End writes down how a call ended. A lost answer never returns.
func (l *Log) End(op *Op, out Outcome, uid, state, note string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	op.Outcome, op.UID, op.State, op.Note = out, uid, state, note
	if out != Lost {
		op.Return = l.Clock.Now()
	}
}

// Drop takes a call back that certainly never reached anybody.
func (l *Log) Drop(op *Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = slices.DeleteFunc(l.ops, func(o *Op) bool { return o == op })
}

// Add writes a whole operation down.
func (l *Log) Add(op Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, &op)
}

// Ops returns the history as it is now, in the order of the calls.
func (l *Log) Ops() []Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Op, len(l.ops))
	for i, op := range l.ops {
		out[i] = *op
	}
	slices.SortFunc(out, func(a, b Op) int { return int(a.Call - b.Call) })
	return out
}

// Of returns the operations on one environment, for a failure's report. Looks
// that saw what the one before them saw are counted, not shown.
func Of(ops []Op, id string) string {
	var b strings.Builder
	var last Op
	same := 0
	for _, op := range ops {
		if op.ID != id {
			continue
		}
		if op.Verb == Look && op.Outcome == last.Outcome && op.UID == last.UID && op.State == last.State && op.Outcome != Lost {
			same++
			continue
		}
		if same > 0 {
			fmt.Fprintf(&b, "   … and %d that saw the same\n", same)
		}
		if same = 0; op.Verb == Look {
			last = op
		}
		fmt.Fprintln(&b, "  ", op)
	}
	if same > 0 {
		fmt.Fprintf(&b, "   … and %d that saw the same\n", same)
	}
	return b.String()
}

// Backdate has an operation begin with the first of its tries.
func (l *Log) Backdate(op *Op, call int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	op.Call = call
}
