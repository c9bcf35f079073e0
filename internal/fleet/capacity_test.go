package fleet_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
)

func TestDemandCountsOverheadSlotAndGPUs(t *testing.T) {
	facts := fleet.HostFacts{OverheadMB: 120}
	for name, tt := range map[string]struct {
		spec fleet.Spec
		want fleet.HostCapacity
	}{
		"plain": {
			fleet.Spec{CPUs: 2, RamMB: 512, StorageGB: 4},
			fleet.HostCapacity{CPUs: 2, RamMB: 632, StorageGB: 4, VMCount: 1},
		},
		"whole gpus": {
			fleet.Spec{CPUs: 2, RamMB: 512, StorageGB: 4, GPUs: 2, GPUUUIDs: []string{"g1", "g2"}},
			fleet.HostCapacity{CPUs: 2, RamMB: 632, StorageGB: 4, VMCount: 1, GPUs: 2, GPUDeviceUUIDs: []string{"g1", "g2"}},
		},
		"slices of a gpu are not whole gpus": {
			fleet.Spec{CPUs: 1, RamMB: 1, StorageGB: 1, GPUs: 1, GPUProfile: "1g.10gb", MIGInstanceUUIDs: []string{"m"}},
			fleet.HostCapacity{
				CPUs: 1, RamMB: 121, StorageGB: 1, VMCount: 1,
				MIGProfiles: map[string]int{"1g.10gb": 1}, MIGInstanceUUIDs: []string{"m"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, fleet.Demand(tt.spec, facts)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMinusUndoesPlus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sum := fleet.HostCapacity{}
		var parts []fleet.HostCapacity
		for i := range rapid.IntRange(1, 6).Draw(t, "vms") {
			spec := fleet.Spec{
				CPUs:  rapid.IntRange(1, 8).Draw(t, "cpus"),
				RamMB: rapid.IntRange(64, 4096).Draw(t, "ram"),
				GPUs:  int32(rapid.IntRange(0, 2).Draw(t, "gpus")),
			}
			switch device := "dev" + string(rune('a'+i)); {
			case spec.GPUs > 0 && rapid.Bool().Draw(t, "mig"):
				spec.GPUProfile, spec.MIGInstanceUUIDs = "1g.10gb", []string{device}
			case spec.GPUs > 0:
				spec.GPUUUIDs = []string{device}
			}
			d := fleet.Demand(spec, fleet.HostFacts{OverheadMB: 90})
			parts, sum = append(parts, d), sum.Plus(d)
		}
		for _, p := range rapid.Permutation(parts).Draw(t, "order") {
			sum = sum.Minus(p)
		}
		if diff := cmp.Diff(fleet.HostCapacity{}, sum); diff != "" {
			t.Errorf("something is left when all has gone:\n%s", diff)
		}
	})
}
