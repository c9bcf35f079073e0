package room_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/room"
)

func TestCheck(t *testing.T) {
	total := fleet.HostCapacity{CPUs: 4, RamMB: 4096, StorageGB: 40, VMCount: 4, HugePages: 512}
	vm := driver.VM{CPUs: 1, RamMB: 512, StorageGB: 4}
	huge := driver.VM{CPUs: 1, RamMB: 1024, StorageGB: 4, HugePages: true}
	for name, tt := range map[string]struct {
		used   fleet.HostCapacity
		vm     driver.VM
		limits room.Limits
		scope  string // empty: it fits
		limit  string
	}{
		"it fits":                        {vm: vm},
		"no slot":                        {used: fleet.HostCapacity{VMCount: 4}, vm: vm, scope: "vm_count", limit: "4"},
		"memory to the last MB":          {used: fleet.HostCapacity{RamMB: 3328, VMCount: 1}, vm: vm, limits: room.Limits{OverheadMB: 128}},
		"processes of the others count":  {used: fleet.HostCapacity{RamMB: 3328, VMCount: 2}, vm: vm, limits: room.Limits{OverheadMB: 128}, scope: "ram_mb", limit: "4096"},
		"no disk":                        {used: fleet.HostCapacity{StorageGB: 37}, vm: vm, scope: "storage_gb", limit: "40"},
		"cpus are shared":                {used: fleet.HostCapacity{CPUs: 400}, vm: vm},
		"cpus that the operator counted": {used: fleet.HostCapacity{CPUs: 4}, vm: vm, limits: room.Limits{CountCPUs: true}, scope: "cpus", limit: "4"},
		"overcommitted cpus":             {used: fleet.HostCapacity{CPUs: 5}, vm: vm, limits: room.Limits{CountCPUs: true, CPUOvercommit: 1.5}},
		"beyond the overcommit":          {used: fleet.HostCapacity{CPUs: 6}, vm: vm, limits: room.Limits{CountCPUs: true, CPUOvercommit: 1.5}, scope: "cpus", limit: "6"},
		"overcommit is for cpus alone":   {used: fleet.HostCapacity{RamMB: 3600}, vm: vm, limits: room.Limits{CPUOvercommit: 8}, scope: "ram_mb", limit: "4096"},
		"huge pages":                     {used: fleet.HostCapacity{RamMB: 4096}, vm: huge},
		"their process takes memory too": {used: fleet.HostCapacity{RamMB: 4096}, vm: huge, limits: room.Limits{OverheadMB: 1}, scope: "ram_mb", limit: "4096"},
		"too few huge pages":             {used: fleet.HostCapacity{HugePages: 1}, vm: huge, scope: "huge_pages", limit: "512"},
	} {
		t.Run(name, func(t *testing.T) {
			err := room.Check(total, tt.used, tt.vm, tt.limits)
			if tt.scope == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var fe *fleet.Error
			if !errors.Is(err, fleet.ErrNoCapacity) || !errors.As(err, &fe) || fe.Code != fleet.CodeUnavailable {
				t.Fatalf("got %v", err)
			}
			if fe.Details[fleet.DetailScope] != tt.scope || fe.Details[fleet.DetailLimit] != tt.limit || fe.Details[fleet.DetailUsage] == "" || fe.Details[fleet.DetailRemedy] == "" {
				t.Errorf("details %v, want scope %s and limit %s", fe.Details, tt.scope, tt.limit)
			}
		})
	}
}

func TestOfADamagedRecord(t *testing.T) {
	if diff := cmp.Diff(fleet.HostCapacity{StorageGB: 3, VMCount: 1}, room.Of(driver.VM{CPUs: -1, RamMB: -5, StorageGB: 3})); diff != "" {
		t.Error(diff)
	}
}
