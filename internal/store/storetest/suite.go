package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows/dump"
	"github.com/fusevm/fuse/internal/uid"
)

// Backend is what an adapter provides.
type Backend interface {
	state.Journal
	state.Lease
}

// Factory makes fresh storage for one test and returns what opens it: each
// call gives a backend on the same storage, as a restarted process would.
type Factory func(t *testing.T) func() Backend

// Run is the conformance suite.
func Run(t *testing.T, fresh Factory) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func() Backend)
	}{
		{"a new journal is empty and has a fleet", emptyAtFirst},
		{"every field of every row survives", everyFieldSurvives},
		{"rows are replaced and deleted", replaceAndDelete},
		{"terms rise and tokens change, the fleet stays", termsRise},
		{"the lease is seen by others", leaseIsSeen},
		{"the newest terms are kept", termsBounded},
		{"a stale term changes nothing", staleTerm},
		{"batches are known by their ids", batchIDs},
		{"a batch that fails in the middle leaves nothing", atomicity},
		{"events are filtered, ordered and bounded", eventQueries},
		{"the oldest events are purged", purge},
		{"startup logs", startupLogs},
		{"a closed journal refuses", closed},
		{"the store agrees with a model under faults", storeModel},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, fresh(t)) })
	}
}

// acquire opens a term that ends with the test.
func acquire(t *testing.T, open func() Backend) (Backend, state.Grant) {
	t.Helper()
	b := open()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	g, err := b.Acquire(t.Context(), state.Candidate{Name: t.Name()})
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return b, g
}

func closeNow(t *testing.T, b Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func commit(t *testing.T, b Backend, term int64, batch state.Batch) {
	t.Helper()
	if batch.ID == "" {
		batch.ID = uid.New()
	}
	if err := b.Commit(t.Context(), term, batch); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func load(t *testing.T, b Backend, events int) *state.Loaded {
	t.Helper()
	l, err := b.Load(t.Context(), events)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return l
}

func emptyAtFirst(t *testing.T, open func() Backend) {
	b, _ := acquire(t, open)
	l := load(t, b, 10)
	if !uid.Valid(l.FleetID) {
		t.Errorf("fleet id %q is no ULID", l.FleetID)
	}
	if diff := diffLoaded(l, state.Batch{}); diff != "" {
		t.Error(diff)
	}
}

// diffLoaded compares what is loaded with what batch wrote.
func diffLoaded(l *state.Loaded, batch state.Batch) string {
	want := &state.Loaded{FleetID: l.FleetID, Revision: batch.Revision, Seq: batch.Seq, At: batch.At, Events: batch.Events, Documents: map[state.Table][]*state.Document{}}
	for _, w := range batch.Writes {
		switch row := w.Row.(type) {
		case *fleet.VM:
			want.VMs = append(want.VMs, row)
		case *fleet.Host:
			want.Hosts = append(want.Hosts, row)
		case *fleet.Task:
			want.Tasks = append(want.Tasks, row)
		case *fleet.Snapshot:
			want.Snapshots = append(want.Snapshots, row)
		case *fleet.DeadLetter:
			want.DeadLetters = append(want.DeadLetters, row)
		case *fleet.Life:
			want.Lives = append(want.Lives, row)
		case *state.Idempotency:
			want.Idempotency = append(want.Idempotency, row)
		case *state.Document:
			want.Documents[w.Table] = append(want.Documents[w.Table], row)
		}
	}
	maps.DeleteFunc(l.Documents, func(_ state.Table, rows []*state.Document) bool { return len(rows) == 0 })
	return gocmp.Diff(want, l, cmpopts.EquateEmpty(),
		sorted(func(d *state.Document) string { return d.ID }),
		sorted(func(v *fleet.VM) string { return v.ID }),
		sorted(func(h *fleet.Host) string { return h.ID }),
		sorted(func(k *fleet.Task) string { return k.TaskID }),
		sorted(func(s *fleet.Snapshot) string { return s.SnapshotID }),
		sorted(func(d *fleet.DeadLetter) string { return string(d.Kind) + d.EntityID }),
		sorted(func(l *fleet.Life) string { return l.UID }),
		sorted(func(r *state.Idempotency) string { return r.Owner + r.Key }),
	)
}

func sorted[T any](key func(T) string) gocmp.Option {
	return cmpopts.SortSlices(func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}

func everyFieldSurvives(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	batch := FullBatch(uid.New(), 3)
	commit(t, b, g.Term, batch)
	if diff := diffLoaded(load(t, b, 10), batch); diff != "" {
		t.Errorf("at once:\n%s", diff)
	}
	closeNow(t, b)
	b, _ = acquire(t, open)
	if diff := diffLoaded(load(t, b, 10), batch); diff != "" {
		t.Errorf("opened again:\n%s", diff)
	}
	for _, w := range batch.Writes {
		want, ok := w.Row.(*fleet.StartupLog)
		if !ok {
			continue
		}
		got, found, err := b.StartupLog(t.Context(), want.UID)
		if diff := gocmp.Diff(*want, got); err != nil || !found || diff != "" {
			t.Errorf("startup log: found %v, %v\n%s", found, err, diff)
		}
	}
}

func replaceAndDelete(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	first := FullBatch(uid.New(), 2)
	commit(t, b, g.Term, first)

	// Replace the rows of seed 0 by other values under the same keys, delete
	// those of seed 1, and delete some that were never there.
	second := state.Batch{ID: uid.New(), Revision: 8, Seq: first.Seq, At: first.At.Add(time.Second)}
	other := FullBatch("", 3)
	half := len(first.Writes) / 2
	for i, w := range first.Writes {
		if i < half {
			w.Row = withKey(other.Writes[2*half+i].Row, first.Writes[i].Row)
		} else {
			w.Row = nil
		}
		second.Writes = append(second.Writes, w)
	}
	for _, w := range other.Writes[2*half:] {
		second.Writes = append(second.Writes, state.Write{Table: w.Table, Key: w.Key})
	}
	commit(t, b, g.Term, second)
	second.Events = first.Events
	if diff := diffLoaded(load(t, b, 10), second); diff != "" {
		t.Error(diff)
	}
	gone, _ := first.Writes[half+6].Row.(*fleet.StartupLog)
	if _, found, err := b.StartupLog(t.Context(), gone.UID); found || err != nil {
		t.Errorf("a deleted startup log: found %v, %v", found, err)
	}
}

// withKey gives row, which is changed, the key of keyed.
func withKey(row, keyed any) any {
	switch r := row.(type) {
	case *fleet.VM:
		r.ID = keyed.(*fleet.VM).ID
	case *fleet.Host:
		r.ID = keyed.(*fleet.Host).ID
	case *fleet.Task:
		r.TaskID = keyed.(*fleet.Task).TaskID
	case *fleet.Snapshot:
		r.SnapshotID = keyed.(*fleet.Snapshot).SnapshotID
	case *fleet.DeadLetter:
		r.Kind, r.EntityID = keyed.(*fleet.DeadLetter).Kind, keyed.(*fleet.DeadLetter).EntityID
	case *fleet.Life:
		r.UID = keyed.(*fleet.Life).UID
	case *fleet.StartupLog:
		r.UID = keyed.(*fleet.StartupLog).UID
	case *state.Document:
		r.ID = keyed.(*state.Document).ID
	case *state.Idempotency:
		r.Owner, r.Key = keyed.(*state.Idempotency).Owner, keyed.(*state.Idempotency).Key
	}
	return row
}

func termsRise(t *testing.T, open func() Backend) {
	var fleetID string
	var last state.Grant
	var claims []state.Claim // newest first
	for i := range 3 {
		before := time.Now().UnixMilli()
		b, g := acquire(t, open)
		if err := g.Tenure.Check(); err != nil {
			t.Errorf("a new term: %v", err)
		}
		if g.Term < before || g.Term <= last.Term {
			t.Errorf("term %d follows %d at %d ms", g.Term, last.Term, before)
		}
		if g.ClaimToken == "" || g.ClaimToken == last.ClaimToken || g.Fingerprint == "" {
			t.Errorf("claim token %q follows %q, fingerprint %q", g.ClaimToken, last.ClaimToken, g.Fingerprint)
		}
		l := load(t, b, 0)
		if i > 0 && (l.FleetID != fleetID || g.Fingerprint != last.Fingerprint) {
			t.Errorf("fleet %q became %q, fingerprint %q became %q", fleetID, l.FleetID, last.Fingerprint, g.Fingerprint)
		}
		if diff := gocmp.Diff(claims, g.Earlier, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("the terms before:\n%s", diff)
		}
		// Hosts tell by it which of two stores of one past goes further.
		if want := uint64(10 * i); g.Revision != want {
			t.Errorf("the term began at revision %d, want %d", g.Revision, want)
		}
		commit(t, b, g.Term, state.Batch{Revision: uint64(10 * (i + 1))})
		claims = append([]state.Claim{{Term: g.Term, Token: g.ClaimToken, Revision: g.Revision}}, claims...)
		fleetID, last = l.FleetID, g
		if err := g.Tenure.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		closeNow(t, b)
	}
}

// adopter is a journal that takes another one's terms.
type adopter interface {
	Adopt(ctx context.Context, term int64, h dump.Head, terms []dump.Term) error
}

func termsBounded(t *testing.T, open func() Backend) {
	rounds := state.KeptTerms + 3
	b := open()
	g, err := b.Acquire(t.Context(), state.Candidate{Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := b.(adopter); ok { // where a term costs syncs of a disk
		var terms []dump.Term
		for n := range rounds {
			terms = append(terms, dump.Term{Number: int64(n + 1), Token: fmt.Sprint("token", n), Revision: uint64(5 * min(n, 2))})
		}
		err = a.Adopt(t.Context(), g.Term, dump.Head{FleetID: uid.New()}, terms)
		rounds = 2
	}
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	for n := range rounds {
		b := open()
		g, err := b.Acquire(t.Context(), state.Candidate{Name: t.Name()})
		if err != nil {
			t.Fatal(err)
		}
		if rounds > 2 && n < 2 {
			commit(t, b, g.Term, state.Batch{Revision: uint64(5 * (n + 1))})
		}
		if err := errors.Join(g.Tenure.Release(t.Context()), b.Close()); err != nil {
			t.Fatal(err)
		}
	}
	_, g = acquire(t, open)
	// The two oldest, in which something was committed, outlast all that were idle.
	if len(g.Earlier) != state.KeptTerms-1+2 || g.Earlier[len(g.Earlier)-2].Revision != 5 || !slices.IsSortedFunc(g.Earlier, func(a, b state.Claim) int { return cmp.Compare(b.Term, a.Term) }) {
		t.Errorf("%d terms are kept beside the newest", len(g.Earlier))
	}
}

func staleTerm(t *testing.T, open func() Backend) {
	b, old := acquire(t, open)
	commit(t, b, old.Term, state.Batch{Revision: 1, Seq: 1, Events: []fleet.Event{{Seq: 1}}})
	closeNow(t, b)
	b, _ = acquire(t, open)
	batch := FullBatch(uid.New(), 1)
	if err := b.Commit(t.Context(), old.Term, batch); !errors.Is(err, fleet.ErrStaleTerm) {
		t.Errorf("commit under an old term: %v", err)
	}
	if n, err := b.PurgeEvents(t.Context(), old.Term, state.EventCut{Before: time.Now(), Limit: 10}); !errors.Is(err, fleet.ErrStaleTerm) || n != 0 {
		t.Errorf("purge under an old term: %d, %v", n, err)
	}
	if known, err := b.Committed(t.Context(), batch.ID); known || err != nil {
		t.Errorf("the refused batch is known: %v, %v", known, err)
	}
	if l := load(t, b, 10); l.Revision != 1 || len(l.VMs) != 0 || len(l.Events) != 1 {
		t.Errorf("the refused batch left %+v", l)
	}
}

func batchIDs(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	var ids []string
	for i := range 100 {
		id := uid.New()
		ids = append(ids, id)
		commit(t, b, g.Term, state.Batch{ID: id, Revision: uint64(i + 1)})
		if i == 70 {
			closeNow(t, b)
			b, g = acquire(t, open)
		}
	}
	for i, id := range ids[len(ids)-32:] {
		if known, err := b.Committed(t.Context(), id); !known || err != nil {
			t.Errorf("batch %d from the end: %v, %v", 32-i, known, err)
		}
	}
	if known, err := b.Committed(t.Context(), uid.New()); known || err != nil {
		t.Errorf("a batch that never was: %v, %v", known, err)
	}
}

func atomicity(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	first := FullBatch(uid.New(), 1)
	commit(t, b, g.Term, first)
	for i := range FullBatch("", 2).Writes {
		bad := FullBatch(uid.New(), 2)
		bad.Revision++
		bad.Seq++
		for n := range bad.Events {
			bad.Events[n].Seq += 10
		}
		bad.Writes[i].Row = &struct{ state.Key }{} // no row of any table
		if err := b.Commit(t.Context(), g.Term, bad); !errors.Is(err, state.ErrNotCommitted) {
			t.Fatalf("bad write %d: %v", i, err)
		}
		if known, err := b.Committed(t.Context(), bad.ID); known || err != nil {
			t.Errorf("bad write %d: the batch is known: %v, %v", i, known, err)
		}
		if diff := diffLoaded(load(t, b, 10), first); diff != "" {
			t.Fatalf("bad write %d left something:\n%s", i, diff)
		}
	}
	next := FullBatch(uid.New(), 1)
	next.Seq, next.Events = 2, nil
	commit(t, b, g.Term, next)
}

func eventQueries(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	var all []fleet.Event
	for i := range 60 {
		e := fleet.Event{
			Seq: uint64(i + 1), EntityType: state.EntityVM, EntityID: fmt.Sprint("vm", i%3),
			UID: fmt.Sprint("uid", i%5), Type: "t", At: time.Unix(int64(i), 0).UTC(),
		}
		if i%4 == 0 {
			e.EntityType, e.UID = "host", "" // of a host that has a VM's name
		} else if i%2 == 0 {
			e.State = fleet.VMStateRunning
		}
		all = append(all, e)
	}
	for i := 0; i < len(all); i += 7 {
		chunk := all[i:min(i+7, len(all))]
		commit(t, b, g.Term, state.Batch{Revision: uint64(i), Seq: chunk[len(chunk)-1].Seq, Events: chunk})
	}
	for _, q := range []state.EventQuery{
		{}, {After: 30}, {After: 60}, {After: 99}, {UpTo: 10}, {After: 5, UpTo: 9}, {Limit: 4}, {After: 20, Limit: 4},
		{VMID: "vm1"}, {VMID: "vm0", StatesOnly: true}, {UID: "uid2"}, {VMID: "vm1", UID: "uid2", After: 10},
		{VMID: "none"}, {UID: "none"}, {HostID: "vm0"}, {HostID: "none"}, {HostID: "vm0", After: 9, UpTo: 40}, {StatesOnly: true, Limit: 3}, {Limit: 1 << 30},
	} {
		var want []fleet.Event
		for i := range all {
			if q.Match(&all[i]) && len(want) < q.Normal().Limit {
				want = append(want, all[i])
			}
		}
		got, err := b.Events(t.Context(), q)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%+v:\n%s", q, diff)
		}
	}
	if diff := gocmp.Diff(all[50:], load(t, b, 10).Events); diff != "" {
		t.Errorf("the newest ten:\n%s", diff)
	}
}

func purge(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	var all []fleet.Event
	for i := range 30 {
		all = append(all, fleet.Event{Seq: uint64(i + 1), EntityID: "e", At: time.Unix(int64(1000+i), 0).UTC()})
	}
	all[19].At = time.Unix(5000, 0).UTC()
	commit(t, b, g.Term, state.Batch{Revision: 1, Seq: 30, Events: all})
	for _, step := range []struct {
		cut  state.EventCut
		want int
		left uint64 // oldest Seq that stays
	}{
		{state.EventCut{Limit: 100}, 0, 1},
		{state.EventCut{Before: time.Unix(1005, 0), Limit: 100}, 5, 6},
		{state.EventCut{Keep: 20, Limit: 3}, 3, 9},
		{state.EventCut{Keep: 20, Limit: 100}, 2, 11},
		{state.EventCut{Keep: 20, Limit: 100}, 0, 11},
		{state.EventCut{Keep: 1 << 63, Limit: 100}, 0, 11},
		{state.EventCut{Before: time.Unix(1012, 0), Keep: 15, Limit: 100}, 5, 16},
		{state.EventCut{Before: time.Unix(1025, 0), Limit: 100}, 4, 20}, // not beyond 20, whose clock was ahead
		{state.EventCut{Before: time.Unix(9999, 0), Limit: 100}, 11, 0},
	} {
		n, err := b.PurgeEvents(t.Context(), g.Term, step.cut)
		if err != nil || n != step.want {
			t.Fatalf("%+v: %d went, want %d, %v", step.cut, n, step.want, err)
		}
		left, err := b.Events(t.Context(), state.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if step.left == 0 && len(left) > 0 || step.left > 0 && (len(left) == 0 || left[0].Seq != step.left) {
			t.Errorf("%+v: %d stay, want from %d on", step.cut, len(left), step.left)
		}
	}
	if l := load(t, b, 10); l.Seq != 30 {
		t.Errorf("the head is %d after the purge", l.Seq)
	}
}

func startupLogs(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	if _, found, err := b.StartupLog(t.Context(), "none"); found || err != nil {
		t.Errorf("of a life that never was: %v, %v", found, err)
	}
	var writes []state.Write
	logs := []*fleet.StartupLog{
		{UID: "empty"},
		{UID: "bytes", Output: []byte{0, 0xff, 0xfe, '\n', 0}},
		{UID: "large", Output: slices.Repeat([]byte("0123456789abcdef"), fleet.MaxStartupLog/16), Truncated: true},
	}
	for _, l := range logs {
		writes = append(writes, state.Write{Table: state.TableStartupLogs, Key: state.Key{l.UID}, Row: l})
	}
	commit(t, b, g.Term, state.Batch{Revision: 1, Writes: writes})
	for _, want := range logs {
		got, found, err := b.StartupLog(t.Context(), want.UID)
		if err != nil || !found || got.UID != want.UID || got.Truncated != want.Truncated || !bytes.Equal(got.Output, want.Output) {
			t.Errorf("%s: found %v, %v, %d bytes of %d", want.UID, found, err, len(got.Output), len(want.Output))
		}
	}
}

func closed(t *testing.T, open func() Backend) {
	b, g := acquire(t, open)
	closeNow(t, b)
	closeNow(t, b)
	if err := b.Commit(context.Background(), g.Term, FullBatch(uid.New(), 1)); !errors.Is(err, state.ErrNotCommitted) {
		t.Errorf("commit after Close: %v", err)
	}
	if _, err := b.Load(context.Background(), 1); err == nil {
		t.Error("load after Close succeeds")
	}
}
