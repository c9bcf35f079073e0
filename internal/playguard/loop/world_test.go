package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const inst = model.InstallationID("inst1")

// world is a store and simulated marquees, on the bubble's clock.
type world struct {
	t      *testing.T
	store  *state.Store
	sealer *secrets.Sealer
	policy model.Policy
	sims   map[model.MarqueeID]*sim
	sums   chan loop.Summary
	log    *slog.Logger
	ended  func(kind model.OpKind, result string) // see work.Config; may be nil
}

// leader is one process that leads, or believes to.
type leader struct {
	*loop.Loop
	world    *world
	branches *branch.Follower // of a term in which they are followed
	holds    atomic.Bool
	stop     func()
}

// term is a store as one term sees it.
type term struct {
	*state.Store
	n int64
}

func (t term) Term() int64 { return t.n }

// bubble runs a test in virtual time.
func bubble(t *testing.T, marquees int, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store, sealer := storetest.OpenSealed(t)
		w := &world{t: t, store: store, sealer: sealer, policy: model.DefaultPolicy(), sims: map[model.MarqueeID]*sim{}, log: slog.New(slog.DiscardHandler)}
		for i := range marquees {
			w.marquee(model.MarqueeID(fmt.Sprintf("m%d", i)))
		}
		fn(w)
	})
}

func (w *world) marquee(id model.MarqueeID) *sim {
	s := newSim(inst)
	w.sims[id] = s
	// What a marquee is asked for was durable before.
	s.begun = func(r runner.Request) {
		err := w.store.View(func(tx *state.ReadTx) error {
			p, ok := records.Playgrounds.Get(tx, string(r.Playground))
			op, known := records.GetOperation(tx, r.Playground, r.Op)
			if !ok || p.Op.ID != r.Op || !known || op.Epoch != r.Epoch || !op.EndedAt.IsZero() {
				return fmt.Errorf("operation %s of %s began and is not claimed: %+v %+v", r.Op, r.Playground, p, op)
			}
			expired := r.Verb.Kind() == model.OpReclaim && p.Expiry.Due(time.Now(), w.policy)
			if len(r.Verb.Volumes()) > 0 && (p.Intent != model.IntentGone && !expired || p.KeepVolumes) {
				return fmt.Errorf("volumes of %s: %+v", r.Playground, p)
			}
			return nil
		})
		if err != nil {
			w.t.Error(err)
		}
	}
	w.update(func(tx *state.Tx) error {
		return records.PutMarquee(tx, records.Marquee{Name: string(id), Marquee: model.Marquee{
			ID: id, Address: "h:22", Root: root, Admin: model.AdminActive, Reach: model.ReachOK, Identity: s.id,
		}})
	})
	return s
}

func (w *world) update(fn func(tx *state.Tx) error) {
	w.t.Helper()
	if _, err := w.store.Update(context.Background(), fn); err != nil {
		w.t.Fatal(err)
	}
}

// lead begins a term, with these phases behind the rules.
func (w *world) lead(n int64, after ...func(*work.Worker) loop.Phase) *leader {
	l := &leader{world: w}
	l.holds.Store(true)
	l.Loop = loop.New(loop.Config{
		Store: term{w.store, n}, Policy: w.policy, Logger: w.log, Host: func(m records.Marquee) work.Host { return w.sims[m.ID] },
		Worker: work.New(work.Config{Store: w.store, Sealer: w.sealer, Installation: inst, Policy: w.policy, Logger: w.log, Ended: w.ended, Lease: func() (time.Duration, error) {
			if !l.holds.Load() {
				return 0, errors.New("another server leads")
			}
			return time.Minute, nil
		}}),
		Figures: func(s loop.Summary) {
			if w.sums != nil {
				w.sums <- s
			}
		},
	})
	for _, phase := range after {
		l.After = append(l.After, phase(l.Worker))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	l.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	synctest.Wait()
	return l
}

// version is a definition of the services web and db.
func version(name string) records.Version {
	services := []model.Service{{Name: "db", Digest: "db-1"}, {Name: "web", Digest: "web-" + name}}
	raw, err := json.Marshal(services)
	if err != nil {
		panic(err)
	}
	return records.Version{Digest: digest(raw), Compose: raw, Services: services, Volumes: []string{"data"}}
}

// ask gives a playground a definition, as the service does.
func (w *world) ask(l *leader, m model.MarqueeID, id model.PlaygroundID, v records.Version) model.Project {
	w.t.Helper()
	project, err := model.NewProject("shop", id)
	if err != nil {
		w.t.Fatal(err)
	}
	w.update(func(tx *state.Tx) error {
		key, entry, err := records.SealVersion(w.sealer, id, v)
		if err != nil {
			return err
		}
		p := records.Playground{Name: string(id), Owner: "ann", CreatedAt: tx.Now(), Playground: model.Playground{
			ID: id, Marquee: m, Project: project, Intent: model.IntentUp, State: model.StatePending, StateSince: tx.Now(),
			Owed: model.ActionCreate, Queued: model.Queued{At: tx.Now()},
		}}
		if old, ok := records.Playgrounds.Get(tx, string(id)); ok {
			p = *old
			if p.Playground, err = p.Request(model.ActionRollout, tx.Now()); err != nil {
				return err
			}
		}
		p.Desired, p.Services, p.Job, p.Step = v.Digest, v.Services, "", ""
		return errors.Join(records.Entries.Put(tx, key, &entry), records.PutPlayground(tx, p))
	})
	if l != nil {
		l.Begin(m, id)
	}
	return project
}

// act asks for an action.
func (w *world) act(l *leader, id model.PlaygroundID, a model.Action) {
	w.t.Helper()
	var m model.MarqueeID
	w.update(func(tx *state.Tx) error {
		row, _ := records.Playgrounds.Get(tx, string(id))
		p := *row
		var err error
		if p.Playground, err = p.Request(a, tx.Now()); err != nil {
			return err
		}
		p.Job, p.Step, m = "", "", p.Marquee
		return records.PutPlayground(tx, p)
	})
	if a == model.ActionStop || a == model.ActionDestroy {
		l.Kick(m)
	} else {
		l.Begin(m, id)
	}
}

func (w *world) get(id model.PlaygroundID) (p records.Playground, ok bool) {
	_ = w.store.View(func(tx *state.ReadTx) error {
		row, found := records.Playgrounds.Get(tx, string(id))
		if ok = found; ok {
			p = *row
		}
		return nil
	})
	return p, ok
}

func (w *world) row(id model.MarqueeID) (m records.Marquee) {
	_ = w.store.View(func(tx *state.ReadTx) error {
		if row, ok := records.Marquees.Get(tx, string(id)); ok {
			m = *row
		}
		return nil
	})
	return m
}

// pass lets time go by.
func pass(d time.Duration) {
	t := time.NewTimer(d)
	<-t.C
	synctest.Wait()
}

func (w *world) want(id model.PlaygroundID, s model.State) records.Playground {
	w.t.Helper()
	p, ok := w.get(id)
	if !ok || p.State != s {
		w.t.Fatalf("%s is %q (%s, %+v), want %q", id, p.State, p.Reason, p.Failure, s)
	}
	return p
}

// events counts the events of a type.
func (w *world) events(typ string) (n int) {
	list, err := w.store.Events(context.Background(), state.EventQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range list {
		if e.Type == typ {
			n++
		}
	}
	return n
}

func (w *world) deadLetter(kind fleet.DeadLetterKind, id string) (found bool) {
	_ = w.store.View(func(tx *state.ReadTx) error {
		_, found = tx.DeadLetters().Get(kind, id)
		return nil
	})
	return found
}
