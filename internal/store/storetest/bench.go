package storetest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// benchHost has room for everything.
var benchHost = fleet.Host{ID: "h1", State: fleet.HostActive, Capacity: fleet.HostCapacity{
	CPUs: 1 << 40, RamMB: 1 << 40, StorageGB: 1 << 40, VMCount: 1 << 40,
}}

// BenchVM returns an environment's row of ordinary size.
func BenchVM(n int) fleet.VM {
	id := fmt.Sprintf("fuse-task-%08d", n)
	return fleet.VM{
		ID: id, UID: uid.New(), Generation: 1, Owner: fleet.ActorMaster, State: fleet.VMStateProvisioning,
		TaskID: id[5:], HostID: "h1",
		Spec:            fleet.Spec{Name: id, CPUs: 2, RamMB: 512, StorageGB: 4, Image: "minimal", Labels: map[string]string{"team": "a"}},
		AuthTokenSealed: make([]byte, 101), BootSealed: make([]byte, 400), CertPEM: make([]byte, 600),
		Placement: &fleet.PlacementDecision{HostID: "h1", Policy: fleet.PlacementBinpack, Candidates: 1},
	}
}

// putBenchVM is the claim of a create: the environment, its task, two events.
func putBenchVM(tx *state.Tx, n int) error {
	vm := BenchVM(n)
	tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMProvisioning, State: vm.State})
	tx.Emit(fleet.Event{EntityType: "task", EntityID: vm.TaskID, UID: vm.UID, Type: fleet.EventTaskAssigned})
	if err := tx.PutTask(fleet.Task{TaskID: vm.TaskID, VMID: vm.ID, UID: vm.UID, RunStatus: fleet.TaskRunAssigned}); err != nil {
		return err
	}
	return tx.PutVM(vm)
}

func benchStore(b *testing.B, open func() Backend) *state.Store {
	b.Helper()
	j := open()
	s, err := state.Open(context.Background(), state.Config{Journal: j, Lease: j, Candidate: state.Candidate{Name: "bench"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	mustUpdate(b, s, func(tx *state.Tx) error { return tx.PutHost(benchHost) })
	return s
}

func mustUpdate(b *testing.B, s *state.Store, fn func(*state.Tx) error) {
	b.Helper()
	if _, err := s.Update(context.Background(), fn); err != nil {
		b.Fatal(err)
	}
}

// grow adds running environments up to n.
func grow(b *testing.B, s *state.Store, from, n int) {
	b.Helper()
	for ; from < n; from += 500 {
		mustUpdate(b, s, func(tx *state.Tx) error {
			for i := from; i < min(from+500, n); i++ {
				if err := putBenchVM(tx, i); err != nil {
					return err
				}
			}
			return nil
		})
		mustUpdate(b, s, func(tx *state.Tx) error {
			for vm := range tx.VMs().ByState(fleet.VMStateProvisioning) {
				up := *vm
				up.State = fleet.VMStateRunning
				tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMRunning, State: up.State})
				if err := tx.PutVM(up); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// Bench measures Update on a journal, alone and with 16 writers, on a store
// that already holds rows environments.
func Bench(b *testing.B, rows int, open func() Backend) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("rows=%d/writers=%d", rows, writers), func(b *testing.B) {
			s := benchStore(b, open)
			grow(b, s, 1<<30, 1<<30+rows)
			took := make([][]time.Duration, writers)
			b.ReportAllocs()
			b.ResetTimer()
			begun := time.Now()
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for i := w; i < b.N; i += writers {
						start := time.Now()
						if _, err := s.Update(context.Background(), func(tx *state.Tx) error { return putBenchVM(tx, i) }); err != nil {
							b.Error(err)
							return
						}
						took[w] = append(took[w], time.Since(start))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			reportTimes(b, slices.Concat(took...), time.Since(begun))
		})
	}
}

func reportTimes(b *testing.B, took []time.Duration, all time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/all.Seconds(), "op/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// BenchCommit measures the journal alone: batches of one create each.
func BenchCommit(b *testing.B, j Backend) {
	defer func() {
		if err := j.Close(); err != nil {
			b.Error(err)
		}
	}()
	g, err := j.Acquire(context.Background(), state.Candidate{Name: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	begun := time.Now()
	for i := range b.N {
		vm := BenchVM(i)
		task := fleet.Task{TaskID: vm.TaskID, VMID: vm.ID, UID: vm.UID, RunStatus: fleet.TaskRunAssigned}
		seq := uint64(2 * i)
		batch := state.Batch{
			ID: uid.New(), Revision: seq, Seq: seq + 2, At: time.Now(),
			Writes: []state.Write{
				{Table: state.TableVMs, Key: state.Key{vm.ID}, Row: &vm},
				{Table: state.TableTasks, Key: state.Key{task.TaskID}, Row: &task},
			},
			Events: []fleet.Event{
				{Seq: seq + 1, EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMProvisioning, State: vm.State},
				{Seq: seq + 2, EntityType: "task", EntityID: vm.TaskID, UID: vm.UID, Type: fleet.EventTaskAssigned},
			},
		}
		start := time.Now()
		if err := j.Commit(context.Background(), g.Term, batch); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	reportTimes(b, took, time.Since(begun))
}

// BenchReads measures what readers do on a store of rows environments: a page
// of 200, everything, one row; and the heap that an environment costs with its
// task and events.
func BenchReads(b *testing.B, rows int, open func() Backend) {
	s := benchStore(b, open)
	before := heap()
	grow(b, s, 0, rows)
	perRow := float64(heap()-before) / float64(rows)
	middle := fmt.Sprintf("fuse-task-%08d", rows/2)
	for name, read := range map[string]func(*state.ReadTx) int{
		"page-of-200": func(tx *state.ReadTx) int {
			n := 0
			for vm := range tx.VMs().After(middle) {
				if n += min(len(vm.ID), 1); n == 200 {
					break
				}
			}
			return n
		},
		"all": func(tx *state.ReadTx) int {
			n := 0
			for vm := range tx.VMs().All() {
				n += min(len(vm.ID), 1)
			}
			return n
		},
		"get": func(tx *state.ReadTx) int {
			if _, ok := tx.VMs().Get(middle); ok {
				return 1
			}
			return 0
		},
	} {
		b.Run(fmt.Sprintf("rows=%d/%s", rows, name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				err := s.View(func(tx *state.ReadTx) error {
					if read(tx) == 0 {
						b.Error("nothing read")
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(perRow, "heapB/row")
			b.ReportMetric(rss(b), "RSS-MB")
		})
	}
}

// BenchOpen measures the opening of a store of rows environments: a term begins
// and everything is loaded.
func BenchOpen(b *testing.B, rows int, open func() Backend) {
	b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
		j := open()
		s, err := state.Open(context.Background(), state.Config{Journal: j, Lease: j})
		if err != nil {
			b.Fatal(err)
		}
		mustUpdate(b, s, func(tx *state.Tx) error { return tx.PutHost(benchHost) })
		grow(b, s, 0, rows)
		for err = s.Close(context.Background()); err == nil && b.Loop(); err = s.Close(context.Background()) {
			j := open()
			if s, err = state.Open(context.Background(), state.Config{Journal: j, Lease: j}); err != nil {
				break
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	})
}

// rss is the resident memory of this process in MB.
func rss(b *testing.B) float64 {
	b.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		b.Fatal(err)
	}
	return float64(resident*os.Getpagesize()) / 1e6
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
