package converge_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/test/hostdtest"
)

// park is a fleet for benchmarks: the real state owner, and a Looker.
type park struct {
	b     *testing.B
	store *state.Store
	look  func(ctx context.Context, host fleet.Host) fleet.Observation
	// killed is called with the host of each orphan that is destroyed.
	killed func(hostID, uid string)
}

func newPark(b *testing.B, hosts int) *park {
	p := &park{b: b, store: storetest.OpenOn(b, memory.New(memory.Options{FleetID: "F"}))}
	for i := range hosts {
		p.update(func(tx *state.Tx) error {
			return tx.PutHost(fleet.Host{
				ID: hostName(i), State: fleet.HostActive,
				Capacity: fleet.HostCapacity{CPUs: 1 << 20, RamMB: 1 << 30, StorageGB: 1 << 20, VMCount: 1 << 20},
			})
		})
	}
	return p
}

func hostName(i int) string { return fmt.Sprintf("h%02d", i) }

func (p *park) update(fn func(*state.Tx) error) {
	p.b.Helper()
	if _, err := p.store.Update(context.Background(), fn); err != nil {
		p.b.Fatal(err)
	}
}

// track writes running rows with their tasks, n on each host, of which the
// first probed declare a healthcheck.
func (p *park) track(hosts, n, probed int) {
	for h := range hosts {
		for _, state := range []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning} {
			for from := 0; from < n; from += 500 {
				p.update(p.rows(h, from, min(from+500, n), probed, state))
			}
		}
	}
}

func (p *park) rows(h, from, to, probed int, in fleet.VMState) func(*state.Tx) error {
	return func(tx *state.Tx) error {
		for i := from; i < to; i++ {
			uid := vmUID(h, i)
			if err := tx.PutTask(fleet.Task{TaskID: uid, VMID: "fuse-" + uid, UID: uid, RunStatus: fleet.TaskRunRunning}); err != nil {
				return err
			}
			if err := tx.PutVM(fleet.VM{
				ID: "fuse-" + uid, UID: uid, TaskID: uid, HostID: hostName(h), Generation: 1, State: in, Probed: i < probed,
				CreatedAt: tx.Now(), UpdatedAt: tx.Now(),
			}); err != nil {
				return err
			}
		}
		return nil
	}
}

func vmUID(h, i int) string { return fmt.Sprintf("u%02d-%05d", h, i) }

// Look is a converge.Looker.
func (p *park) Look(ctx context.Context, host fleet.Host) fleet.Observation { return p.look(ctx, host) }

// DestroyOrphan is a converge.OrphanKiller.
func (p *park) DestroyOrphan(_ context.Context, hostID, _, uid string) error {
	p.killed(hostID, uid)
	return nil
}

// DestroyLife is a converge.Destroyer; nothing here is to be destroyed.
func (p *park) DestroyLife(_ context.Context, id, _ string, why fleet.Reason) error {
	p.b.Errorf("%s is destroyed: %s", id, why)
	return nil
}

func (p *park) loop(edits ...func(*converge.Config)) *converge.Loop {
	cfg := converge.Config{
		Store: p.store, Looker: p, Destroyer: p, OrphanKiller: p, Logger: slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError})),
		Use: func(string) converge.Use { return converge.Use{} },
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	l, err := converge.New(cfg)
	if err != nil {
		p.b.Fatal(err)
	}
	return l
}

// measure times cycles after a first one, and reports the most goroutines and
// the heap.
func (p *park) measure(l *converge.Loop) {
	end := l.Begin()
	defer end()
	l.Cycle()
	l.Cycle()
	var most atomic.Int64
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
			}
		}
	}()
	var took []time.Duration
	p.b.ReportAllocs()
	for p.b.Loop() {
		began := time.Now()
		l.Cycle()
		took = append(took, time.Since(began))
	}
	close(stop)
	<-watched
	slices.Sort(took)
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	sum, _ := l.Last()
	p.b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	p.b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
	p.b.ReportMetric(float64(most.Load()), "goroutines")
	p.b.ReportMetric(float64(m.HeapAlloc)/1e6, "heap-MB")
	p.b.ReportMetric(float64(sum.HealthChecked), "verdicts")
	if sum.Aborted != "" || len(sum.HostsUnseen) > 0 || sum.TrackedVMs != sum.ProviderVMs {
		p.b.Errorf("the last cycle: %+v", sum)
	}
}

type fencer struct{ f provider.Fence }

func (f fencer) Fence() (provider.Fence, error) { return f.f, nil }
func (f fencer) Proof(int64) provider.Proof     { return provider.Proof{} }
func (f fencer) Accepted() bool                 { return false }

// 10,000 environments on 20 simulated hosts behind real sockets, 1,000 with a
// healthcheck: one cycle, host agents and guests included, all in one process.
func BenchmarkCycle10000On20Hosts(b *testing.B) {
	const hosts, each, probed = 20, 500, 50
	p := newPark(b, hosts)
	p.track(hosts, each, probed)
	fence := provider.Fence{FleetID: "F", Term: 1, ClaimToken: "0123456789abcdef0123456789abcdef", Fingerprint: "store"}
	providers := map[string]provider.VerdictLister{}
	var made sync.WaitGroup
	for h := range hosts {
		dir := b.TempDir()
		drv, err := sim.New(sim.Options{VMs: 2 * each})
		if err != nil {
			b.Fatal(err)
		}
		agent := hostdtest.Start(b, hostd.Config{
			Dir: filepath.Join(dir, "host"), Driver: drv, SweepEvery: time.Hour, ExitEvery: time.Hour,
			Logger: slog.New(slog.DiscardHandler), Capacity: fleet.HostCapacity{VMCount: 2 * each},
		}, "")
		remote := agent.Connect(fencer{fence})
		providers[hostName(h)] = remote
		made.Go(func() {
			for i := range each {
				ref := provider.Ref{ID: "fuse-" + vmUID(h, i), UID: vmUID(h, i), Generation: 1, OpID: "create-" + vmUID(h, i)}
				created, err := remote.Create(b.Context(), provider.CreateRequest{Ref: ref, Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1, Image: "minimal"}, Credentials: provider.Credentials{Hostname: "x", Token: "t"}})
				if err == nil && i < probed {
					err = created.Environment.Upload(b.Context(), []fleet.GuestFile{{Path: fleet.GuestHealthStatePath, Data: []byte(`{"state":"passing"}`)}})
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	made.Wait()
	p.look = func(ctx context.Context, host fleet.Host) fleet.Observation {
		look := fleet.Look{HostID: host.ID, At: time.Now()}
		var uids []string
		if err := p.store.View(func(tx *state.ReadTx) error {
			for vm := range tx.VMs().ByHost(host.ID) {
				if vm.Probed {
					uids = append(uids, vm.UID)
				}
			}
			return nil
		}); err != nil {
			b.Error(err)
		}
		l, err := providers[host.ID].ListVerdicts(ctx, uids)
		if err != nil || !l.Complete {
			b.Errorf("list %s: %v %s", host.ID, err, l.Reason)
		}
		return fleet.SeenComplete(look, l.VMs, l.Exits, l.Foreign)
	}
	p.measure(p.loop())
}

// 100,000 environments without healthchecks; the hosts' lists are made up, so
// that what is measured is the control plane alone.
func BenchmarkCycle100000(b *testing.B) {
	const hosts, each = 20, 5000
	p := newPark(b, hosts)
	p.track(hosts, each, 0)
	lists := map[string][]fleet.ObservedVM{}
	for h := range hosts {
		for i := range each {
			uid := vmUID(h, i)
			lists[hostName(h)] = append(lists[hostName(h)], fleet.ObservedVM{ID: "fuse-" + uid, UID: uid, Generation: 1, Running: true})
		}
	}
	p.look = func(_ context.Context, host fleet.Host) fleet.Observation {
		return fleet.SeenComplete(fleet.Look{HostID: host.ID, At: time.Now()}, lists[host.ID], nil, 0)
	}
	p.measure(p.loop())
}

// Eight healthy hosts beside a dead and a silent one, and alone: from the
// cycle's begin until an orphan on each healthy host is destroyed. ratio-p99 is
// what the two sick hosts cost the others.
func BenchmarkSickHostsCostTheOthersNothing(b *testing.B) {
	const healthy, each = 8, 200
	alone, beside := sickPark(b, healthy, 0, each), sickPark(b, healthy, 2, each)
	var quiet, sick []time.Duration
	for range 5 { // warm up
		alone()
		beside()
	}
	for b.Loop() {
		for range 10 { // in turns, so that other work on the machine hits both
			quiet, sick = append(quiet, alone()...), append(sick, beside()...)
		}
	}
	p99 := func(d []time.Duration) time.Duration {
		slices.Sort(d)
		return d[len(d)*99/100]
	}
	defer func() {
		b.ReportMetric(float64(quiet[len(quiet)/2].Microseconds())/1000, "alone-p50-ms")
		b.ReportMetric(float64(sick[len(sick)/2].Microseconds())/1000, "beside-p50-ms")
	}()
	b.ReportMetric(float64(p99(quiet).Microseconds())/1000, "alone-p99-ms")
	b.ReportMetric(float64(p99(sick).Microseconds())/1000, "beside-p99-ms")
	b.ReportMetric(float64(p99(sick))/float64(p99(quiet)), "ratio-p99")
}

// sickPark returns what runs one cycle and says when each orphan was ended.
func sickPark(b *testing.B, healthy, sick, each int) func() []time.Duration {
	p := newPark(b, healthy+sick)
	p.track(healthy+sick, each, 0)
	ended := make(chan time.Time, healthy)
	cycle := 0
	p.killed = func(string, string) { ended <- time.Now() }
	p.look = func(ctx context.Context, host fleet.Host) fleet.Observation {
		look := fleet.Look{HostID: host.ID, At: time.Now()}
		switch host.ID {
		case hostName(healthy):
			return fleet.NotSeen(look, "connection refused")
		case hostName(healthy + 1):
			<-ctx.Done() // answers after a minute, which nobody waits for
			return fleet.NotSeen(look, ctx.Err().Error())
		}
		orphan := fmt.Sprintf("orphan-%s-%d", host.ID, cycle)
		vms := []fleet.ObservedVM{{ID: orphan, UID: orphan, Running: true}}
		for i := range each {
			uid := vmUID(slices.IndexFunc(hostNames, func(id string) bool { return id == host.ID }), i)
			vms = append(vms, fleet.ObservedVM{ID: "fuse-" + uid, UID: uid, Generation: 1, Running: true})
		}
		return fleet.SeenComplete(look, vms, nil, 0)
	}
	l := p.loop(func(cfg *converge.Config) {
		cfg.HostDeadline = 200 * time.Millisecond
		cfg.Limits.PerHour = -1
	})
	b.Cleanup(l.Begin())
	return func() []time.Duration {
		began := time.Now()
		cycle++
		l.Cycle()
		var took []time.Duration
		for range healthy {
			took = append(took, (<-ended).Sub(began))
		}
		return took
	}
}

var hostNames = func() (names []string) {
	for i := range 32 {
		names = append(names, hostName(i))
	}
	return names
}()
