package admission

import (
	"context"
	"fmt"
	"slices"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/schedule"
	"github.com/fusevm/fuse/internal/state"
)

// Kind is what asks for room.
type Kind string

// Kinds of requests. The first three add an environment and count as a create
// in flight; the others find room for one that exists.
const (
	Create  Kind = "create"
	Fork    Kind = "fork"
	Restore Kind = "restore"
	Migrate Kind = "migrate"
	Resume  Kind = "resume"
)

// Request is one wish for room.
type Request struct {
	Kind  Kind
	Spec  fleet.Spec
	Owner string
	KeyID string // of the API key that asks; empty: none
	// Holder is the environment that asks, if it has a row already: what it
	// holds does not count against its own quota.
	Holder string
	Hints  fleet.PlacementHints
	// Refused are hosts that were asked and would not, with why.
	Refused map[string]string
}

// Store is the part of the state owner that Explain uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
}

// Config makes a Desk. All of it may be left out, but Explain needs a Store.
type Config struct {
	Store  Store
	Policy fleet.PlacementPolicy // empty: spread
	// Unreachable names hosts that cannot be used now, with why.
	Unreachable func() map[string]string
	// Quotas bounds owners and keys; nil bounds nobody.
	Quotas *quota.Book
	// ImageHosts says which hosts hold an image already, by id; nil: not known.
	ImageHosts func(image string) map[string]bool
}

// Desk admits. It is safe for concurrent use.
type Desk struct{ cfg Config }

// New makes a Desk.
func New(cfg Config) *Desk {
	if cfg.Unreachable == nil {
		cfg.Unreachable = func() map[string]string { return nil }
	}
	if cfg.ImageHosts == nil {
		cfg.ImageHosts = func(string) map[string]bool { return nil }
	}
	return &Desk{cfg}
}

// Question is a Request with what is volatile about the hosts, asked for before
// the transaction begins.
type Question struct {
	Request
	desk        *Desk
	unreachable map[string]string
}

// Prepare gathers what a transaction must not wait for.
func (d *Desk) Prepare(r Request) *Question {
	if r.Hints.ImageHosts == nil && r.Spec.Image != "" {
		r.Hints.ImageHosts = d.cfg.ImageHosts(r.Spec.Image)
	}
	return &Question{r, d, d.cfg.Unreachable()}
}

// Admitted is room on a host. Spec is the request's with the devices of that
// host bound to it; it is what the row has to hold.
type Admitted struct {
	schedule.Placement
	Spec fleet.Spec
}

// Admit charges the quotas and picks a host. It is called inside the Update
// that writes the environment's row with that host and spec, and counts only
// with it: the state's owner checks the sums once more and refuses the whole
// Update when they do not hold. Its errors are those of quota.Charge and
// schedule.Place.
func (q *Question) Admit(tx *state.ReadTx) (Admitted, error) {
	if err := q.charge(tx); err != nil {
		return Admitted{}, err
	}
	p, err := schedule.Place(q.input(tx))
	if err != nil {
		return Admitted{Placement: p}, err
	}
	spec, ok := schedule.Bind(q.Spec, p.Host)
	if !ok { // the gate counts the same devices
		return Admitted{}, fleet.Errorf(fleet.CodeUnavailable, "host %s has no free device: %w", p.Host.ID, fleet.ErrNoCapacity)
	}
	if n := len(q.Refused); n > 0 {
		p.Decision.Tries = n + 1
	}
	return Admitted{p, spec}, nil
}

func (q *Question) charge(tx *state.ReadTx) error {
	if q.desk.cfg.Quotas == nil {
		return nil
	}
	ask := quota.AskOf(q.Spec)
	if q.Kind == Migrate || q.Kind == Resume {
		delete(ask, quota.Creates)
	}
	return q.desk.cfg.Quotas.Charge(tx, quota.Payer{Owner: q.Owner, KeyID: q.KeyID, Except: q.Holder}, ask)
}

func (q *Question) input(tx *state.ReadTx) schedule.Input {
	hosts := slices.Collect(tx.Hosts().All())
	if q.Kind == Resume {
		q.yield(tx, hosts)
	}
	return schedule.Input{
		Spec: q.Spec, Hosts: hosts, Policy: q.desk.cfg.Policy, Hints: q.Hints,
		Unreachable: q.unreachable, Refused: q.Refused,
	}
}

// yield takes what the holder has of its host out of that host's total: it asks
// for all of it again.
func (q *Question) yield(tx *state.ReadTx, hosts []*fleet.Host) {
	vm, ok := tx.VMs().Get(q.Holder)
	if !ok {
		return
	}
	for i, h := range hosts {
		if h.ID == vm.HostID {
			without := *h
			without.Allocated = h.Allocated.Minus(vm.Demand(h.Facts))
			hosts[i] = &without
		}
	}
}

// Explanation is a request run dry.
type Explanation struct {
	schedule.Explanation
	// Quota is the quota's refusal, which comes before any host is asked for.
	Quota error
}

// Explain answers what a request would be answered now, and leaves nothing
// behind.
func (d *Desk) Explain(_ context.Context, r Request) (Explanation, error) {
	q := d.Prepare(r)
	var e Explanation
	err := d.cfg.Store.View(func(tx *state.ReadTx) error {
		e.Quota = q.charge(tx)
		e.Explanation = schedule.Explain(q.input(tx))
		return nil
	})
	return e, err
}

// Told is what is kept of a placement to explain it later. It is the
// environment's owner's to read, who need not know the other hosts: of those it
// says which gate refused how many.
func Told(p schedule.Placement) events.Placement {
	out := events.Placement{PlacementDecision: p.Decision}
	for _, g := range p.RefusedBy() {
		out.Refused = append(out.Refused, fmt.Sprintf("%s refused %d", g.Gate, g.Hosts))
	}
	return out
}

// Named says which hosts were refused and why, the first few of them, for the
// log of whoever runs them.
func Named(p schedule.Placement) (out []string) {
	for _, r := range p.Refusals {
		out = append(out, fmt.Sprintf("host %s %s", r.HostID, r))
	}
	if more := p.Refused - len(p.Refusals); more > 0 {
		out = append(out, fmt.Sprintf("and %d other hosts", more))
	}
	return out
}
