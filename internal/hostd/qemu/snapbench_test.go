package qemu

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// BenchmarkSnapshotStop measures how long a machine stands still for a live
// snapshot, at two sizes, and a fork of it for one of its own.
func BenchmarkSnapshotStop(b *testing.B) {
	for _, ram := range []int{256, 2048} {
		b.Run(fmt.Sprintf("%dMB", ram), func(b *testing.B) {
			h := newBench(b, Config{})
			vm := h.vm()
			vm.RamMB = ram
			inst := h.bootAndExec(vm)
			defer h.end(inst, vm)
			source := measured{}
			fork := measured{}
			for b.Loop() {
				a := h.artifact()
				source.take(h, vm, a)
				child := h.vm()
				child.RamMB = ram
				r, err := h.d.Fork(b.Context(), child, h.identity(child), a, nil)
				if err != nil {
					b.Fatal(err)
				}
				fork.resumed = append(fork.resumed, r.Resumed)
				h.thaw(child, r, fleet.ThawFork)
				second := h.artifact()
				fork.take(h, child, second)
				h.end(r.Instance, child)
				for _, a := range []driver.Artifact{a, second} {
					if err := h.d.Discard(b.Context(), a); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(ms(p50(source.stop)), "source-stop-p50-ms")
			b.ReportMetric(ms(slices.Max(source.stop)), "source-stop-max-ms")
			b.ReportMetric(ms(p50(fork.stop)), "fork-stop-p50-ms")
			b.ReportMetric(ms(p50(source.freeze)), "source-freeze-p50-ms")
			b.ReportMetric(ms(p50(source.took)), "snapshot-p50-ms")
			b.ReportMetric(ms(p50(fork.resumed)), "fork-resumed-p50-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

type measured struct{ stop, freeze, took, resumed []time.Duration }

func (m *measured) take(h *bench, vm driver.VM, a driver.Artifact) {
	h.t.Helper()
	info, err := h.d.Snapshot(context.Background(), vm, driver.SnapshotRequest{To: a, Live: true, Volatile: true})
	if err != nil {
		h.t.Fatal(err)
	}
	m.stop, m.freeze, m.took = append(m.stop, info.Timings.Stop), append(m.freeze, info.Timings.Freeze), append(m.took, info.Timings.Took)
}

func p50(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkForkMemory compares the memory of sixteen forks, once they have run a
// command, with that of as many machines that were booted: of their guests and of
// the processes around them, each page shared by its users.
func BenchmarkForkMemory(b *testing.B) {
	h := newBench(b, Config{})
	vm := h.vm()
	inst := h.bootAndExec(vm)
	defer h.end(inst, vm)
	const n = 16
	for b.Loop() {
		bootGuest, bootRest := pssOf(b, vm)
		a := h.artifact()
		if _, err := h.d.Snapshot(b.Context(), vm, driver.SnapshotRequest{To: a, Live: true, Volatile: true}); err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		vms, insts := make([]driver.VM, n), make([]driver.Instance, n)
		for i := range vms {
			vms[i] = h.vm()
			r, err := h.d.Fork(b.Context(), vms[i], h.identity(vms[i]), a, nil)
			if err != nil {
				b.Fatal(err)
			}
			h.thaw(vms[i], r, fleet.ThawFork)
			insts[i] = r.Instance
			h.sh(insts[i], "true")
		}
		took := time.Since(begun)
		var guest, rest int64
		for _, vm := range vms {
			g, r := pssOf(b, vm)
			guest, rest = guest+g, rest+r
		}
		for i, vm := range vms {
			h.end(insts[i], vm)
		}
		if err := h.d.Discard(b.Context(), a); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(bootGuest)/1024, "boot-guest-MiB")
		b.ReportMetric(float64(bootRest)/1024, "boot-process-MiB")
		b.ReportMetric(float64(guest)/n/1024, "fork-guest-MiB")
		b.ReportMetric(float64(rest)/n/1024, "fork-process-MiB")
		b.ReportMetric(float64(guest)/float64(n*bootGuest), "guest-ratio")
		b.ReportMetric(float64(guest+rest)/float64(n*(bootGuest+bootRest)), "whole-ratio")
		b.ReportMetric(took.Seconds()/n*1000, "fork-to-exec-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// pssOf is a VM's share of memory in KiB: of its guest, and of all else.
func pssOf(b *testing.B, vm driver.VM) (guest, rest int64) {
	b.Helper()
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", rec.PID))
	if err != nil {
		b.Fatal(err)
	}
	isGuest := false
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasSuffix(f[0], ":") {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		switch {
		case err != nil:
		case f[0] == "Size:":
			isGuest = n == int64(vm.RamMB)<<10
		case f[0] == "Pss:" && isGuest:
			guest += n
		case f[0] == "Pss:":
			rest += n
		}
	}
	return guest, rest
}
