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
	"github.com/google/go-cmp/cmp/cmpopts"
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
		Facts:   fleet.HostFacts{OverheadMB: n("overhead", 2) * 90, CPUOvercommit: rapid.SampledFrom([]float64{0, 1, 1.5, 4}).Draw(t, "overcommit")},
		Capacity: fleet.HostCapacity{
			CPUs: n("cpus", 16), RamMB: n("ram", 8) * 1024, StorageGB: n("disk", 100), VMCount: n("slots", 6), HugePages: n("huge", 4) * 512,
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
	s.HugePages = rapid.IntRange(0, 4).Draw(t, "huge pages") == 0
	if v := few(t, "want label", "", "", "x"); v != "" {
		s.Labels = map[string]string{"k1": v}
	}
	return s
}

func genInput(t *rapid.T) schedule.Input {
	var in schedule.Input
	var ids []string
	in.Hints.ArtifactHosts, in.Hints.ImageHosts = map[string]bool{}, map[string]bool{}
	in.Unreachable, in.Refused = map[string]string{}, map[string]string{}
	for i := range rapid.IntRange(1, 9).Draw(t, "hosts") {
		id := fmt.Sprintf("h%d", i)
		ids = append(ids, id)
		in.Hosts = append(in.Hosts, genHost(t, id))
		switch rapid.IntRange(0, 9).Draw(t, "circumstance") {
		case 0:
			in.Unreachable[id] = "down"
		case 1:
			in.Hints.ArtifactHosts[id] = true
		case 2:
			in.Hints.ImageHosts[id] = true
		case 3:
			in.Refused[id] = "full"
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
	_, refused := in.Refused[h.ID]
	fail(schedule.GateAsked, refused)
	fail(schedule.GateRegion, in.Spec.Region != "" && in.Spec.Region != h.Region)
	fail(schedule.GateArch, want != "" && want != arch)
	fail(schedule.GateGPUBackend, in.Spec.GPUs > 0 && h.Backend != "qemu")
	for k, v := range in.Spec.Labels {
		fail(schedule.GateLabels, h.Labels[k] != v)
	}
	fail(schedule.GateFit, over(sum, fleet.Room(h)))
	return failed
}

func over(sum, total fleet.HostCapacity) bool {
	return sum.CPUs > total.CPUs || sum.RamMB > total.RamMB || sum.StorageGB > total.StorageGB ||
		sum.VMCount > total.VMCount || sum.GPUs > total.GPUs || sum.HugePages > total.HugePages
}

func TestEveryHostIsExplained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := genInput(t)
		p := schedule.Explain(in)
		err := p.Err
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
		if len(named) != len(p.Refusals) || p.Refused != len(named) || p.Decision.Candidates != survivors || (err == nil) != (survivors > 0) {
			t.Errorf("%d survivors, decision %+v, error %v, refusals %v", survivors, p.Decision, err, p.Refusals)
		}
		checkExplained(t, in, p)
		if err == nil {
			return
		}
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Details[fleet.DetailRemedy] == "" {
			t.Errorf("no remedy in %v", err)
		}
	})
}

// checkExplained holds an explanation to the placement that it explains.
func checkExplained(t *rapid.T, in schedule.Input, e schedule.Explanation) {
	p, err := schedule.Place(in)
	if fmt.Sprint(err) != fmt.Sprint(e.Err) || !cmp.Equal(p.Decision, e.Decision) {
		t.Errorf("placed %+v (%v), explained %+v (%v)", p.Decision, err, e.Decision, e.Err)
	}
	if err == nil && e.Candidates[0].HostID != p.Host.ID {
		t.Errorf("%s is taken, %s comes first", p.Host.ID, e.Candidates[0].HostID)
	}
	if len(e.Candidates)+len(e.Refusals) != len(in.Hosts) {
		t.Errorf("%d candidates and %d refusals of %d hosts", len(e.Candidates), len(e.Refusals), len(in.Hosts))
	}
	if diff := cmp.Diff(e.Gates(), p.RefusedBy(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("counted by gate:\n%s", diff)
	}
	if !cmp.Equal(p.Refusals, e.Refusals[:len(p.Refusals)], cmpopts.EquateEmpty()) {
		t.Errorf("placement names %v first, the explanation %v", p.Refusals, e.Refusals)
	}
	if err == nil && len(p.Refusals) != min(len(e.Refusals), schedule.MaxRefusals) {
		t.Errorf("%d refusals named of %d", len(p.Refusals), len(e.Refusals))
	}
	total := 0
	for _, g := range e.Gates() {
		total += g.Hosts
	}
	if total != len(e.Refusals) {
		t.Errorf("gates %v count %d of %d refusals", e.Gates(), total, len(e.Refusals))
	}
}

// A device has one holder, whatever comes and goes and in which order.
func TestNoDeviceTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := host("a", func(h *fleet.Host) { h.Capacity.CPUs, h.Capacity.VMCount = 100, 100 })
		for i := range rapid.IntRange(1, 4).Draw(t, "cards") {
			mode := few(t, "mode", "", "Enabled")
			h.Capacity.GPUDevices = append(h.Capacity.GPUDevices, fleet.GPUDevice{UUID: fmt.Sprint("g", i), Model: few(t, "model", "A100", "T4"), MIGMode: mode})
			for j := range 2 {
				h.Capacity.MIGInstances = append(h.Capacity.MIGInstances, fleet.MIGInstance{UUID: fmt.Sprint("m", i, j), Profile: "1g", Kind: "A100"})
			}
		}
		h.Capacity.GPUs = len(h.Capacity.GPUDevices)
		var held []fleet.Spec
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				h.Allocated = h.Allocated.Minus(fleet.Demand(held[i], h.Facts))
				held = slices.Delete(held, i, i+1)
				continue
			}
			spec := with(func(s *fleet.Spec) {
				s.GPUs, s.GPUKind, s.GPUProfile = int32(rapid.IntRange(1, 2).Draw(t, "gpus")), few(t, "kind", "", "a100"), few(t, "profile", "", "1g")
			})
			bound, ok := schedule.Bind(spec, h)
			if fits := len(schedule.Fits(spec, h)) == 0; ok != fits {
				t.Fatalf("bound %v, fits %v: %+v on %+v", ok, fits, spec, h)
			}
			if !ok {
				continue
			}
			held = append(held, bound)
			h.Allocated = h.Allocated.Plus(fleet.Demand(bound, h.Facts))
			seen := map[string]bool{}
			for _, s := range held {
				for _, uuid := range slices.Concat(s.GPUUUIDs, s.MIGInstanceUUIDs) {
					if seen[uuid] {
						t.Fatalf("device %s is held twice: %+v", uuid, held)
					}
					seen[uuid] = true
				}
			}
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
			n := (fleet.Room(h).CPUs-h.Allocated.CPUs)*10000 + h.Capacity.RamMB - h.Allocated.RamMB
			if in.Hints.ImageHosts[h.ID] {
				if in.Policy == fleet.PlacementBinpack {
					return n - 40000
				}
				return n + 40000
			}
			return n
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
		if diff := cmp.Diff(a, b, cmp.AllowUnexported(schedule.Placement{})); diff != "" {
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
			if over(p.Host.Allocated, fleet.Room(p.Host)) {
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
		for _, n := range []int{1000, 10000} {
			in := schedule.Input{Spec: bench.spec}
			for i := range n {
				in.Hosts = append(in.Hosts, host(fmt.Sprintf("host-%05d", i), used(i%8, i%4096), labelled("disk", "ssd")))
			}
			b.Run(bench.name+"/"+strconv.Itoa(n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if p, err := schedule.Place(in); (err == nil) == (p.Refused == n) {
						b.Fatal(p.Decision, err)
					}
				}
			})
		}
	}
}
