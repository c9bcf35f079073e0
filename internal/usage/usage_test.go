package usage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is hosts whose machines take what the test says.
type world struct {
	provider.Provider
	use   map[string]fleet.Usage // by uid
	asked atomic.Int64
	down  bool
}

func (w *world) Usage(_ context.Context, refs []provider.Ref) ([]fleet.Usage, error) {
	w.asked.Add(1)
	if w.down {
		return nil, errors.New("no answer")
	}
	var out []fleet.Usage
	for _, r := range refs {
		if u, ok := w.use[r.UID]; ok {
			u.UID, u.At = r.UID, time.Now()
			out = append(out, u)
		}
	}
	return append(out, fleet.Usage{UID: "of another fleet"}), nil
}

type mute struct{ provider.Provider }

type hosts map[string]provider.Provider

func (h hosts) Provider(id string) (provider.Provider, error) { return h[id], nil }

func rig(t *testing.T, h hosts, took func(string, Taken)) (*Service, *state.Store) {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	for i, host := range []string{"a", "a", "b", "mute"} {
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			return tx.PutHost(fleet.Host{ID: host, State: fleet.HostActive, URL: "https://" + host, Capacity: fleet.HostCapacity{CPUs: 9, RamMB: 9999, VMCount: 9}})
		}); err != nil {
			t.Fatal(err)
		}
		vm := fleet.VM{ID: fmt.Sprintf("fuse-%d", i), UID: fmt.Sprintf("uid-fuse-%d", i), TaskID: fmt.Sprint(i), HostID: host, Owner: "me", Generation: 1}
		for _, vm.State = range []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning} {
			if _, err := store.Update(t.Context(), func(tx *state.Tx) error { return tx.PutVM(vm) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	return New(Config{Store: store, Providers: h, Took: took, Logger: slog.New(slog.DiscardHandler)}), store
}

func TestRatesComeFromTwoLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &world{use: map[string]fleet.Usage{"uid-fuse-0": {CPUSeconds: 10, MemoryBytes: 7, NetInBytes: 1000}, "uid-fuse-1": {CPUSeconds: 1}}}, &world{down: true}
		told := map[string][]Taken{}
		s, _ := rig(t, hosts{"a": a, "b": b, "mute": mute{}}, func(host string, t Taken) { told[host] = append(told[host], t) })
		list, unseen := s.List(t.Context())
		if len(list) != 2 || list[0].VMID != "fuse-0" || list[0].Owner != "me" || list[0].HostID != "a" || list[0].Rates != nil {
			t.Errorf("first: %+v", list)
		}
		if diff := cmp.Diff([]string{"b", "mute"}, unseen); diff != "" {
			t.Error(diff)
		}
		if s.List(t.Context()); a.asked.Load() != 1 {
			t.Errorf("asked %d times within a moment", a.asked.Load())
		}
		<-time.After(10 * time.Second) // virtual
		a.use["uid-fuse-0"] = fleet.Usage{CPUSeconds: 25, MemoryBytes: 9, NetInBytes: 6000, DiskWriteBytes: 100}
		a.use["uid-fuse-1"] = fleet.Usage{CPUSeconds: 0.5} // its process is another
		list, _ = s.List(t.Context())
		if r := list[0].Rates; r == nil || r.CPUs != 1.5 || r.NetInBps != 500 || r.DiskWriteBps != 10 || list[1].Rates != nil {
			t.Errorf("second: %+v %+v", r, list[1].Rates)
		}
		want := []Taken{{CPUSeconds: 11, In: 1000, Memory: 7, Machines: 2}, {CPUSeconds: 15.5, In: 5000, DiskWrite: 100, Memory: 9, Machines: 2}}
		if diff := cmp.Diff(want, told["a"]); diff != "" || len(told["b"]) != 0 {
			t.Errorf("%s, b %v", diff, told["b"])
		}
	})
}

// One that came to run a moment after a look is looked at, not told to be unread.
func TestAnEnvironmentYoungerThanTheLastLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &world{use: map[string]fleet.Usage{"uid-fuse-0": {}, "young": {MemoryBytes: 7}}}
		s, store := rig(t, hosts{"a": a, "b": &world{down: true}, "mute": mute{}}, nil)
		s.List(t.Context())
		<-time.After(time.Second) // virtual
		vm := fleet.VM{ID: "fuse-young", UID: "young", TaskID: "young", HostID: "a", Generation: 1}
		for _, vm.State = range []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning} {
			if _, err := store.Update(t.Context(), func(tx *state.Tx) error { vm.UpdatedAt = tx.Now(); return tx.PutVM(vm) }); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second is told from the look for the first
			if got, err := s.Of(t.Context(), "fuse-young"); err != nil || got.MemoryBytes != 7 {
				t.Errorf("%+v, %v", got, err)
			}
			<-time.After(time.Second) // virtual
		}
		if n := a.asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestOneEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &world{use: map[string]fleet.Usage{"uid-fuse-0": {CPUSeconds: 10}}}
		s, store := rig(t, hosts{"a": a, "b": &world{down: true}, "mute": mute{}}, nil)
		if u, err := s.Of(t.Context(), "fuse-0"); err != nil || u.CPUSeconds != 10 {
			t.Errorf("%+v, %v", u, err)
		}
		for id, code := range map[string]fleet.Code{"fuse-1": fleet.CodeUnavailable, "fuse-2": fleet.CodeUnimplemented, "fuse-3": fleet.CodeUnimplemented, "none": fleet.CodeNotFound} {
			if _, err := s.Of(t.Context(), id); fleet.CodeOf(err) != code {
				t.Errorf("%s: %v", id, err)
			}
		}
		_, err := store.Update(t.Context(), func(tx *state.Tx) error {
			vm, _ := tx.VMs().Get("fuse-0")
			gone := *vm
			gone.State = fleet.VMStateDestroying
			return tx.PutVM(gone)
		})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(6 * time.Second) // virtual
		if _, err := s.Of(t.Context(), "fuse-0"); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("one that is ending: %v", err)
		}
	})
}

func TestRunLooksOnItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &world{}
		s, _ := rig(t, hosts{"a": a, "b": a, "mute": mute{}}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(31 * time.Second) // virtual
		synctest.Wait()
		if a.asked.Load() != 4 {
			t.Errorf("asked %d times in half a minute", a.asked.Load())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What was missed in one look is told with the next, and nothing twice.
func TestAMissedLookIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &world{use: map[string]fleet.Usage{"uid-fuse-0": {CPUSeconds: 10, NetInBytes: 100}}}
		total := Taken{}
		s, store := rig(t, hosts{"a": a, "b": a, "mute": mute{}}, func(host string, t Taken) {
			if host == "a" {
				total.CPUSeconds, total.In = total.CPUSeconds+t.CPUSeconds, total.In+t.In
			}
		})
		look := func() []Sample {
			<-time.After(10 * time.Second) // virtual
			list, _ := s.List(t.Context())
			return list
		}
		look()
		a.down = true
		if list := look(); len(list) != 0 {
			t.Errorf("of a host that is not seen: %+v", list)
		}
		a.down = false
		a.use["uid-fuse-0"] = fleet.Usage{CPUSeconds: 12, NetInBytes: 160}
		if list := look(); len(list) != 1 || list[0].Rates == nil || list[0].Rates.CPUs != 0.1 {
			t.Errorf("seen again: %+v", list)
		}
		if total.CPUSeconds != 12 || total.In != 160 {
			t.Errorf("told %+v in all", total)
		}
		still := func(p *fleet.Standstill) {
			if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
				vm, _ := tx.VMs().Get("fuse-0")
				next := *vm
				next.Paused = p
				return tx.PutVM(next)
			}); err != nil {
				t.Fatal(err)
			}
		}
		at := func(a fleet.Activity) *fleet.Standstill {
			return &fleet.Standstill{Activity: a, Reason: fleet.Reason{Actor: "user:x", Rule: fleet.RuleRequested}, At: time.Now(), Op: "o"}
		}
		still(at(fleet.ActivityPausing))
		look()
		still(nil) // the pause has failed: the process is the same
		a.use["uid-fuse-0"] = fleet.Usage{CPUSeconds: 13, NetInBytes: 170}
		if list := look(); len(list) != 1 || list[0].Rates == nil || list[0].Rates.CPUs != 0.05 {
			t.Errorf("after a pause that failed: %+v", list)
		}
		if total.CPUSeconds != 13 || total.In != 170 {
			t.Errorf("told %+v in all", total)
		}
		still(at(fleet.ActivityPaused))
		if list := look(); len(list) != 0 {
			t.Errorf("of one that stands still: %+v", list)
		}
		if _, err := s.Of(t.Context(), "fuse-0"); fleet.CodeOf(err) != fleet.CodeConflict || !strings.Contains(err.Error(), "paused") {
			t.Errorf("one that stands still: %v", err)
		}
		still(nil)
		a.use["uid-fuse-0"] = fleet.Usage{CPUSeconds: 20, NetInBytes: 200} // of a new process
		look()
		if total.CPUSeconds != 33 || total.In != 370 {
			t.Errorf("told %+v in all", total)
		}
	})
}

// A reboot becomes an event once, with its cause, whoever looks how often.
func TestRebootsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := time.Now().Add(time.Minute)
		a := &world{use: map[string]fleet.Usage{"uid-fuse-0": {Reboots: []fleet.Reboot{{At: first, Cause: "reboot"}}}}}
		s, store := rig(t, hosts{"a": a, "b": a, "mute": mute{}}, nil)
		for range 2 {
			s.List(t.Context())
			<-time.After(10 * time.Second) // virtual
		}
		a.use["uid-fuse-0"] = fleet.Usage{Reboots: []fleet.Reboot{{At: first, Cause: "reboot"}, {At: first.Add(time.Minute), Cause: "panic"}}}
		s.List(t.Context())
		events, err := store.Events(t.Context(), state.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, e := range events {
			if e.Type == fleet.EventVMRebooted {
				told = append(told, e.UID+" "+string(e.Payload))
			}
		}
		if len(told) != 2 || !strings.Contains(told[0], `"cause":"reboot"`) || !strings.Contains(told[1], `"cause":"panic"`) {
			t.Errorf("told %q", told)
		}
	})
}
