// Package bounds holds a VM to its limits and measures what it takes: processor
// time by its cgroup, its disk by QEMU, its network by the queues of its slot.
package bounds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

// File keeps limits that were changed after the create, in a VM's directory.
const File = "limits.json"

// record is the content of File.
type record struct {
	UID    string               `json:"uid"`
	Limits fleet.ResourceLimits `json:"limits"`
}

// Of returns the limits that a VM has now.
func Of(vm driver.VM) (fleet.ResourceLimits, error) {
	doc, err := os.ReadFile(filepath.Join(vm.Dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return vm.Limits, nil
	}
	var r record
	if err == nil {
		err = json.Unmarshal(doc, &r)
	}
	if err == nil && r.UID != vm.UID {
		err = fmt.Errorf("it is of the life %s", r.UID)
	}
	if err != nil {
		return vm.Limits, fmt.Errorf("limits of %s: %w", vm.ID, err)
	}
	return r.Limits, nil
}

// Keep makes limits durable.
func Keep(vm driver.VM, l fleet.ResourceLimits) error {
	doc, err := json.Marshal(record{vm.UID, l})
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(vm.Dir, File), append(doc, '\n'))
}

// CPU are the quota in CPUs and the weight of a VM's process. What the process
// does beside the guest's own work comes on top of the machine's CPUs, and is
// part of a limit that was asked for.
func CPU(vm driver.VM, l fleet.ResourceLimits, beside float64) (cpus float64, weight int) {
	cpus, weight = float64(vm.CPUs)+beside, 100*vm.CPUs
	if l.CPUMillis > 0 {
		cpus = min(cpus, float64(l.CPUMillis)/1000)
	}
	if l.CPUWeight > 0 {
		weight = l.CPUWeight
	}
	return cpus, weight
}

// QMP is QEMU's control channel.
type QMP interface {
	Execute(ctx context.Context, command string, args, result any) error
}

// Network are the slots of VMs; nil with user networking.
type Network interface {
	Shape(ctx context.Context, slot int, in, out int64) error
	Traffic(slot int) (in, out uint64, err error)
}

// Machine is a running VM.
type Machine struct {
	VM     driver.VM
	PID    int
	QMP    QMP
	Group  *cgroup.Group // nil where there are none
	Net    Network
	Beside float64 // as of CPU
	// Reboots are those of its guest; nil: they are not known.
	Reboots func(dir string) ([]fleet.Reboot, error)
}

// Apply holds the machine to limits, which replace those it had. Without any it
// asks nothing of a machine that never had some.
func (m Machine) Apply(ctx context.Context, l fleet.ResourceLimits) error {
	if err := m.check(l); err != nil {
		return err
	}
	if m.Group != nil {
		if err := m.Group.SetCPU(CPU(m.VM, l, m.Beside)); err != nil {
			return fmt.Errorf("limit the processor: %w", err)
		}
	}
	err := m.QMP.Execute(ctx, "block_set_io_throttle", map[string]any{
		"id": "/machine/peripheral/" + vmm.RootDisk + "/virtio-backend", "bps": 0, "bps_rd": l.DiskReadBps, "bps_wr": l.DiskWriteBps, "iops": l.DiskIOPS, "iops_rd": 0, "iops_wr": 0,
	}, nil)
	if err != nil {
		return fmt.Errorf("limit the disk: %w", err)
	}
	if m.Net == nil {
		return nil
	}
	return m.Net.Shape(ctx, m.VM.Slot, l.NetInBps, l.NetOutBps)
}

// Start holds a machine that has just been started to its limits.
func (m Machine) Start(ctx context.Context) error {
	l, err := Of(m.VM)
	if err != nil || l == (fleet.ResourceLimits{}) {
		return err
	}
	return m.Apply(ctx, l)
}

// SetLimits is driver.Limiter's.
func (m Machine) SetLimits(ctx context.Context, l fleet.ResourceLimits) error {
	before, err := Of(m.VM)
	if err == nil {
		err = m.check(l)
	}
	if err == nil {
		err = Keep(m.VM, l)
	}
	if err != nil {
		return err
	}
	if err = m.Apply(ctx, l); err != nil {
		_ = Keep(m.VM, before) // the next change or start puts it right
	}
	return err
}

// check refuses what this host could not keep.
func (m Machine) check(l fleet.ResourceLimits) error {
	if err := l.Check(); err != nil {
		return err
	}
	var field string
	switch {
	case m.Net == nil && (l.NetInBps != 0 || l.NetOutBps != 0):
		field = "net_in_bps and net_out_bps"
	case m.Group == nil && (l.CPUMillis != 0 || l.CPUWeight != 0):
		field = "cpu_millis and cpu_weight"
	default:
		return nil
	}
	return fleet.Errorf(fleet.CodeUnimplemented, "this host cannot keep the limits %s", field).
		With(fleet.DetailScope, "spec.limits").With(fleet.DetailRemedy, "run the host agent as root, with cgroups, or leave them out; fuse doctor says what is lacking")
}

// blockStats is what QEMU says of one device.
type blockStats struct {
	Qdev  string `json:"qdev"`
	Stats struct {
		Read    int64 `json:"rd_bytes"`
		Written int64 `json:"wr_bytes"`
	} `json:"stats"`
}

// Usage is driver.Meter's.
func (m Machine) Usage(ctx context.Context) (fleet.Usage, error) {
	u := fleet.Usage{UID: m.VM.UID, VMID: m.VM.ID, At: time.Now().UTC()}
	disks, err := filepath.Glob(filepath.Join(m.VM.Dir, "*.qcow2"))
	if err != nil {
		return u, err
	}
	if u.CPUSeconds, u.MemoryBytes, err = process(m.PID); err != nil {
		return u, err
	}
	for _, path := range disks {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil {
			u.DiskBytes += st.Blocks * 512
		} else if !errors.Is(err, unix.ENOENT) {
			return u, &os.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	var stats []blockStats
	if err := m.QMP.Execute(ctx, "query-blockstats", nil, &stats); err != nil {
		return u, err
	}
	for _, s := range stats {
		u.DiskReadBytes, u.DiskWriteBytes = u.DiskReadBytes+s.Stats.Read, u.DiskWriteBytes+s.Stats.Written
	}
	if m.Net != nil {
		in, out, err := m.Net.Traffic(m.VM.Slot)
		if err != nil {
			return u, err
		}
		u.NetInBytes, u.NetOutBytes = int64(in), int64(out)
	}
	if m.Reboots != nil {
		u.Reboots, err = m.Reboots(m.VM.Dir)
	}
	return u, err
}
