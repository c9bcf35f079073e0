package driver

import (
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
)

func TestARefusalNamesTheDifference(t *testing.T) {
	m := fleet.MachineFacts{
		Driver: "qemu", Arch: "amd64", DriverVersion: "7.2.22", Machine: "q35", CPUModel: "max", Accelerator: "tcg", PageSize: 4096,
		Kernel: "a", Fused: "b", GuestWire: 5, CPUs: 1, RamMB: 256,
	}
	for name, change := range map[string]func(*fleet.MachineFacts){
		"driver":       func(m *fleet.MachineFacts) { m.Driver = "firecracker" },
		"architecture": func(m *fleet.MachineFacts) { m.Arch = "arm64" },
		"QEMU version": func(m *fleet.MachineFacts) { m.DriverVersion = "8.0.0" },
		"machine type": func(m *fleet.MachineFacts) { m.Machine = "virt" },
		"CPU model":    func(m *fleet.MachineFacts) { m.CPUModel = "host" },
		"accelerator":  func(m *fleet.MachineFacts) { m.Accelerator = "kvm" },
		"page size":    func(m *fleet.MachineFacts) { m.PageSize = 2 << 20 },
	} {
		host := m
		change(&host)
		diff := Differences(m, host)
		err := &IncompatibleError{Differences: diff}
		if len(diff) != 1 || !strings.Contains(err.Error(), name+" is ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	host := m
	host.Kernel, host.Fused, host.GuestWire = "other", "other", 9
	if diff := Differences(m, host); len(diff) > 0 {
		t.Errorf("what comes with the capture binds: %v", diff)
	}
}
