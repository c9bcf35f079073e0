package sim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/sim"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/pausing"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/history"
)

// maxSnapshots is what one tenant may keep.
const maxSnapshots = 4

// seedOf finds the snapshot that a create begins with.
func seedOf(tx *state.ReadTx, spec fleet.Spec, sees func(owner string) bool) (lifecycle.Seed, error) {
	snap, err := snapshots.Seed(tx, spec, sees)
	if err != nil {
		return lifecycle.Seed{}, err
	}
	return lifecycle.Seed{SnapshotID: snap.SnapshotID, Digest: snap.Digest, HostID: snap.HostID}, nil
}

// wireSnapshots makes what captures environments and lets them stand still.
func (w *world) wireSnapshots(pl *plane, log *slog.Logger, desk *admission.Desk) (err error) {
	if !w.captures {
		return nil
	}
	locks := &keylock.Lock{}
	pl.snaps, err = snapshots.New(snapshots.Config{
		Store: pl.store, Providers: pl.hosts, Logger: log, Opener: w.sealer, BootKind: lifecycle.SealKindVMBoot,
		Locks: locks, Admission: desk, Limits: decide.Limits{Count: maxSnapshots}, Interval: 20 * time.Second,
		Create: func(ctx context.Context, c snapshots.Child) (*fleet.VM, error) {
			return pl.life.Create(ctx, lifecycle.CreateRequest{
				TaskID: c.TaskID, Owner: c.Owner, Actor: c.Actor, Spec: c.Spec, Boot: c.Boot, Idempotency: c.Idempotency,
				Fork: &lifecycle.Fork{Ancestors: c.Ancestors, Live: c.Live},
			})
		},
	})
	if err != nil {
		return err
	}
	pl.pauses, err = pausing.New(pausing.Config{Store: pl.store, Providers: pl.hosts, Admission: desk, Logger: log, Locks: locks})
	return err
}

// snapshotOrder is an empty order about snapshots, by the call it comes with.
func snapshotOrder(path string) interface {
	proto.Message
	GetFence() *hostwirev1.Fence
} {
	switch path {
	case hostwirev1connect.SnapshotsTakeSnapshotProcedure:
		return &hostwirev1.TakeSnapshotRequest{}
	case hostwirev1connect.SnapshotsRestoreVMProcedure:
		return &hostwirev1.RestoreVMRequest{}
	case hostwirev1connect.SnapshotsPauseVMProcedure:
		return &hostwirev1.PauseVMRequest{}
	case hostwirev1connect.SnapshotsResumeVMProcedure:
		return &hostwirev1.ResumeVMRequest{}
	case hostwirev1connect.SnapshotsDeleteSnapshotProcedure:
		return &hostwirev1.DeleteSnapshotRequest{}
	}
	return nil
}

// skipped is what precedes the request of a call: the envelope of a stream's.
func skipped(path string) int {
	if path == hostwirev1connect.SnapshotsTakeSnapshotProcedure || path == hostwirev1connect.SnapshotsRestoreVMProcedure {
		return envelope
	}
	return 0
}

// keeper is a user who captures a few environments of its own.
type keeper struct {
	*user
	api   client.Snapshots
	tasks []string // what it forks goes to the end
	kept  []string // ids of snapshots that it was told of, ended ones too
}

func (w *world) newKeeper(n int) *keeper {
	u := w.newUser(20 + n)
	return &keeper{user: u, api: client.Snapshots{API: u.api}, tasks: []string{fmt.Sprint("kept", n)}}
}

// run is a day of the keeper.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		if pause(ctx, ctx, time.Duration(k.rnd.ExpFloat64()*float64(1500*time.Millisecond))) != nil {
			return
		}
		task := k.tasks[k.rnd.IntN(len(k.tasks))]
		switch n := k.rnd.IntN(100); {
		case n < 15:
			k.create(k.tasks[0])
		case n < 40:
			k.take(task)
		case n < 50:
			k.act(history.Restore, func(ctx context.Context, id string) error { return k.api.Restore(ctx, id) })
		case n < 62:
			k.act(history.Remove, func(ctx context.Context, id string) error { return k.api.Remove(ctx, id) })
		case n < 72:
			k.fork(task)
		case n < 80:
			k.stand(task, k.api.Pause)
		case n < 88:
			k.stand(task, k.api.Resume)
		case n < 92:
			k.destroy(task)
		default:
			k.look()
		}
	}
}

// take captures an environment. Its answer names the snapshot.
func (k *keeper) take(task string) {
	ctx, cancel := k.patience()
	defer cancel()
	call := k.w.snaps.Clock.Now()
	snap, err := k.api.Take(ctx, vmID(task), gen.CreateSnapshot{Live: k.rnd.IntN(2) == 0})
	if err != nil {
		return
	}
	k.kept = append(k.kept, snap.ID)
	k.w.snaps.Add(history.Op{Client: k.n, Verb: history.Take, ID: snap.ID, Call: call, Return: k.w.snaps.Clock.Now(), Outcome: history.Done, State: snap.State})
}

// act does something to one of the snapshots that it knows.
func (k *keeper) act(verb history.Verb, do func(ctx context.Context, id string) error) {
	if len(k.kept) == 0 {
		return
	}
	id := k.kept[len(k.kept)-1-k.rnd.IntN(min(len(k.kept), 6))] // most of the others have ended
	ctx, cancel := k.patience()
	defer cancel()
	op := k.w.snaps.Begin(k.n, verb, id)
	k.ended(op, do(ctx, id), "")
}

// ended is end for an operation on a snapshot.
func (k *keeper) ended(op *history.Op, err error, now string) {
	out, note := outcome(err)
	if out == "" {
		k.w.snaps.Drop(op)
		return
	}
	k.w.snaps.End(op, out, "", now, note)
}

func (k *keeper) look() {
	known := slices.Clone(k.kept)
	slices.Sort(known)
	ctx, cancel := k.patience()
	defer cancel()
	ops := map[string]*history.Op{}
	for _, id := range slices.Compact(known) {
		ops[id] = k.w.snaps.Begin(k.n, history.Look, id)
	}
	call := k.w.snaps.Clock.Now()
	list, err := k.api.List(ctx, gen.ListSnapshotsParams{Limit: new(200)})
	found := map[string]gen.Snapshot{}
	for _, s := range list.Snapshots {
		found[s.ID] = s
		if ops[s.ID] == nil && !s.Ephemeral {
			k.w.snaps.Add(history.Op{Client: k.n, Verb: history.Look, ID: s.ID, Call: call, Return: k.w.snaps.Clock.Now(), Outcome: history.Done, State: s.State})
		}
	}
	for id, op := range ops {
		if s, ok := found[id]; ok || err != nil {
			k.ended(op, err, s.State)
		} else {
			k.w.snaps.End(op, history.NotFound, "", "", "not in the list")
		}
	}
}

// fork makes another environment, from a snapshot of its own or from one that is
// taken for it. It is the user's from then on.
func (k *keeper) fork(task string) {
	req := gen.ForkEnvironment{Live: k.rnd.IntN(2) == 0}
	if len(k.kept) > 0 && k.rnd.IntN(2) == 0 {
		req.ReuseSnapshotID = k.kept[len(k.kept)-1-k.rnd.IntN(min(len(k.kept), 3))]
	}
	ctx, cancel := k.patience()
	defer cancel()
	call := k.w.wit.clients.Clock.Now()
	out, err := k.api.Fork(ctx, vmID(task), req)
	if err != nil {
		return
	}
	for _, env := range out.Environments {
		k.tasks = append(k.tasks, strings.TrimPrefix(env.ID, vmID("")))
		k.w.wit.clients.Add(history.Op{
			Client: k.n, Verb: history.Create, ID: env.ID, Call: call, Return: k.w.wit.clients.Clock.Now(), Outcome: history.Done, UID: env.UID, State: env.State,
		})
	}
}

// stand pauses or resumes; what comes of it is looked at in the end.
func (k *keeper) stand(task string, do func(context.Context, string) (gen.Environment, error)) {
	ctx, cancel := k.patience()
	defer cancel()
	_, _ = do(ctx, vmID(task)) // it may be refused
}

// captureDay is a bad day of users who capture, beside one who does not.
func (w *world) captureDay(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var actors sync.WaitGroup
	actors.Go(func() {
		for pause(ctx, ctx, 7*time.Second) == nil {
			w.quotasHold()
		}
	})
	actors.Go(func() { w.newUser(0).run(ctx) })
	for n := range 3 {
		actors.Go(func() { w.newKeeper(n).run(ctx) })
	}
	w.trouble(ctx)
	stop()
	actors.Wait()
}

// quotasHold checks that no tenant has more than its share.
func (w *world) quotasHold() {
	rows, err := w.db.rows.Reopen().Load(w.ctx, 1)
	if err != nil {
		w.wrong("read the rows: %v", err)
		return
	}
	for _, s := range rows.Snapshots {
		if u := decide.UsageOf(slices.Values(rows.Snapshots), s.TenantID, ""); u.Count > maxSnapshots {
			w.wrong("promise 4: tenant %q keeps %d snapshots of %d", s.TenantID, u.Count, maxSnapshots)
			return
		}
	}
}

// snapshotsAreInOrder holds what clients were told of snapshots, the records and
// what lies on the hosts against each other, once all is calm.
func (w *world) snapshotsAreInOrder(j *judgement) {
	rows, err := w.db.rows.Reopen().Load(w.ctx, memory.MaxEvents)
	if err != nil {
		j.wrong(4, "", "the journal cannot be read: %v", err)
		return
	}
	byID, used, want := map[string]*fleet.Snapshot{}, map[string]bool{}, map[string][]string{}
	for _, s := range rows.Snapshots {
		byID[s.SnapshotID] = s
		want[s.HostID] = append(want[s.HostID], s.SnapshotID)
		if s.State != fleet.SnapshotStateReady || s.Discard {
			j.wrong(4, s.VMID, "snapshot %s is still %s (%s) after %v of calm", s.SnapshotID, s.State, s.LastError, calm)
		}
	}
	for _, vm := range rows.VMs {
		id := vm.Spec.SeedSnapshotID
		if used[id] = true; id != "" && (byID[id] == nil || byID[id].HostID != vm.HostID) {
			j.wrong(3, vm.ID, "the snapshot %s that it was made from is gone from host %s", id, vm.HostID)
		}
	}
	for _, s := range rows.Snapshots {
		if p := s.ParentSnapshotID; p != "" && byID[p] == nil {
			j.wrong(3, s.VMID, "snapshot %s builds on %s, which is gone", s.SnapshotID, p)
		}
		if s.Ephemeral && !used[s.SnapshotID] {
			j.wrong(4, s.VMID, "snapshot %s was taken for forks, of which none is left", s.SnapshotID)
		}
	}
	w.toldSnapshotsAreThere(j, byID)
	for id, h := range w.hosts {
		entries, err := os.ReadDir(filepath.Join(h.now().dir, "snapshots"))
		var held []string
		for _, e := range entries {
			held = append(held, e.Name())
		}
		if slices.Sort(want[id]); err != nil || !slices.Equal(held, want[id]) {
			j.wrong(4, "", "%s keeps the snapshots %v, its records say %v, %v", id, held, want[id], err)
		}
		l, _ := h.holds(w.fleetID())
		for _, vm := range l.VMs {
			if i := slices.IndexFunc(rows.VMs, func(row *fleet.VM) bool { return row.UID == vm.UID }); i >= 0 && vm.Paused != (rows.VMs[i].Activity() == fleet.ActivityPaused) {
				j.wrong(3, vm.ID, "it is %q and on its host paused is %t", rows.VMs[i].Activity(), vm.Paused)
			}
		}
	}
}

// toldSnapshotsAreThere wants every snapshot that a client was told of, but those
// whose end somebody asked for.
func (w *world) toldSnapshotsAreThere(j *judgement, rows map[string]*fleet.Snapshot) {
	ops := w.snaps.Ops()
	for _, op := range ops {
		asked := slices.ContainsFunc(ops, func(o history.Op) bool {
			return o.ID == op.ID && o.Verb == history.Remove && o.Outcome != history.Refused && o.Outcome != history.NotFound
		})
		if op.Verb == history.Take && !asked && rows[op.ID] == nil {
			j.problems = append(j.problems, fmt.Sprintf("promise 3: snapshot %s was told to be ready and is gone:\n%s", op.ID, history.Of(ops, op.ID)))
		}
	}
}

// playCaptures is one run with snapshots and what is wrong with it.
func playCaptures(t *testing.T, seed uint64, log io.Writer, b broken) (problems []string) {
	t.Helper()
	dir := memoryDir(t)
	var ops, snaps []history.Op
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, dir, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo})), b)
		w.captures = true
		for _, h := range w.hosts {
			for _, verb := range []string{"snapshot", "restore", "fork", "pause", "resume"} {
				h.opts.Delay[verb] = sim.Range{Min: 100 * time.Millisecond, Max: 3 * time.Second}
				h.opts.Fail[verb] = sim.Failure{Rate: 0.03}
			}
		}
		w.run(w.captureDay)
		ops, snaps, problems = w.wit.clients.Ops(), w.snaps.Ops(), w.problems
	})
	for _, check := range []func() (bool, string){
		func() (bool, string) { return history.Check(ops, 10*time.Second) },
		func() (bool, string) { return history.CheckSnapshots(snaps, 10*time.Second) },
	} {
		undecided, problem := check()
		if problem != "" {
			problems = append(problems, problem)
		}
		if undecided {
			t.Log("the search for an order was given up")
		}
	}
	return problems
}

// Bad days with snapshots of both kinds, restores, forks, pauses and deletions.
func TestBadDaysWithSnapshots(t *testing.T) {
	for seed := range testkit.Count(20, 1000) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			none(t, playCaptures(t, uint64(seed), io.Discard, broken{}))
		})
	}
}

// forgetful says that it has deleted snapshots and has not.
type forgetful struct {
	lazy
	provider.Snapshotter
}

// Destroy implements provider.Provider.
func (f forgetful) Destroy(ctx context.Context, ref provider.Ref) error {
	return f.Provider.Destroy(ctx, ref)
}

// DeleteSnapshot implements provider.Snapshotter.
func (forgetful) DeleteSnapshot(context.Context, string, string) error { return nil }

// The oracle finds out a host that only says that it deletes snapshots.
func TestTheOracleNoticesSnapshots(t *testing.T) {
	b := broken{provider: func(p provider.Provider) provider.Provider {
		keeps, _ := provider.As[provider.Snapshotter](p)
		return forgetful{lazy{p}, keeps}
	}}
	for seed := range uint64(20) {
		for _, p := range playCaptures(t, 1000+seed, io.Discard, b) {
			if strings.HasPrefix(p, "promise 4") && strings.Contains(p, "keeps the snapshots") {
				t.Logf("found on day %d", seed+1)
				return
			}
		}
	}
	t.Error("nobody noticed in 20 bad days")
}
