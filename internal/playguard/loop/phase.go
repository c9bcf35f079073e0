package loop

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
)

// Phase is a part of each pass beside the rules of decide. It must not block:
// what asks a marquee or anybody else goes into Turn.Start.
type Phase struct {
	Name string
	Run  func(ctx context.Context, t *Turn) error
}

// Turn is a pass as its phases see it: the look saw everything, the marquee is
// in use, and no newer epoch is known there.
type Turn struct {
	Site  work.Site
	In    decide.Input
	Rows  map[model.PlaygroundID]*records.Playground // as read after the look; not to be written to
	actor *actor
}

// Free lists the playgrounds on which nothing is at work, neither here nor on
// the marquee, and whose records are older than the look.
func (t *Turn) Free() []*records.Playground {
	var out []*records.Playground
	for _, id := range slices.Sorted(maps.Keys(t.Rows)) {
		row := t.Rows[id]
		ops, seen := t.In.Look.Project(row.Project).Ops()
		running := slices.ContainsFunc(ops, func(o observe.Op) bool { return o.Running })
		if seen && !running && row.Op.IsZero() && row.Revision <= t.In.Sent && !t.actor.busy(id) {
			out = append(out, row)
		}
	}
	return out
}

// Start follows work on a playground in a goroutine of its own, which ends with
// the term; false if something is at work on it. Again asks for a look after it.
func (t *Turn) Start(id model.PlaygroundID, do func(ctx context.Context) (again bool, err error)) bool {
	if t.actor.busy(id) {
		return false
	}
	t.actor.start(id, do)
	return true
}

// Background runs something that works on no playground until ctx ends.
func (t *Turn) Background(do func(ctx context.Context)) {
	a := t.actor
	if a.ctx.Err() == nil {
		a.loop.working.Go(func() { do(a.ctx) })
	}
}

// Soon asks for the next look no later than that.
func (t *Turn) Soon(d time.Duration) { t.actor.within(d) }

// Kick asks for a look out of turn, within the bounds of such.
func (t *Turn) Kick() { t.actor.kick() }

func (a *actor) busy(id model.PlaygroundID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.working[id]
}

// phases runs them in order, each behind the fault of the one before.
func (a *actor) phases(ctx context.Context, list []Phase, site work.Site, in decide.Input, rows map[model.PlaygroundID]*records.Playground) {
	host, _ := in.Look.Host()
	if in.Look.Verdict() != observe.Seen || in.Marquee.Admin != model.AdminActive || in.Marquee.Reach == model.ReachQuarantined || host.Epoch > in.Epoch {
		return
	}
	for _, p := range list {
		if err := p.Run(ctx, &Turn{site, in, rows, a}); err != nil && ctx.Err() == nil {
			level, _ := work.Ordinary(err)
			a.loop.Logger.Log(ctx, level, "a phase of the pass failed", slog.String("phase", p.Name), slog.String("marquee", string(a.id)), slog.Any("error", err))
		}
	}
}
