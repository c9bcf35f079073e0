package hosts

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

func (f *fixture) host(t *testing.T) fleet.Host {
	t.Helper()
	h, err := f.svc.Get("local")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (a *agent) setCapacity(c fleet.HostCapacity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.capacity = c
}

// What an agent says anew of overcommit and huge pages counts without a new
// registration, since both are its operator's to change.
func TestProbeRefreshesFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.register(t, nil)
		stop := f.run(t)
		defer stop()
		f.agent.mu.Lock()
		f.agent.facts.CPUOvercommit, f.agent.facts.FreeHugePages, f.agent.facts.OverheadMB, f.agent.capacity.HugePages = 2.5, 100, 77, 128
		f.agent.mu.Unlock()
		pass(DefaultProbeInterval + 2*beat)
		synctest.Wait()
		h := f.host(t)
		if h.Facts.CPUOvercommit != 2.5 || h.Facts.FreeHugePages != 100 || h.Facts.OverheadMB != 77 || h.Capacity.HugePages != 128 {
			t.Errorf("facts %+v, capacity %+v", h.Facts, h.Capacity)
		}
		if room := fleet.Room(&h); room.CPUs != 10 || room.RamMB != h.Capacity.RamMB {
			t.Errorf("room %+v of %+v", room, h.Capacity)
		}
	})
}

// Once an hour the agent is asked again: what it reports counts, except where
// the operator declared something, and what is allocated stays as it is.
func TestHourlyProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.register(t, func(r *RegisterRequest) { r.Capacity.StorageGB = 50 })
		f.update(t, func(tx *state.Tx) error { return putVM(tx, "fuse-t", "u1") })
		stop := f.run(t)
		defer stop()
		f.agent.setCapacity(fleet.HostCapacity{CPUs: 8, RamMB: 4096, StorageGB: 200, Arch: "x86_64"})
		pass(DefaultProbeInterval - 2*beat)
		if h := f.host(t); h.Capacity.CPUs != 4 {
			t.Errorf("asked early: %+v", h.Capacity)
		}
		pass(3 * beat)
		synctest.Wait()
		h := f.host(t)
		want := fleet.HostCapacity{CPUs: 8, RamMB: 4096, StorageGB: 50, VMCount: 4096 / ramPerVM, Arch: fleet.ArchAMD64}
		if diff := cmp.Diff(want, h.Capacity); diff != "" {
			t.Error(diff)
		}
		if h.Allocated.CPUs != 1 || h.Allocated.StorageGB != 1 || h.Allocated.VMCount != 1 {
			t.Errorf("allocated %+v", h.Allocated)
		}
		if diff := cmp.Diff([]string{"capacity.storage_gb: declared 50, the agent reports 200; the declared value counts"}, h.Warnings); diff != "" {
			t.Error(diff)
		}
		events, err := f.store.Events(t.Context(), state.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		last := events[len(events)-1]
		var changes map[string]change
		if err := json.Unmarshal(last.Payload, &changes); err != nil || last.Type != fleet.EventHostCapacity {
			t.Fatalf("got %+v, %v", last, err)
		}
		if diff := cmp.Diff(map[string]change{"cpus": {4, 8}, "ram_mb": {8192, 4096}, "vm_count": {32, 16}}, changes); diff != "" {
			t.Error(diff)
		}
		if last.Reason == nil || last.Reason.Evidence != "the agent was asked again: cpus 8, was 4; ram_mb 4096, was 8192; vm_count 16, was 32" {
			t.Errorf("reason %+v", last.Reason)
		}
		before := f.host(t).Revision
		pass(2 * DefaultProbeInterval)
		synctest.Wait()
		if f.host(t).Revision != before {
			t.Error("a probe without news wrote the row")
		}
	})
}

// A host that comes back is asked at once: it may have another disk.
func TestProbeOnReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		h := f.register(t, nil)
		stop := f.run(t)
		defer stop()
		f.agent.setErr(errAway)
		f.svc.Look(t.Context(), h)
		pass(time.Minute)
		f.agent.setErr(nil)
		f.agent.setCapacity(fleet.HostCapacity{CPUs: 2, RamMB: 8192, StorageGB: 100, Arch: "x86_64"})
		f.svc.Look(t.Context(), h)
		pass(2 * beat)
		synctest.Wait()
		if h := f.host(t); h.Capacity.CPUs != 2 {
			t.Errorf("got %+v", h.Capacity)
		}
	})
}

// What an agent says that is another one, of another architecture, or nothing
// at all, changes nothing; it is asked again a minute later, not at each beat.
func TestProbeThatIsNotBelieved(t *testing.T) {
	for name, breaks := range map[string]func(*agent){
		"another registry":     func(a *agent) { a.facts.RegistryID = "reg2" },
		"another architecture": func(a *agent) { a.capacity.Arch = "aarch64" },
		"no answer":            func(a *agent) { a.capErr = errAway },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := setup(t)
				f.register(t, func(r *RegisterRequest) { r.Capacity.Arch = "amd64" })
				before := f.host(t)
				stop := f.run(t)
				defer stop()
				f.agent.mu.Lock()
				f.agent.capacity.CPUs = 64
				breaks(f.agent)
				f.agent.asked = 0
				f.agent.mu.Unlock()
				pass(DefaultProbeInterval + 3*probeAgain - beat)
				synctest.Wait()
				if h := f.host(t); h.Revision != before.Revision {
					t.Errorf("got %+v", h)
				}
				f.agent.mu.Lock()
				defer f.agent.mu.Unlock()
				if f.agent.asked < 2 || f.agent.asked > 4 {
					t.Errorf("asked %d times", f.agent.asked)
				}
			})
		})
	}
}

// A record of an older version does not tell what was declared: all of it
// counts as such.
func TestOlderRecordIsKept(t *testing.T) {
	f := setup(t)
	f.register(t, nil)
	f.update(t, func(tx *state.Tx) error {
		h, _ := tx.Hosts().Get("local")
		row := *h
		row.Declared = nil
		return tx.PutHost(row)
	})
	f.agent.setCapacity(fleet.HostCapacity{CPUs: 64, RamMB: 1, StorageGB: 1, Arch: "x86_64"})
	f.svc.reprobe(t.Context(), "local")
	if h := f.host(t); h.Capacity.CPUs != 4 {
		t.Errorf("got %+v", h.Capacity)
	}
}

func TestProbesAreBounded(t *testing.T) {
	f := setup(t)
	p := newProbes(f.svc.base)
	for range maxProbes {
		p.slots <- struct{}{}
	}
	f.register(t, nil)
	f.agent.asked = 0
	p.start(t.Context(), time.Now().Add(2*DefaultProbeInterval))
	p.wait()
	if f.agent.asked != 0 {
		t.Error("a probe too many")
	}
	f.svc.cfg.ProbeInterval = 0
	if due := f.svc.due(time.Now().Add(2 * DefaultProbeInterval)); len(due) != 0 {
		t.Errorf("due although they are off: %v", due)
	}
}
