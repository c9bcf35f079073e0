package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// machine drives a store and its model side by side.
type machine struct {
	open  func() Backend
	fault *Faulty
	store *state.Store
	sub   *state.Subscription

	want world
	also *world // the other state that a reopened store may have
	seen uint64 // revision of the newest change set
}

func storeModel(t *testing.T, open func() Backend) {
	first := true
	rapid.Check(t, func(rt *rapid.T) {
		if !first {
			wipe(rt, open)
		}
		first = false
		m := &machine{open: open, want: world{vms: map[string]fleet.VM{}, hosts: map[string]fleet.Host{}}}
		m.start(rt)
		m.want.events = int(m.head())
		defer func() { m.stop(rt) }()
		rt.Repeat(map[string]func(*rapid.T){
			"update":  m.update,
			"update2": m.update,
			"update3": m.update,
			"fault":   m.faulty,
			"restart": m.restart,
			"":        m.check,
		})
	})
}

// wipe empties storage that an earlier round has used.
func wipe(t *rapid.T, open func() Backend) {
	b := open()
	defer b.Close() //nolint:errcheck // the next open would tell
	g, err := b.Acquire(context.Background(), state.Candidate{Name: "wipe"})
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	l, err := b.Load(context.Background(), 0)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	batch := state.Batch{ID: fmt.Sprint("wipe", g.Term), Revision: l.Revision, Seq: l.Seq, At: l.At}
	for _, vm := range l.VMs {
		batch.Writes = append(batch.Writes, state.Write{Table: state.TableVMs, Key: state.Key{vm.ID}})
	}
	for _, h := range l.Hosts {
		batch.Writes = append(batch.Writes, state.Write{Table: state.TableHosts, Key: state.Key{h.ID}})
	}
	if err := b.Commit(context.Background(), g.Term, batch); err != nil {
		t.Fatalf("wipe: %v", err)
	}
}

func (m *machine) start(t *rapid.T) {
	m.fault = &Faulty{Backend: m.open()}
	s, err := state.Open(context.Background(), state.Config{
		Journal: m.fault, Lease: m.fault, Candidate: state.Candidate{Name: "model"},
		WatchBuffer: 1 << 16, LookupPause: time.Nanosecond, LookupTries: 3,
	})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.store, m.sub = s, s.Watch(context.Background())
	m.seen, _ = s.Head()
}

func (m *machine) stop(t *rapid.T) {
	if err := m.store.Close(context.Background()); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func (m *machine) head() uint64 {
	_, seq := m.store.Head()
	return seq
}

func (m *machine) run(ops []op) error {
	_, err := m.store.Update(context.Background(), func(tx *state.Tx) error {
		for _, o := range ops {
			if err := o.store(tx); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

func describe(ops []op) (text []string) {
	for _, o := range ops {
		text = append(text, o.what)
	}
	return text
}

func (m *machine) update(t *rapid.T) {
	ops := drawOps(t)
	next, legal := m.want.apply(ops)
	err := m.run(ops)
	if (err == nil) != legal {
		t.Fatalf("the model says legal=%v, the store says %v\n%q", legal, err, describe(ops))
	}
	if legal {
		m.want = next
	}
}

// faulty runs a closure whose commit meets a fault.
func (m *machine) faulty(t *rapid.T) {
	ops := append(drawOps(t), drawEmit(t)) // so that there is something to commit
	fault := rapid.SampledFrom([]Fault{Refused, Lost, Dropped, Refused, Lost, Dropped, LostBlind, DropBlind}).Draw(t, "fault")
	next, legal := m.want.apply(ops)
	if !legal {
		return // it would never reach the journal
	}
	m.fault.Fail(fault)
	err := m.run(ops)
	switch {
	case fault == Lost:
		if err != nil {
			t.Fatalf("the lookup finds the batch, yet: %v", err)
		}
		m.want = next
	case !errors.Is(err, fleet.ErrStoreUnavailable):
		t.Fatalf("fault %d: %v", fault, err)
	case fault.Blind():
		if m.store.Err() == nil || m.store.Ready(context.Background()) == nil {
			t.Fatal("the store goes on without knowing what is durable")
		}
		if err := m.run(nil); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Fatalf("an ended store: %v", err)
		}
		m.check(t) // what cannot be known is not shown
		m.also = &next
		m.reopen(t)
	default:
		if err := m.store.Ready(context.Background()); err != nil {
			t.Fatalf("the journal works again, yet: %v", err)
		}
	}
}

// restart is rarer than the rest: it costs more than all of it.
func (m *machine) restart(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "whether") == 0 {
		m.reopen(t)
	}
}

func (m *machine) reopen(t *rapid.T) {
	m.stop(t)
	m.start(t)
	if m.also != nil && m.head() == uint64(m.also.events) {
		m.want = *m.also // it emits one event more, which tells the two apart
	}
	m.also = nil
}

func (m *machine) check(t *rapid.T) {
	if d := m.diff(m.want); d != "" {
		t.Fatalf("the store differs from the model:\n%s", d)
	}
	if got := m.head(); got != uint64(m.want.events) {
		t.Fatalf("%d events, want %d", got, m.want.events)
	}
	m.drain(t)
}

// drain reads what Watch has queued: every revision, once, in order.
func (m *machine) drain(t *rapid.T) {
	revision, _ := m.store.Head()
	for m.seen < revision {
		set, err := m.sub.Next(context.Background())
		if err != nil || set.Revision != m.seen+1 {
			t.Fatalf("change set %d follows %d, %v", set.Revision, m.seen, err)
		}
		m.seen = set.Revision
	}
}

// diff compares rows, every index, and the derived totals.
func (m *machine) diff(w world) (d string) {
	ignore := []gocmp.Option{
		cmpopts.IgnoreFields(fleet.VM{}, "CreatedAt", "UpdatedAt", "Revision"),
		cmpopts.IgnoreFields(fleet.Host{}, "CreatedAt", "UpdatedAt", "Revision"),
		cmpopts.EquateEmpty(),
	}
	m.store.View(func(tx *state.ReadTx) error { //nolint:errcheck // it returns nil
		got := world{vms: map[string]fleet.VM{}, hosts: map[string]fleet.Host{}}
		for vm := range tx.VMs().All() {
			got.vms[vm.ID] = *vm
		}
		for h := range tx.Hosts().All() {
			got.hosts[h.ID] = *h
		}
		want := w.clone()
		for id, h := range want.hosts {
			h.Allocated, _ = want.sum(id, h.Facts)
			want.hosts[id] = h
		}
		d = gocmp.Diff(want.vms, got.vms, ignore...) + gocmp.Diff(want.hosts, got.hosts, ignore...) + indexes(tx, w)
		if tx.VMs().Len() != len(w.vms) || tx.Hosts().Len() != len(w.hosts) {
			d += fmt.Sprintf("lengths %d %d\n", tx.VMs().Len(), tx.Hosts().Len())
		}
		return nil
	})
	return d
}

func indexes(tx *state.ReadTx, w world) (d string) {
	by := func(pick func(fleet.VM) string) map[string][]string {
		groups := map[string][]string{}
		for _, id := range slices.Sorted(maps.Keys(w.vms)) {
			key := pick(w.vms[id])
			groups[key] = append(groups[key], id)
		}
		return groups
	}
	ids := func(seq func(func(*fleet.VM) bool)) (ids []string) {
		for vm := range seq {
			ids = append(ids, vm.ID)
		}
		return ids
	}
	hosts, states := by(func(v fleet.VM) string { return v.HostID }), by(func(v fleet.VM) string { return string(v.State) })
	for _, h := range []string{"h1", "h2"} {
		d += gocmp.Diff(hosts[h], ids(tx.VMs().ByHost(h)))
	}
	for _, s := range []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDraining, fleet.VMStateDestroying} {
		d += gocmp.Diff(states[string(s)], ids(tx.VMs().ByState(s)))
	}
	for _, vm := range w.vms {
		one, ok := tx.VMs().GetUID(vm.UID)
		two, also := tx.VMs().ByTask(vm.TaskID)
		if !ok || !also || one.ID != vm.ID || two.ID != vm.ID {
			d += fmt.Sprintf("%s is not found by uid or task\n", vm.ID)
		}
	}
	return d
}
