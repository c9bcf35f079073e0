package converge

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"sync"

	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/tracing"
)

// actor applies steps beside the loop. Each host has a lane of a few workers
// that live as long as it has steps, so a host that is slow to destroy delays
// only itself. A life is in at most one lane, once, so the lanes are bounded
// by the fleet.
type actor struct {
	ctx   context.Context // ends with the loop
	apply func(context.Context, reconcile.Step) outcome
	per   int
	slots chan struct{}
	goes  *sync.WaitGroup

	mu       sync.Mutex
	lanes    map[string]*lane
	inFlight map[string]bool
	done     reconcile.Summary // of steps that ended since it was last taken
	untold   []reconcile.Step  // news that did not get out since it was last taken
}

type lane struct {
	queue   []queued
	workers int
}

type queued struct {
	step  reconcile.Step
	batch *batch
}

// batch is the steps of one cycle; ended closes when all have ended.
type batch struct {
	mu    sync.Mutex
	left  int
	ended chan struct{}
	span  tracing.Span // of the cycle
}

func newBatch(span tracing.Span) *batch {
	return &batch{left: 1, ended: make(chan struct{}), span: span}
}

func (b *batch) add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left += n; b.left == 0 {
		close(b.ended)
	}
}

// outcome is how a step ended.
type outcome struct {
	dropped string // why it no longer held
	purged  int
	err     error
}

// laneKey is what a step occupies while it is at work.
func laneKey(s reconcile.Step) string {
	if s.Tells() { // it stands in the way of nothing
		return strings.Join([]string{string(s.Kind), s.HostID, s.UID, string(s.Pass)}, " ")
	}
	switch s.Kind {
	case reconcile.KindSnapshotGC, reconcile.KindArtifactGC:
		return s.Snapshot
	}
	return cmp.Or(s.UID, string(s.Kind))
}

// dispatch starts steps; one whose life is already being worked on is left out.
func (a *actor) dispatch(b *batch, steps []reconcile.Step) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range steps {
		if a.ctx.Err() != nil || a.inFlight[laneKey(s)] {
			continue
		}
		a.inFlight[laneKey(s)] = true
		b.add(1)
		ln := a.lanes[s.HostID]
		if ln == nil {
			ln = &lane{}
			a.lanes[s.HostID] = ln
		}
		ln.queue = append(ln.queue, queued{s, b})
		if ln.workers < a.per {
			ln.workers++
			a.goes.Go(func() { a.work(s.HostID, ln) })
		}
	}
}

func (a *actor) work(host string, ln *lane) {
	for {
		a.mu.Lock()
		if len(ln.queue) == 0 {
			if ln.workers--; ln.workers == 0 {
				delete(a.lanes, host)
			}
			a.mu.Unlock()
			return
		}
		q := ln.queue[0]
		ln.queue = ln.queue[1:]
		a.mu.Unlock()
		a.finish(q, a.one(q))
	}
}

func (a *actor) one(q queued) (o outcome) {
	ctx, span := tracing.Start(q.batch.span.In(a.ctx), "step "+string(q.step.Kind))
	span.Set(tracing.VMID, q.step.VMID)
	span.Set(tracing.HostID, q.step.HostID)
	span.Set(tracing.Rule, q.step.Rule)
	defer func() {
		if o.dropped != "" {
			span.Set(tracing.Result, "dropped")
		}
		span.End(o.err)
	}()
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
		return a.apply(ctx, q.step)
	case <-a.ctx.Done():
		return outcome{dropped: "the loop ends"}
	}
}

func (a *actor) finish(q queued, o outcome) {
	a.mu.Lock()
	delete(a.inFlight, laneKey(q.step))
	a.done.Purged += o.purged
	if o.dropped != "" {
		a.done.Dropped++
	} else {
		a.done.Applied(q.step.Kind, o.err)
	}
	if q.step.Tells() && (o.dropped != "" || o.err != nil) {
		a.untold = append(a.untold, q.step)
	}
	a.mu.Unlock()
	q.batch.add(-1)
}

// forget drops what has not begun, because it may not be acted on any more.
func (a *actor) forget() {
	a.mu.Lock()
	var dropped []queued
	for _, ln := range a.lanes {
		dropped = append(dropped, ln.queue...)
		ln.queue = nil
	}
	a.mu.Unlock()
	for _, q := range dropped {
		a.finish(q, outcome{dropped: "the store is gone"})
	}
}

func (a *actor) busy() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.inFlight)
}

// take returns what steps have done since it was last called.
func (a *actor) take() reconcile.Summary {
	a.mu.Lock()
	defer a.mu.Unlock()
	done := a.done
	a.done = reconcile.Summary{}
	done.InFlight = len(a.inFlight)
	return done
}

// takeUntold returns the news that did not get out since it was last called.
func (a *actor) takeUntold() []reconcile.Step {
	a.mu.Lock()
	defer a.mu.Unlock()
	untold := a.untold
	a.untold = nil
	return untold
}
