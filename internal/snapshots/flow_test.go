package snapshots_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/fake"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/state"
)

func inBubble(t *testing.T, change func(*snapshots.Config), run func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newWorld(t, change)) })
}

func want(t *testing.T, err error, code fleet.Code, sentinel error, text string) {
	t.Helper()
	if fleet.CodeOf(err) != code || sentinel != nil && !errors.Is(err, sentinel) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v (%s), want %s %v with %q", err, fleet.CodeOf(err), code, sentinel, text)
	}
}

func TestTakeAndRestore(t *testing.T) {
	for _, live := range []bool{false, true} {
		inBubble(t, nil, func(t *testing.T, w *world) {
			vm := w.create("a")
			first := w.take(vm.ID, live)
			wantKind := fleet.SnapshotKindDisk
			if live {
				wantKind = fleet.SnapshotKindLive
			}
			if first.State != fleet.SnapshotStateReady || first.Kind != wantKind || first.SizeBytes != fake.SnapshotBytes || first.Digest == "" ||
				first.TenantID != "a" || first.Owner != "alice" || first.HostID != "h1" || first.ParentSnapshotID != "" {
				t.Errorf("snapshot %+v", first)
			}
			w.write(vm, "/data/a", "two")
			second := w.take(vm.ID, live)
			if second.ParentSnapshotID != first.SnapshotID {
				t.Errorf("parent %q, want %q", second.ParentSnapshotID, first.SnapshotID)
			}
			row, err := w.snaps.Restore(t.Context(), first.SnapshotID, "user:alice", nil)
			if err != nil || w.file(vm.UID, "/data/a") != "one" {
				t.Errorf("restored: %v, %q", err, w.file(vm.UID, "/data/a"))
			}
			if live != (row.Certificate != nil && row.Certificate.Cause == fleet.ThawRestore) {
				t.Errorf("certificate %+v", row.Certificate)
			}
			want(t, w.snaps.Remove(t.Context(), first.SnapshotID, "user:alice"), fleet.CodeConflict, fleet.ErrSnapshotHasChildren, second.SnapshotID)
			w.destroy(vm.ID)
			_, err = w.snaps.Restore(t.Context(), second.SnapshotID, "user:alice", nil)
			want(t, err, fleet.CodeNotFound, fleet.ErrVMNotFound, "has ended")
			for _, id := range []string{second.SnapshotID, first.SnapshotID} { // also without the environment
				if err := w.snaps.Remove(t.Context(), id, "user:alice"); err != nil {
					t.Error(err)
				}
			}
			w.agree(0)
			want(t, w.snaps.Remove(t.Context(), first.SnapshotID, "user:alice"), fleet.CodeNotFound, fleet.ErrSnapshotNotFound, "")
			if diff := cmp.Diff([]string{fleet.EventSnapshotCreating, fleet.EventSnapshotCreated, fleet.EventSnapshotRestoring, fleet.EventSnapshotRestored, fleet.EventSnapshotDeleted}, w.events(first.SnapshotID)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheKindIsWhatWasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		vm := w.create("a")
		w.host.Shelf().WriteDisksOnly()
		if s := w.take(vm.ID, true); s.Kind != fleet.SnapshotKindDisk {
			t.Errorf("kind %s", s.Kind)
		}
		_, err := w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: vm.ID, Actor: "user:alice", Live: true})
		want(t, err, fleet.CodeUnimplemented, fleet.ErrSnapshotUnsupported, "disk snapshot")
		w.agree(1)
	})
}

func TestFork(t *testing.T) {
	for _, live := range []bool{false, true} {
		inBubble(t, nil, func(t *testing.T, w *world) {
			src := w.create("a")
			w.write(src, "/data/b", "kept")
			out, err := w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: src.ID, Actor: "user:alice", Live: live, Count: 2, Comment: "c"})
			if err != nil || len(out.Environments) != 2 || len(out.Failures) != 0 {
				t.Fatalf("%+v, %v", out, err)
			}
			seen := map[string]bool{}
			for _, vm := range out.Environments {
				if !strings.HasPrefix(vm.TaskID, "fork-") || vm.Owner != "alice" || vm.HostID != src.HostID || vm.Boot.Mode != fleet.BootSeed ||
					vm.Spec.SeedSnapshotID != out.SnapshotID || !slices.Equal(vm.Spec.Ancestors, []string{src.ID}) || vm.Spec.IdleTimeout != time.Hour || vm.Spec.Tags["k"] != "v" {
					t.Errorf("fork %+v", vm)
				}
				if live != (vm.Certificate != nil) {
					t.Errorf("certificate %+v", vm.Certificate)
				}
				if w.file(vm.UID, "/data/b") != "kept" || !strings.Contains(w.file(vm.UID, fleet.FuseSecretsPath), "parent-secret-value") {
					t.Error("the fork lacks its source's disk or secrets")
				}
				if string(vm.BootSealed) == string(src.BootSealed) || string(vm.AuthTokenSealed) == string(src.AuthTokenSealed) || string(vm.CertPEM) == string(src.CertPEM) || seen[string(vm.CertPEM)] {
					t.Error("credentials are not its own")
				}
				seen[string(vm.CertPEM)] = true
				if _, err := w.sealer.Open(lifecycle.SealKindVMBoot, vm.UID, vm.BootSealed); err != nil {
					t.Error("secrets are not under its own sealing:", err)
				}
			}
			seed := w.record(out.SnapshotID)
			if !seed.Ephemeral || seed.Mode != fleet.SnapshotModeAuto {
				t.Errorf("seed %+v", seed)
			}
			want(t, w.snaps.Remove(t.Context(), seed.SnapshotID, "user:alice"), fleet.CodeConflict, fleet.ErrSnapshotInUse, out.Environments[0].ID)
			// A fork of a fork tells its whole line, and its seed keeps no other one.
			again, err := w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: out.Environments[0].ID, Actor: "user:alice", Live: live})
			if err != nil || !slices.Equal(again.Environments[0].Spec.Ancestors, []string{src.ID, out.Environments[0].ID}) {
				t.Errorf("%+v, %v", again, err)
			}
			if s := w.record(again.SnapshotID); s.ParentSnapshotID != "" {
				t.Errorf("parent %q", s.ParentSnapshotID)
			}
			w.destroy(out.Environments[0].ID)
			w.collect()
			w.agree(2) // the other fork is there, and the fork of the first
			w.destroy(out.Environments[1].ID)
			w.collect()
			w.agree(1)
			w.destroy(again.Environments[0].ID)
			w.collect()
			w.agree(0)
			w.destroy(src.ID)
			if len(w.host.UIDs()) != 0 || w.allocated().VMCount != 0 {
				t.Errorf("left: %v, %+v", w.host.UIDs(), w.allocated())
			}
		})
	}
}

func TestForkIsRefused(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		src, other := w.create("a"), w.create("b")
		disk, live := w.take(src.ID, false), w.take(src.ID, true)
		fork := func(ctx context.Context, req snapshots.ForkRequest) error {
			req.Actor = "user:alice"
			_, err := w.snaps.Fork(ctx, req)
			return err
		}
		ctx := t.Context()
		stranger := auth.With(ctx, auth.Principal{Name: "bob", Role: fleet.RoleUser})
		want(t, fork(ctx, snapshots.ForkRequest{VMID: src.ID, ReuseSnapshotID: live.SnapshotID}), fleet.CodeConflict, fleet.ErrSnapshotNotSeedable, "is live")
		want(t, fork(ctx, snapshots.ForkRequest{VMID: src.ID, ReuseSnapshotID: disk.SnapshotID, Live: true}), fleet.CodeConflict, fleet.ErrSnapshotNotSeedable, "no memory")
		want(t, fork(ctx, snapshots.ForkRequest{VMID: other.ID, ReuseSnapshotID: disk.SnapshotID}), fleet.CodeNotFound, fleet.ErrSnapshotNotFound, disk.SnapshotID)
		want(t, fork(ctx, snapshots.ForkRequest{VMID: "fuse-x"}), fleet.CodeNotFound, fleet.ErrVMNotFound, "")
		want(t, fork(stranger, snapshots.ForkRequest{VMID: src.ID}), fleet.CodeNotFound, fleet.ErrVMNotFound, "")
		want(t, fork(ctx, snapshots.ForkRequest{VMID: src.ID, Count: 65}), fleet.CodeInvalidArgument, nil, "count")
		want(t, fork(ctx, snapshots.ForkRequest{VMID: src.ID, Count: -1}), fleet.CodeInvalidArgument, nil, "count")
		w.update(func(tx *state.Tx) error {
			h, _ := tx.Hosts().Get("h1")
			cordoned := *h
			cordoned.State = fleet.HostCordoned
			return tx.PutHost(cordoned)
		})
		want(t, fork(ctx, snapshots.ForkRequest{VMID: src.ID}), fleet.CodeUnavailable, fleet.ErrHostPinUnschedulable, "cordoned")
		w.agree(2)
	})
}

func TestAFullHostIsNotOvercommitted(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		src := w.create("a") // 512 of 2048 MB
		out, err := w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: src.ID, Actor: "user:alice", Count: 6})
		if err != nil || len(out.Environments) != 3 || len(out.Failures) != 3 {
			t.Fatalf("%d made, %d failed, %v", len(out.Environments), len(out.Failures), err)
		}
		for _, err := range out.Failures {
			want(t, err, fleet.CodeUnavailable, nil, "")
		}
		_, err = w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: src.ID, Actor: "user:alice"})
		want(t, err, fleet.CodeUnavailable, nil, "")
		if got := w.allocated().RamMB; got != 2048 {
			t.Errorf("%d MB are held", got)
		}
		w.agree(1) // no snapshot was taken for what has no room
	})
}

// A key that has no room for a fork is told so before anything is captured.
func TestAForkIsChargedToTheKeyThatAsks(t *testing.T) {
	inBubble(t, func(c *snapshots.Config) {
		c.Done = func(verb string, _ time.Duration, _ error) {
			if verb == "snapshot" {
				t.Error("a snapshot was taken")
			}
		}
	}, func(t *testing.T, w *world) {
		src := w.create("a")
		limit := int64(0)
		if _, err := w.quotas.Set(t.Context(), "key:ak_1", map[string]*int64{quota.Environments: &limit}, "user:master"); err != nil {
			t.Fatal(err)
		}
		ctx := auth.With(t.Context(), auth.Principal{Name: "alice", KeyID: "ak_1", Role: fleet.RoleUser})
		_, err := w.snaps.Fork(ctx, snapshots.ForkRequest{VMID: src.ID, Actor: "key:k"})
		if !errors.Is(err, fleet.ErrQuotaExceeded) {
			t.Error(err)
		}
		w.agree(0)
	})
}

func TestCreateFromASnapshot(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		src := w.create("a")
		disk, live := w.take(src.ID, false), w.take(src.ID, true)
		w.destroy(src.ID)
		create := func(id, image string) (*fleet.VM, error) {
			return w.life.Create(t.Context(), lifecycle.CreateRequest{TaskID: "n-" + id, Owner: "alice", Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 4, SeedSnapshotID: id, Image: image}})
		}
		vm, err := create(disk.SnapshotID, "")
		if err != nil || vm.Boot.Mode != fleet.BootSeed || vm.HostID != "h1" || w.file(vm.UID, "/data/a") != "one" || strings.Contains(w.file(vm.UID, fleet.FuseSecretsPath), "parent-secret") {
			t.Errorf("%+v, %v", vm, err)
		}
		_, err = create(disk.SnapshotID, "minimal")
		want(t, err, fleet.CodeInvalidArgument, nil, "image")
		_, err = create(live.SnapshotID, "")
		want(t, err, fleet.CodeConflict, fleet.ErrSnapshotNotSeedable, "is live")
		_, err = create("snap-none", "")
		want(t, err, fleet.CodeNotFound, fleet.ErrSnapshotNotFound, "snap-none")
		w.host.Shelf().Spoil(disk.SnapshotID, "its disk has another digest")
		_, err = w.life.Create(t.Context(), lifecycle.CreateRequest{TaskID: "spoilt", Owner: "alice", Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 4, SeedSnapshotID: disk.SnapshotID}})
		want(t, err, fleet.CodeConflict, fleet.ErrSnapshotCorrupt, "digest")
		if w.vm("fuse-spoilt") != nil {
			t.Error("a row is left")
		}
	})
}

func TestRefusalsOfCaptures(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		take := func(ctx context.Context) error {
			_, err := w.snaps.Take(ctx, snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice"})
			return err
		}
		change := func(fn func(*fleet.VM)) {
			w.update(func(tx *state.Tx) error {
				row, _ := tx.VMs().Get(vm.ID)
				next := *row
				fn(&next)
				return tx.PutVM(next)
			})
		}
		host := func(fn func(*fleet.Host)) {
			w.update(func(tx *state.Tx) error {
				row, _ := tx.Hosts().Get("h1")
				next := *row
				fn(&next)
				return tx.PutHost(next)
			})
		}
		snap := w.take(vm.ID, false)
		host(func(h *fleet.Host) { h.State = fleet.HostDraining })
		want(t, take(t.Context()), fleet.CodeUnavailable, nil, "drained")
		host(func(h *fleet.Host) { h.State, h.Facts.Capabilities = fleet.HostActive, nil })
		want(t, take(t.Context()), fleet.CodeUnimplemented, fleet.ErrSnapshotUnsupported, "h1")
		host(func(h *fleet.Host) { h.Facts.Capabilities = []string{fleet.CapSnapshotDisk} })
		_, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice", Live: true})
		want(t, err, fleet.CodeUnimplemented, fleet.ErrSnapshotUnsupported, "h1")
		want(t, take(auth.With(t.Context(), auth.Principal{Name: "bob", Role: fleet.RoleUser})), fleet.CodeNotFound, fleet.ErrVMNotFound, "")
		change(func(v *fleet.VM) { v.State = fleet.VMStateDraining })
		want(t, take(t.Context()), fleet.CodeConflict, fleet.ErrVMNotRunning, "draining")
		_, err = w.snaps.Restore(t.Context(), snap.SnapshotID, "user:alice", nil)
		want(t, err, fleet.CodeConflict, fleet.ErrVMNotRunning, "draining")
		for _, bad := range []snapshots.TakeRequest{
			{Comment: strings.Repeat("x", 5000)}, {Mode: "a b"}, {Retention: -1}, {Retention: snapshots.MaxRetention + 1}, {Metadata: map[string]string{"comment": "x"}}, {Metadata: map[string]string{"": "x"}},
		} {
			bad.VMID, bad.Actor = vm.ID, "user:alice"
			_, err := w.snaps.Take(t.Context(), bad)
			want(t, err, fleet.CodeInvalidArgument, nil, "")
		}
		w.agree(1)
	})
}

func TestAGPUIsNotCaptured(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		w.update(func(tx *state.Tx) error {
			h, _ := tx.Hosts().Get("h1")
			next := *h
			next.Capacity.GPUs = 1
			return errors.Join(tx.PutHost(next), tx.PutVM(fleet.VM{ID: "fuse-g", UID: "u", TaskID: "g", Owner: "alice", HostID: "h1", State: fleet.VMStateProvisioning, Spec: fleet.Spec{CPUs: 1, RamMB: 64, GPUs: 1}}))
		})
		w.update(func(tx *state.Tx) error {
			row, _ := tx.VMs().Get("fuse-g")
			next := *row
			next.State = fleet.VMStateRunning
			return tx.PutVM(next)
		})
		_, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: "fuse-g", Actor: "user:alice"})
		want(t, err, fleet.CodeConflict, fleet.ErrGPUUnsupported, "fuse-g")
		_, err = w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: "fuse-g", Actor: "user:alice"})
		want(t, err, fleet.CodeConflict, fleet.ErrGPUUnsupported, "fuse-g")
		_, err = w.pauses.Pause(t.Context(), "fuse-g", "user:alice")
		want(t, err, fleet.CodeConflict, fleet.ErrGPUUnsupported, "fuse-g")
	})
}

func TestTheCallerMayLeave(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		w.host.Latency(fake.Take, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := w.snaps.Take(ctx, snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice"})
		want(t, err, fleet.CodeDeadlineExceeded, nil, "goes on")
		if all := w.records(); len(all) != 1 || all[0].State != fleet.SnapshotStateCreating {
			t.Errorf("%+v", all)
		}
		<-time.After(2 * time.Minute)
		synctest.Wait()
		w.agree(1)
	})
}

func TestProgressIsTold(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		var told []provider.SnapshotProgress
		var id string
		s, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice", Progress: func(u provider.SnapshotProgress) {
			told, id = append(told, u), w.records()[0].SnapshotID
			if p, ok := w.snaps.Progress(id); !ok || p != u {
				t.Errorf("progress %+v, %t", p, ok)
			}
		}})
		if err != nil || len(told) == 0 || told[0].Total != fake.SnapshotBytes || id != s.SnapshotID {
			t.Errorf("%+v, %v", told, err)
		}
		read := provider.SnapshotProgress{Phase: "check", Done: fake.SnapshotBytes, Total: fake.SnapshotBytes, Rate: fake.SnapshotBytes}
		told = nil
		hear := func(u provider.SnapshotProgress) {
			told = append(told, u)
			if p, ok := w.snaps.Progress(id); u.Total > 0 && (!ok || p != u) {
				t.Errorf("progress %+v, %t", p, ok)
			}
		}
		if _, err := w.snaps.Restore(t.Context(), id, "user:alice", hear); err != nil || !slices.Equal(told, []provider.SnapshotProgress{read}) {
			t.Errorf("a restore told %+v, %v", told, err)
		}
		told, read.Phase = nil, "memory"
		if _, err := w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: vm.ID, Actor: "user:alice", ReuseSnapshotID: id, Progress: hear}); err != nil || !slices.Contains(told, read) {
			t.Errorf("a fork told %+v, %v", told, err)
		}
		if _, ok := w.snaps.Progress(id); ok {
			t.Error("progress is still told")
		}
		for _, call := range []string{fake.Pause, fake.Resume} {
			do := map[string]func(ctx context.Context, id, actor string) (*fleet.VM, error){fake.Pause: w.pauses.Pause, fake.Resume: w.pauses.Resume}[call]
			w.host.Latency(call, time.Second)
			done := make(chan error, 1)
			go func() {
				_, err := do(t.Context(), vm.ID, "user:alice")
				done <- err
			}()
			synctest.Wait()
			if p, ok := w.pauses.Progress(vm.UID); !ok || p != read {
				t.Errorf("%s: progress %+v, %t", call, p, ok)
			}
			if err := <-done; err != nil {
				t.Error(call, err)
			}
			if _, ok := w.pauses.Progress(vm.UID); ok {
				t.Errorf("%s: progress is still told", call)
			}
		}
	})
}

func TestListAndResolve(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		var ids []string
		for i := range 5 {
			s, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{
				VMID: vm.ID, Actor: "user:alice", Metadata: map[string]string{"name": "n" + string(rune('0'+i%2))}, LayerKey: "key", TenantID: "t1", Mode: fleet.SnapshotModeBuild,
			})
			if err != nil {
				t.Fatal(err)
			}
			ids = append([]string{s.SnapshotID}, ids...)
			<-time.After(time.Second)
		}
		all := func(string) bool { return true }
		var got []string
		for cursor := ""; ; {
			page, next, err := w.snaps.List(snapshots.Filter{VMID: vm.ID}, all, cursor, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range page {
				got = append(got, s.SnapshotID)
			}
			if cursor = next; next == "" {
				break
			}
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%v, want %v", got, ids)
		}
		if page, _, err := w.snaps.List(snapshots.Filter{Name: "n1"}, all, "", 10); err != nil || len(page) != 2 {
			t.Errorf("%d by name, %v", len(page), err)
		}
		if page, _, err := w.snaps.List(snapshots.Filter{}, func(string) bool { return false }, "", 10); err != nil || len(page) != 0 {
			t.Errorf("a stranger sees %d, %v", len(page), err)
		}
		_, _, err := w.snaps.List(snapshots.Filter{}, all, "rubbish", 10)
		want(t, err, fleet.CodeInvalidArgument, fleet.ErrInvalidCursor, "")
		if s, err := w.snaps.Resolve("t1", "key", fleet.ArchAMD64); err != nil || s == nil || s.SnapshotID != ids[0] {
			t.Errorf("%+v, %v", s, err)
		}
		for _, q := range [][3]string{{"t2", "key", "amd64"}, {"t1", "", "amd64"}, {"t1", "key", ""}, {"t1", "other", "amd64"}, {"t1", "key", "arm64"}} {
			if s, err := w.snaps.Resolve(q[0], q[1], q[2]); err != nil || s != nil {
				t.Errorf("%v: %+v, %v", q, s, err)
			}
		}
	})
}
