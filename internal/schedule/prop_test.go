package schedule_test

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/schedule"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("rapid.checks", strconv.Itoa(testkit.Count(2000, 100000))); err != nil {
		panic(err)
	}
	testkit.Main(m)
}

// few draws from a short list, so that generated hosts and specs meet.
func few(t *rapid.T, label string, values ...string) string {
	return rapid.SampledFrom(values).Draw(t, label)
}

func genHost(t *rapid.T, id string) *fleet.Host {
	n := func(label string, most int) int { return rapid.IntRange(0, most).Draw(t, label) }
	h := &fleet.Host{
		ID:      id,
		State:   fleet.HostState(few(t, "state", "active", "active", "active", "cordoned", "draining")),
		Backend: fleet.HostBackend(few(t, "backend", "qemu", "qemu", "", "sim")),
		Region:  few(t, "region", "", "eu", "us"),
		Facts:   fleet.HostFacts{OverheadMB: n("overhead", 2) * 90},
		Capacity: fleet.HostCapacity{
			CPUs: n("cpus", 16), RamMB: n("ram", 8) * 1024, StorageGB: n("disk", 100), VMCount: n("slots", 6),
			Arch: few(t, "arch", "", "amd64", "arm64"), GPUs: n("gpus", 2), GPUKind: "a100",
		},
		Labels: map[string]string{},
	}
	for _, k := range []string{"k1", "k2"} {
		if v := few(t, k, "", "x", "y"); v != "" {
			h.Labels[k] = v
		}
	}
	return h
}

func genSpec(t *rapid.T, ids []string) fleet.Spec {
	s := fleet.Spec{
		CPUs:      rapid.IntRange(1, 6).Draw(t, "need cpus"),
		RamMB:     rapid.IntRange(1, 4).Draw(t, "need ram") * 512,
		StorageGB: rapid.IntRange(1, 20).Draw(t, "need disk"),
		Region:    few(t, "want region", "", "", "eu"),
		Arch:      few(t, "want arch", "", "", "x86_64", "arm64"),
		GPUs:      int32(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "want gpus")),
	}
	if rapid.IntRange(0, 4).Draw(t, "pinned") == 0 {
		s.HostID = rapid.SampledFrom(append([]string{"nowhere"}, ids...)).Draw(t, "pin")
	}
	if v := few(t, "want label", "", "", "x"); v != "" {
		s.Labels = map[string]string{"k1": v}
	}
	return s
}

func genInput(t *rapid.T) schedule.Input {
	var in schedule.Input
	var ids []string
	in.Hints.ArtifactHosts, in.Unreachable = map[string]bool{}, map[string]string{}
	for i := range rapid.IntRange(1, 6).Draw(t, "hosts") {
		id := fmt.Sprintf("h%d", i)
		ids = append(ids, id)
		in.Hosts = append(in.Hosts, genHost(t, id))
		switch rapid.IntRange(0, 5).Draw(t, "circumstance") {
		case 0:
			in.Unreachable[id] = "down"
		case 1:
			in.Hints.ArtifactHosts[id] = true
		}
	}
	in.Policy = fleet.PlacementPolicy(few(t, "policy", "", "spread", "binpack"))
	in.Spec = genSpec(t, ids)
	return in
}

// refusedBy is an independent reading of the rules: the gates that a host
// fails, in any order.
func refusedBy(in schedule.Input, h *fleet.Host) []schedule.Gate {
	var failed []schedule.Gate
	fail := func(g schedule.Gate, bad bool) {
		if bad {
			failed = append(failed, g)
		}
	}
	_, down := in.Unreachable[h.ID]
	arch := h.Capacity.Arch
	if arch == "" {
		arch = "amd64"
	}
	want := strings.ReplaceAll(in.Spec.Arch, "x86_64", "amd64")
	sum := h.Allocated.Plus(fleet.Demand(in.Spec, h.Facts))
	fail(schedule.GatePin, in.Spec.HostID != "" && in.Spec.HostID != h.ID)
	fail(schedule.GateState, h.State != "active")
	fail(schedule.GateReachable, down)
	fail(schedule.GateRegion, in.Spec.Region != "" && in.Spec.Region != h.Region)
	fail(schedule.GateArch, want != "" && want != arch)
	fail(schedule.GateGPUBackend, in.Spec.GPUs > 0 && h.Backend != "qemu")
	for k, v := range in.Spec.Labels {
		fail(schedule.GateLabels, h.Labels[k] != v)
	}
	fail(schedule.GateFit, over(sum, h.Capacity))
	return failed
}

func over(sum, total fleet.HostCapacity) bool {
	return sum.CPUs > total.CPUs || sum.RamMB > total.RamMB || sum.StorageGB > total.StorageGB ||
		sum.VMCount > total.VMCount || sum.GPUs > total.GPUs
}

func TestEveryHostIsExplained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := genInput(t)
		p, err := schedule.Place(in)
		named := map[string]schedule.Gate{}
		for _, r := range p.Refusals {
			named[r.HostID] = r.Gate
			if r.String() == "" {
				t.Errorf("host %s is refused without words", r.HostID)
			}
		}
		survivors := 0
		for _, h := range in.Hosts {
			failed := refusedBy(in, h)
			gate, refused := named[h.ID]
			switch {
			case refused && !slices.Contains(failed, gate):
				t.Errorf("host %s is refused by %s, which it passes; it fails %v", h.ID, gate, failed)
			case !refused && len(failed) > 0:
				t.Errorf("host %s passes though it fails %v", h.ID, failed)
			case !refused:
				survivors++
			}
		}
		if len(named) != len(p.Refusals) || p.Decision.Candidates != survivors || (err == nil) != (survivors > 0) {
			t.Errorf("%d survivors, decision %+v, error %v, refusals %v", survivors, p.Decision, err, p.Refusals)
		}
		if err == nil {
			return
		}
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Details[fleet.DetailRemedy] == "" {
			t.Errorf("no remedy in %v", err)
		}
	})
}

func TestBestSurvivorWins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := genInput(t)
		p, err := schedule.Place(in)
		if err != nil {
			return
		}
		score := func(h *fleet.Host) int {
			return (h.Capacity.CPUs-h.Allocated.CPUs)*10000 + h.Capacity.RamMB - h.Allocated.RamMB
		}
		holders := 0
		for _, h := range in.Hosts {
			if len(refusedBy(in, h)) > 0 || h.ID == p.Host.ID {
				continue
			}
			local, winnerLocal := in.Hints.ArtifactHosts[h.ID], in.Hints.ArtifactHosts[p.Host.ID]
			if local {
				holders++
			}
			better := score(h) > score(p.Host)
			if in.Policy == fleet.PlacementBinpack {
				better = score(h) < score(p.Host)
			}
			switch {
			case local && !winnerLocal:
				t.Errorf("%s holds the artifact, %s was chosen", h.ID, p.Host.ID)
			case local == winnerLocal && better:
				t.Errorf("%s scores better than %s", h.ID, p.Host.ID)
			case local == winnerLocal && score(h) == score(p.Host) && h.ID < p.Host.ID:
				t.Errorf("%s ties with %s and has the lower id", h.ID, p.Host.ID)
			}
		}
		if in.Hints.ArtifactHosts[p.Host.ID] {
			holders++
		}
		if p.Decision.ArtifactHolders != holders || p.Decision.ArtifactLocal != (holders > 0) {
			t.Errorf("%d qualified holders, decision %+v", holders, p.Decision)
		}
	})
}

func TestOrderOfHostsChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := genInput(t)
		a, errA := schedule.Place(in)
		in.Hosts = rapid.Permutation(in.Hosts).Draw(t, "order")
		b, errB := schedule.Place(in)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("placement differs:\n%s", diff)
		}
		if fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Errorf("errors differ:\n%v\n%v", errA, errB)
		}
	})
}

func TestNeverOverCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := genInput(t)
		placed := map[string]int{}
		for range rapid.IntRange(1, 25).Draw(t, "creates") {
			in.Spec = genSpec(t, []string{"h0", "h1"})
			before := *in.Hosts[0]
			p, err := schedule.Place(in)
			if diff := cmp.Diff(before, *in.Hosts[0]); diff != "" {
				t.Fatalf("placing changed a host:\n%s", diff)
			}
			if err != nil {
				continue
			}
			p.Host.Allocated = p.Host.Allocated.Plus(fleet.Demand(in.Spec, p.Host.Facts))
			placed[p.Host.ID]++
			if over(p.Host.Allocated, p.Host.Capacity) {
				t.Fatalf("host %s holds %+v of %+v after %d", p.Host.ID, p.Host.Allocated, p.Host.Capacity, placed[p.Host.ID])
			}
		}
	})
}

func BenchmarkPlace(b *testing.B) {
	for _, bench := range []struct {
		name string
		spec fleet.Spec
	}{
		{"fits", fleet.Spec{CPUs: 2, RamMB: 1024, StorageGB: 4, Labels: map[string]string{"disk": "ssd"}}},
		{"refused", fleet.Spec{CPUs: 64, RamMB: 1024, StorageGB: 4}},
	} {
		b.Run(bench.name+"/1000", func(b *testing.B) {
			in := schedule.Input{Spec: bench.spec}
			for i := range 1000 {
				in.Hosts = append(in.Hosts, host(fmt.Sprintf("host-%04d", i), used(i%8, i%4096), labelled("disk", "ssd")))
			}
			b.ReportAllocs()
			for b.Loop() {
				if p, err := schedule.Place(in); (err == nil) == (len(p.Refusals) == 1000) {
					b.Fatal(p.Decision, err)
				}
			}
		})
	}
}
