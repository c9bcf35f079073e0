package sim

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/test/history"
)

// scene is a run in which nothing goes wrong but what the test does.
func scene(t *testing.T, seed uint64, b broken, act func(w *world)) (problems []string) {
	t.Helper()
	return sceneWith(t, seed, b, func(w *world) {
		for _, h := range w.hosts {
			h.opts.Fail = nil
		}
	}, act)
}

// sceneWith is scene in a world that the test prepares.
func sceneWith(t *testing.T, seed uint64, b broken, prepare, act func(w *world)) (problems []string) {
	t.Helper()
	dir := memoryDir(t)
	var ops []history.Op
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, dir, slog.New(slog.NewTextHandler(io.Discard, nil)), b)
		prepare(w)
		w.run(func(context.Context) { act(w) })
		ops, problems = w.wit.clients.Ops(), w.problems
	})
	if _, problem := history.Check(ops, time.Minute); problem != "" {
		problems = append(problems, problem)
	}
	return problems
}

// none fails a test for every problem.
func none(t *testing.T, problems []string) {
	t.Helper()
	for i, p := range problems {
		if i == 3 {
			t.Errorf("and %d more", len(problems)-i)
			return
		}
		t.Error(p)
	}
}

// only has clients find that process alone; nil: all that serve.
func (w *world) only(p *process) {
	w.net.set(func() { w.net.only = p })
}

// leader is the process that serves.
func (w *world) leader() *process {
	for range 120 {
		for _, s := range w.servers {
			if p := s.now(); p != nil && !p.frozen() && p.serving() != nil {
				return p
			}
		}
		_ = pause(w.ctx, w.ctx, time.Second)
	}
	w.wrong("nobody leads")
	return nil
}

// A leader that was stopped past its lease answers no question that it was
// asked meanwhile: another one has led meanwhile, and what it knows is old.
func TestAStoppedLeaderTellsNothingOld(t *testing.T) {
	none(t, scene(t, 1, broken{}, askTheStoppedLeader))
}

func askTheStoppedLeader(w *world) {
	u := w.newUser(1)
	u.create("t1")
	old := w.leader()
	old.freeze()
	next := w.leader()
	w.only(next)
	w.newUser(2).destroy("t1")
	w.only(old)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		ctx, cancel := context.WithTimeout(w.ctx, time.Hour)
		defer cancel()
		op := w.wit.clients.Begin(3, history.Look, vmID("t1"))
		env, err := u.api.Get(ctx, vmID("t1"))
		u.end(op, err, env)
	}()
	_ = pause(w.ctx, w.ctx, time.Second)
	old.thaw()
	<-asked
	w.only(nil)
}

// An order that a leader gave just before it was stopped reaches its host after
// another one leads: the host refuses it.
func TestAStoppedLeadersOrderComesTooLate(t *testing.T) {
	none(t, scene(t, 2, broken{}, func(w *world) {
		u := w.newUser(1)
		for _, task := range []string{"t1", "t2", "t3", "t4"} {
			u.create(task)
		}
		old := w.leader()
		asked := make(chan struct{})
		w.net.set(func() {
			for _, id := range w.ids {
				w.net.slow[id] = 2 * time.Second
			}
		})
		go func() {
			defer close(asked)
			u.destroy("t1")
		}()
		_ = pause(w.ctx, w.ctx, 20*time.Millisecond)
		old.freeze()
		w.only(w.leader())
		other := w.newUser(3)
		for range 8 { // every host hears of the new leader
			_, _ = other.api.Create(w.ctx, gen.CreateEnvironment{}, client.CreateOptions{})
		}
		old.thaw()
		<-asked
	}))
}
