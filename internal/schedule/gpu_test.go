package schedule_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/schedule"
)

func TestGPUsFitByCount(t *testing.T) {
	card := func(uuid, model string, edits ...func(*fleet.GPUDevice)) fleet.GPUDevice {
		d := fleet.GPUDevice{UUID: uuid, Model: model}
		for _, edit := range edits {
			edit(&d)
		}
		return d
	}
	inMIG := func(d *fleet.GPUDevice) { d.MIGCapable, d.MIGMode = true, "Enabled" }
	counted := func(total, inUse int) *fleet.Host {
		return host("a", func(h *fleet.Host) {
			h.Capacity.GPUs, h.Capacity.GPUKind, h.Allocated.GPUs = total, "NVIDIA A100", inUse
		})
	}
	devices := host("a", func(h *fleet.Host) {
		h.Capacity.GPUs = 3
		h.Capacity.GPUDevices = []fleet.GPUDevice{card("g1", "NVIDIA A100"), card("g2", "NVIDIA A100"), card("g3", "NVIDIA A100", inMIG), card("g4", "NVIDIA T4")}
		h.Allocated.GPUDeviceUUIDs = []string{"g1"}
	})
	slices := host("a", func(h *fleet.Host) {
		h.Capacity.MIGInstances = []fleet.MIGInstance{{UUID: "m1", Profile: "1g.10gb", Kind: "a100"}, {UUID: "m2", Profile: "1g.10gb", Kind: "a100"}, {UUID: "m3", Profile: "3g.40gb", Kind: "a100"}, {Profile: "3g.40gb"}}
		h.Capacity.MIGProfiles = map[string]int{"1g.10gb": 2, "3g.40gb": 9}
		h.Allocated.MIGInstanceUUIDs = []string{"m2"}
	})
	sliceCounts := host("a", func(h *fleet.Host) {
		h.Capacity.MIGProfiles = map[string]int{"1g.10gb": 4}
		h.Capacity.GPUDevices = []fleet.GPUDevice{card("g1", "NVIDIA A100", inMIG), card("g2", "NVIDIA H100")}
		h.Allocated.MIGProfiles = map[string]int{"1g.10gb": 3}
	})
	gpus := func(n int32, kind, profile string) fleet.Spec {
		return with(func(s *fleet.Spec) { s.GPUs, s.GPUKind, s.GPUProfile = n, kind, profile })
	}
	for name, tt := range map[string]struct {
		spec fleet.Spec
		host *fleet.Host
		want []schedule.Shortage
	}{
		"counter has room":               {gpus(2, "a100", ""), counted(4, 2), nil},
		"counter is full":                {gpus(2, "a100", ""), counted(4, 3), []schedule.Shortage{{Resource: "gpus of kind a100", Need: 2, Free: 1, Total: 4}}},
		"counter of another kind":        {gpus(1, "h100", ""), counted(4, 0), []schedule.Shortage{{Resource: "gpus of kind h100", Need: 1}}},
		"any kind will do":               {gpus(1, "", ""), counted(1, 0), nil},
		"a free card":                    {gpus(1, "A100", ""), devices, nil},
		"no second free card":            {gpus(2, "a100", ""), devices, []schedule.Shortage{{Resource: "gpus of kind a100", Need: 2, Free: 1, Total: 2}}},
		"a free instance":                {gpus(1, "a100", "1g.10gb"), slices, nil},
		"instances count, not profiles":  {gpus(2, "", "1g.10gb"), slices, []schedule.Shortage{{Resource: "1g.10gb gpu instances", Need: 2, Free: 1, Total: 2}}},
		"an instance without a name":     {gpus(2, "", "3g.40gb"), slices, []schedule.Shortage{{Resource: "3g.40gb gpu instances", Need: 2, Free: 1, Total: 1}}},
		"instances of another kind":      {gpus(1, "h100", "1g.10gb"), slices, []schedule.Shortage{{Resource: "1g.10gb gpu instances of kind h100", Need: 1}}},
		"profile counter":                {gpus(1, "a100", "1g.10gb"), sliceCounts, nil},
		"profile counter is full":        {gpus(2, "", "1g.10gb"), sliceCounts, []schedule.Shortage{{Resource: "1g.10gb gpu instances", Need: 2, Free: 1, Total: 4}}},
		"no card of the kind is carved":  {gpus(1, "h100", "1g.10gb"), sliceCounts, []schedule.Shortage{{Resource: "1g.10gb gpu instances of kind h100", Need: 1}}},
		"a profile without a count is 1": {gpus(0, "", "1g.10gb"), sliceCounts, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, schedule.Fits(tt.spec, tt.host)); diff != "" {
				t.Errorf("shortages (-want +got):\n%s", diff)
			}
		})
	}
}
