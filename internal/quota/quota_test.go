package quota_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type fixture struct {
	t     testing.TB
	store *state.Store
	book  *quota.Book
}

func open(t testing.TB, journal *memory.Journal, defaults quota.Amounts) *fixture {
	t.Helper()
	store, err := state.Open(context.Background(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, store: store, book: quota.New(quota.Config{
		Store: store, Logger: slog.New(slog.DiscardHandler), Defaults: defaults,
		KeyOwner: func(_ *state.ReadTx, id string) (string, bool) { return "alice", id == "ak_1" || id == "ak_2" },
	})}
}

func setup(t testing.TB, defaults quota.Amounts) *fixture {
	f := open(t, memory.New(memory.Options{}), defaults)
	t.Cleanup(func() {
		if err := f.store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) set(id string, limits map[string]int64) {
	f.t.Helper()
	change := map[string]*int64{}
	for k, v := range limits {
		change[k] = &v
	}
	if _, err := f.book.Set(f.t.Context(), id, change, "user:master"); err != nil {
		f.t.Fatal(err)
	}
}

// create is what a create does: it charges and writes its row in one Update.
func (f *fixture) create(id, owner, key string, spec fleet.Spec) error {
	_, err := f.store.Update(context.Background(), func(tx *state.Tx) error {
		if err := f.book.Charge(&tx.ReadTx, quota.Payer{Owner: owner, KeyID: key}, quota.AskOf(spec)); err != nil {
			return err
		}
		return tx.PutVM(fleet.VM{ID: id, UID: "uid-" + id, TaskID: id, Generation: 1, Owner: owner, KeyID: key, Spec: spec, State: fleet.VMStateProvisioning})
	})
	return err
}

func (f *fixture) become(id string, states ...fleet.VMState) {
	f.t.Helper()
	for _, s := range states {
		if _, err := f.store.Update(context.Background(), func(tx *state.Tx) error {
			vm, _ := tx.VMs().Get(id)
			row := *vm
			row.State = s
			return tx.PutVM(row)
		}); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) remove(id string) {
	f.t.Helper()
	if _, err := f.store.Update(context.Background(), func(tx *state.Tx) error { return tx.DeleteVM(id) }); err != nil {
		f.t.Fatal(err)
	}
}

func wantRefusal(t testing.TB, err error, code fleet.Code, scope, limit, usage string) {
	t.Helper()
	var fe *fleet.Error
	if !errors.Is(err, fleet.ErrQuotaExceeded) || !errors.As(err, &fe) {
		t.Fatalf("got %v", err)
	}
	if fe.Code != code || fe.Details[fleet.DetailScope] != scope || fe.Details[fleet.DetailLimit] != limit || fe.Details[fleet.DetailUsage] != usage || fe.Details[fleet.DetailRemedy] == "" {
		t.Errorf("got %s %q with %v", fe.Code, fe.Message, fe.Details)
	}
}

var small = fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 4}

func TestLimits(t *testing.T) {
	f := setup(t, quota.Amounts{quota.Environments: 2, quota.CPUs: 0})
	for _, id := range []string{"a", "b"} {
		if err := f.create(id, "alice", "", small); err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, f.create("c", "alice", "", small), fleet.CodeQuotaExceeded, "owner alice", "2 environments", "2 environments")
	if err := f.create("d", "bob", "", small); err != nil {
		t.Errorf("another owner pays for alice: %v", err)
	}
	for i := range 3 {
		if err := f.create(fmt.Sprint("m", i), fleet.OwnerMaster, "", small); err != nil {
			t.Errorf("the master has the defaults of others: %v", err)
		}
	}
	// What is being destroyed exists until its host says otherwise.
	f.become("a", fleet.VMStateRunning, fleet.VMStateDestroying)
	wantRefusal(t, f.create("c", "alice", "", small), fleet.CodeQuotaExceeded, "owner alice", "2 environments", "2 environments")
	f.remove("a")
	if err := f.create("c", "alice", "", small); err != nil {
		t.Errorf("room that was given back: %v", err)
	}
	f.set("owner:alice", map[string]int64{quota.Environments: fleet.NoLimit, quota.CPUs: 4, quota.MemoryMB: 3000, quota.Creates: 3})
	wantRefusal(t, f.create("e", "alice", "", fleet.Spec{CPUs: 3}), fleet.CodeQuotaExceeded, "owner alice", "4 CPUs", "2 CPUs")
	wantRefusal(t, f.create("e", "alice", "", fleet.Spec{CPUs: 5}), fleet.CodeForbidden, "owner alice", "4 CPUs", "2 CPUs")
	wantRefusal(t, f.create("e", "alice", "", fleet.Spec{CPUs: 1, RamMB: 2000}), fleet.CodeQuotaExceeded, "owner alice", "3000 MB of memory", "1024 MB of memory")
	if err := f.create("e", "alice", "", small); err != nil {
		t.Error(err)
	}
	wantRefusal(t, f.create("f", "alice", "", small), fleet.CodeQuotaExceeded, "owner alice", "3 creates in flight", "3 creates in flight")
	f.become("e", fleet.VMStateRunning)
	if err := f.create("f", "alice", "", small); err != nil {
		t.Error(err)
	}
}

func TestKeysCountBesideTheirOwner(t *testing.T) {
	f := setup(t, nil)
	f.set("owner:alice", map[string]int64{quota.Environments: 3})
	f.set("key:ak_1", map[string]int64{quota.Environments: 1})
	if err := f.create("a", "alice", "ak_1", small); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, f.create("b", "alice", "ak_1", small), fleet.CodeQuotaExceeded, "API key ak_1", "1 environments", "1 environments")
	for _, id := range []string{"c", "d"} {
		if err := f.create(id, "alice", "ak_2", small); err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, f.create("e", "alice", "ak_2", small), fleet.CodeQuotaExceeded, "owner alice", "3 environments", "3 environments")
	entries, err := f.book.List(func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s of %s %d/%d", e.Scope, e.Owner, e.Lines[0].Used, e.Lines[0].Limit))
	}
	if diff := cmp.Diff([]string{"owner:alice of alice 3/3", "key:ak_1 of alice 1/1"}, got); diff != "" {
		t.Error(diff)
	}
	if entries, err := f.book.List(func(owner string) bool { return owner == "bob" }); err != nil || len(entries) != 0 {
		t.Errorf("bob sees %v, %v", entries, err)
	}
	if _, err := f.book.Get("key:ak_1", func(owner string) bool { return owner == "bob" }); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("bob gets %v", err)
	}
}

// An environment that asks again for what it holds does not count twice.
func TestMoversPayOnce(t *testing.T) {
	f := setup(t, quota.Amounts{quota.Environments: 1, quota.CPUs: 1})
	if err := f.create("a", "alice", "", small); err != nil {
		t.Fatal(err)
	}
	_, err := f.store.Update(t.Context(), func(tx *state.Tx) error {
		return f.book.Charge(&tx.ReadTx, quota.Payer{Owner: "alice", Except: "a"}, quota.AskOf(small))
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSetAndRemove(t *testing.T) {
	journal := memory.New(memory.Options{})
	f := open(t, journal, quota.Amounts{quota.Environments: 7})
	f.set("owner:alice", map[string]int64{quota.Environments: 2, quota.CPUs: 5})
	e, err := f.book.Set(t.Context(), "owner:alice", map[string]*int64{quota.Environments: nil}, "user:master")
	if err != nil || e.Lines[0].Limit != 7 || !e.Lines[0].Default || e.Lines[1].Limit != 5 || e.Lines[1].Default {
		t.Errorf("got %+v, %v", e, err)
	}
	// What was set is there after a restart, and what is held is counted anew.
	if err := f.create("a", "alice", "", fleet.Spec{CPUs: 4}); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = open(t, journal.Reopen(), quota.Amounts{quota.Environments: 7})
	defer func() {
		if err := f.store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	wantRefusal(t, f.create("b", "alice", "", fleet.Spec{CPUs: 2}), fleet.CodeQuotaExceeded, "owner alice", "5 CPUs", "4 CPUs")
	if err := f.book.Remove(t.Context(), "owner:alice", "user:master"); err != nil {
		t.Fatal(err)
	}
	if err := f.book.Remove(t.Context(), "owner:alice", "user:master"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("removed twice: %v", err)
	}
	if err := f.create("b", "alice", "", fleet.Spec{CPUs: 2}); err != nil {
		t.Error(err)
	}
	events, err := f.store.Events(t.Context(), state.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	last := events[len(events)-1]
	if last.Type != fleet.EventQuotaRemoved || last.EntityID != "owner:alice" || last.Reason == nil {
		t.Errorf("told %+v", last)
	}
}

func TestBadInput(t *testing.T) {
	f := setup(t, nil)
	one, low, high := int64(1), int64(-2), int64(1)<<41
	for name, tt := range map[string]struct {
		id     string
		change map[string]*int64
		code   fleet.Code
		says   string
	}{
		"no scope":          {"alice", map[string]*int64{quota.CPUs: &one}, fleet.CodeInvalidArgument, "owner:NAME or key:ID"},
		"no name":           {"owner:", map[string]*int64{quota.CPUs: &one}, fleet.CodeInvalidArgument, "owner:NAME or key:ID"},
		"unknown dimension": {"owner:a", map[string]*int64{"cpu": &one}, fleet.CodeInvalidArgument, "environments, cpus, memory_mb, disk_gb, creates"},
		"nothing":           {"owner:a", nil, fleet.CodeInvalidArgument, "environments, cpus"},
		"too low":           {"owner:a", map[string]*int64{quota.CPUs: &low}, fleet.CodeInvalidArgument, "-1 for no limit"},
		"too high":          {"owner:a", map[string]*int64{quota.CPUs: &high}, fleet.CodeInvalidArgument, "-1 for no limit"},
		"unknown key":       {"key:ak_9", map[string]*int64{quota.CPUs: &one}, fleet.CodeNotFound, "fuse key ls"},
	} {
		_, err := f.book.Set(t.Context(), tt.id, tt.change, "user:master")
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Code != tt.code || !strings.Contains(fmt.Sprint(fe.Details), tt.says) {
			t.Errorf("%s: got %v with %v", name, err, fe)
		}
	}
}

// Any number of callers at once stay within the limit, and all of it is used.
func TestManyAtOnce(t *testing.T) {
	f := setup(t, quota.Amounts{quota.Environments: 10})
	var mu sync.Mutex
	var wg sync.WaitGroup
	made := 0
	for i := range 50 {
		wg.Go(func() {
			if err := f.create(fmt.Sprint("vm", i), "alice", "", small); err == nil {
				mu.Lock()
				made++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if made != 10 {
		t.Errorf("%d were made", made)
	}
}

// Whatever comes and goes, usage is what the rows add up to, and no limit is
// ever passed by a create.
func TestUsageIsTheSumOfRows(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := open(t, memory.New(memory.Options{}), quota.Amounts{quota.CPUs: 8})
		defer func() { _ = f.store.Close(context.Background()) }()
		live := map[string]fleet.VM{}
		for i := range rapid.IntRange(1, 25).Draw(r, "steps") {
			id := fmt.Sprint("vm", i)
			owner := rapid.SampledFrom([]string{"alice", "bob"}).Draw(r, "owner")
			if len(live) > 0 && rapid.IntRange(0, 2).Draw(r, "what") == 0 {
				for gone := range live {
					f.remove(gone)
					delete(live, gone)
					break
				}
				continue
			}
			spec := fleet.Spec{CPUs: rapid.IntRange(1, 4).Draw(r, "cpus"), RamMB: 256}
			if f.create(id, owner, "", spec) == nil {
				live[id] = fleet.VM{Owner: owner, Spec: spec}
			}
			want := map[string]int64{}
			for _, vm := range live {
				want[vm.Owner] += int64(vm.Spec.CPUs)
			}
			for who, sum := range want {
				e, err := f.book.Get("owner:"+who, func(string) bool { return true })
				if err != nil || e.Lines[1].Used != sum || sum > 8 {
					r.Fatalf("%s uses %+v, rows say %d, %v", who, e.Lines[1], sum, err)
				}
			}
		}
	})
}
