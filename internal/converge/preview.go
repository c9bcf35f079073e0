package converge

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// Preview is what a cycle would do now.
type Preview struct {
	At       time.Time
	Steps    []reconcile.Step
	Withheld []reconcile.Withheld
	Summary  reconcile.Summary // of looks and plans; nothing was done
}

// Preview looks at the hosts and plans with a copy of the loop's memory. It
// changes nothing and remembers nothing: the loop's next cycle counts its own
// strikes. One runs at a time; another is told so.
func (l *Loop) Preview(ctx context.Context) (Preview, error) {
	if err := l.Ready(); err != nil {
		return Preview{}, err
	}
	select {
	case l.dry <- struct{}{}:
		defer func() { <-l.dry }()
	default:
		return Preview{}, fleet.Errorf(fleet.CodeUnavailable, "another plan is being made").With(fleet.DetailRemedy, "try again in a moment")
	}
	d := dry{l: l, out: Preview{At: time.Now().UTC()}, memory: *l.shared.Load()}
	if err := d.run(ctx); err != nil {
		return Preview{}, err
	}
	slices.SortFunc(d.out.Summary.Hosts, func(a, b reconcile.HostResult) int { return cmp.Compare(a.HostID, b.HostID) })
	slices.Sort(d.out.Summary.HostsUnseen)
	return d.out, nil
}

// dry is one preview.
type dry struct {
	l      *Loop
	out    Preview
	memory reconcile.Memory
	clock  reconcile.Clock
}

func (d *dry) run(ctx context.Context) error {
	var hosts []*fleet.Host
	if err := d.l.cfg.Store.View(func(tx *state.ReadTx) error {
		hosts = collect(tx.Hosts().All())
		d.clock = reconcile.Clock{LastCommit: tx.At(), Uptime: time.Since(d.l.began)}
		d.out.Summary.TrackedVMs = tx.VMs().Len()
		return nil
	}); err != nil {
		return err
	}
	var err error
	for a := range d.l.lookAll(ctx, hosts, d.l.cfg.HostDeadline, nil) {
		if err == nil {
			err = d.plan(func(tx *state.ReadTx, in *reconcile.Input) bool { return d.l.hostInput(tx, a, in) })
		}
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	oldest, err := d.l.oldestEvent(ctx)
	if err != nil {
		return err
	}
	return d.plan(func(tx *state.ReadTx, in *reconcile.Input) bool {
		d.l.fleetInput(tx, oldest, in)
		return true
	})
}

func (d *dry) plan(read func(*state.ReadTx, *reconcile.Input) bool) error {
	in := reconcile.Input{
		Now: d.out.At, Clock: d.clock, FleetID: d.l.cfg.Store.FleetID(), Busy: d.l.acts.busy(), Limits: d.l.cfg.Limits, Memory: d.memory,
	}
	known := false
	if err := d.l.cfg.Store.View(func(tx *state.ReadTx) error {
		known = read(tx, &in)
		return nil
	}); err != nil || !known {
		return err
	}
	r := reconcile.Plan(in)
	d.memory = r.Memory
	d.out.Steps, d.out.Withheld = append(d.out.Steps, r.Steps...), append(d.out.Withheld, r.Withheld...)
	d.out.Summary.Add(r.Summary)
	return nil
}

// Status is how the loop stands.
type Status struct {
	Ready    bool
	Interval time.Duration
	Last     *reconcile.Summary // of the newest cycle; nil before the first
	LastAt   time.Time          // when it ended
	Pauses   fleet.Pauses
	Limits   reconcile.Limits
	Spent    map[reconcile.BudgetKey]reconcile.Spent
	Uptime   time.Duration
}

// Status says how the loop stands.
func (l *Loop) Status() (Status, error) {
	p, err := l.Pauses()
	s := Status{
		Ready: l.Ready() == nil, Interval: l.cfg.Interval, Pauses: p, Limits: l.cfg.Limits.Effective(),
		Spent: l.shared.Load().Spent, Uptime: time.Since(l.began),
	}
	if last := l.last.Load(); last != nil {
		s.Last, s.LastAt = &last.Summary, last.at
	}
	return s, err
}

// Health is the last verdict of an environment's probe; ok is false while none
// is known to this process.
func (l *Loop) Health(vm *fleet.VM) (fleet.HealthStatus, bool) {
	h, ok := l.shared.Load().Health[reconcile.VMKey{HostID: vm.HostID, UID: vm.UID}]
	return h, ok
}
