package snapshots_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/provider/fake"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/state"
)

// A paused environment gives its memory back, and gets it again only where there
// is room.
func TestPauseGivesMemoryBack(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		var vms []*fleet.VM
		for _, task := range []string{"a", "b", "c", "d"} { // 512 MB each, of 2048
			vms = append(vms, w.create(task))
		}
		a := vms[0]
		vm, err := w.pauses.Pause(t.Context(), a.ID, "user:alice")
		if err != nil || vm.State != fleet.VMStateRunning || vm.Activity() != fleet.ActivityPaused || vm.Paused.KeptBytes == 0 || !w.host.Paused(a.UID) {
			t.Fatalf("%+v, %v", vm, err)
		}
		if got := w.allocated(); got.RamMB != 3*512 || got.CPUs != 3 || got.VMCount != 4 || got.StorageGB != 16 {
			t.Errorf("held: %+v", got)
		}
		if again, err := w.pauses.Pause(t.Context(), a.ID, "user:alice"); err != nil || again.Activity() != fleet.ActivityPaused {
			t.Errorf("again: %+v, %v", again, err)
		}
		_, err = w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: a.ID, Actor: "user:alice"})
		want(t, err, fleet.CodeConflict, nil, "while it is paused")
		_, err = w.life.Drain(t.Context(), a.ID, "user:alice")
		want(t, err, fleet.CodeConflict, nil, "cannot drain")
		e := w.create("e")
		_, err = w.pauses.Resume(t.Context(), a.ID, "user:alice")
		want(t, err, fleet.CodeUnavailable, nil, "")
		if w.vm(a.ID).Activity() != fleet.ActivityPaused || !w.host.Paused(a.UID) {
			t.Error("it did not stay paused")
		}
		w.destroy(e.ID)
		vm, err = w.pauses.Resume(t.Context(), a.ID, "user:alice")
		if err != nil || vm.Paused != nil || vm.Certificate == nil || vm.Certificate.Cause != fleet.ThawResume || w.host.Paused(a.UID) || w.allocated().RamMB != 2048 {
			t.Errorf("%+v, %v", vm, err)
		}
		if again, err := w.pauses.Resume(t.Context(), a.ID, "user:alice"); err != nil || again.Paused != nil {
			t.Errorf("again: %+v, %v", again, err)
		}
		_, err = w.pauses.Pause(auth.With(t.Context(), auth.Principal{Name: "bob", Role: fleet.RoleUser}), a.ID, "user:bob")
		want(t, err, fleet.CodeNotFound, fleet.ErrVMNotFound, "")
		// A paused one can be destroyed, and gives back the rest.
		if _, err := w.pauses.Pause(t.Context(), a.ID, "user:alice"); err != nil {
			t.Error(err)
		}
		w.destroy(a.ID)
		if got := w.allocated(); got.VMCount != 3 || got.StorageGB != 12 || got.RamMB != 3*512 {
			t.Errorf("held: %+v", got)
		}
	})
}

// Uses that come at a time wait for one resume.
func TestAUseWakesOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		ops, err := guestops.New(guestops.Config{Store: w.store, Providers: hosts{w.p}, Wake: w.pauses.Wake})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.pauses.Pause(t.Context(), vm.ID, "user:alice"); err != nil {
			t.Fatal(err)
		}
		w.host.Latency(fake.Resume, time.Second)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if res, err := ops.Exec(t.Context(), vm.ID, guestops.ExecRequest{Actor: "user:alice", Cmd: []string{"true"}}); err != nil || res.ExitCode != 0 {
					t.Errorf("%+v, %v", res, err)
				}
			})
		}
		wg.Wait()
		if n := w.host.Calls(fake.Resume); n != 1 {
			t.Errorf("%d resumes", n)
		}
		if got := w.events(vm.ID); got[len(got)-1] != fleet.EventVMResumed {
			t.Error(got)
		}
	})
}

// lagging is a store that somebody reads just before something happens.
type lagging struct {
	*state.Store
	then func() // once
}

func (l *lagging) View(fn func(*state.ReadTx) error) error {
	err := l.Store.View(fn)
	if then := l.then; then != nil {
		l.then = nil
		then()
	}
	return err
}

// A use that found the environment running, right before it was paused, wakes it.
func TestAUseThatWasOvertakenWakes(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		store := &lagging{w.store, func() {
			if _, err := w.pauses.Pause(t.Context(), vm.ID, "user:alice"); err != nil {
				t.Error(err)
			}
		}}
		ops, err := guestops.New(guestops.Config{Store: store, Providers: hosts{w.p}, Wake: w.pauses.Wake})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := ops.Exec(t.Context(), vm.ID, guestops.ExecRequest{Actor: "user:alice", Cmd: []string{"true"}}); err != nil || res.ExitCode != 0 {
			t.Errorf("%+v, %v", res, err)
		}
		if w.host.Paused(vm.UID) || w.host.Calls(fake.Resume) != 1 {
			t.Error("it was not woken")
		}
	})
}

// A use that comes while an environment is being paused for want of one waits for
// that and wakes it; one that comes before, while a capture holds it up, keeps it
// running.
func TestAUseWhileItIsPausedForWantOfOne(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		ops, err := guestops.New(guestops.Config{Store: w.store, Providers: hosts{w.p}, Wake: w.pauses.Wake})
		if err != nil {
			t.Fatal(err)
		}
		used := errors.New("it is used")
		idle := func(done chan<- error) {
			done <- w.pauses.PauseLife(t.Context(), vm.ID, vm.UID, fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleIdleTimeout}, func() (func(), error) {
				open := ops.Shut(vm.UID)
				if a, _ := ops.Activity(vm.UID); a.Open > 0 {
					open()
					return nil, used
				}
				return open, nil
			})
		}
		exec := func() {
			t.Helper()
			if res, err := ops.Exec(t.Context(), vm.ID, guestops.ExecRequest{Actor: "user:alice", Cmd: []string{"sleep", "90"}, Timeout: 5 * time.Minute}); err != nil || res.ExitCode != 0 {
				t.Errorf("%+v, %v", res, err)
			}
		}
		w.host.Latency(fake.Pause, time.Minute)
		done := make(chan error, 1)
		go idle(done)
		<-time.After(time.Second)
		exec()
		if err := <-done; err != nil || w.host.Calls(fake.Resume) != 1 || w.vm(vm.ID).Paused != nil {
			t.Errorf("%v, %d resumes", err, w.host.Calls(fake.Resume))
		}
		w.host.Latency(fake.Take, time.Minute)
		go func() { _, _ = w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice"}) }()
		<-time.After(time.Second)
		go idle(done)
		<-time.After(time.Second)
		exec()
		if err := <-done; !errors.Is(err, used) || w.host.Calls(fake.Pause) != 1 || w.vm(vm.ID).Paused != nil {
			t.Errorf("%v, %d pauses", err, w.host.Calls(fake.Pause))
		}
	})
}

func TestAWakeIsBounded(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		paused, err := w.pauses.Pause(t.Context(), vm.ID, "user:alice")
		if err != nil {
			t.Fatal(err)
		}
		w.host.Latency(fake.Resume, 5*time.Minute)
		began := time.Now()
		_, err = w.pauses.Wake(t.Context(), paused, "user:alice")
		want(t, err, fleet.CodeDeadlineExceeded, nil, "still being resumed")
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("it took %s", took)
		}
		<-time.After(4 * time.Minute)
		synctest.Wait()
		if w.vm(vm.ID).Paused != nil {
			t.Error("it is not resumed")
		}
	})
}

// A host that refuses leaves it paused; one that does not answer is asked again.
func TestAResumeThatFails(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		if _, err := w.pauses.Pause(t.Context(), vm.ID, "user:alice"); err != nil {
			t.Fatal(err)
		}
		w.host.Fail(fake.Resume, fleet.Errorf(fleet.CodeConflict, "its memory is damaged"))
		_, err := w.pauses.Resume(t.Context(), vm.ID, "user:alice")
		want(t, err, fleet.CodeConflict, nil, "damaged")
		if now := w.vm(vm.ID); now.Activity() != fleet.ActivityPaused || now.Paused.LastError == "" || w.allocated().RamMB != 0 {
			t.Errorf("%+v", now.Paused)
		}
		w.host.LoseAnswer(fake.Resume)
		if _, err := w.pauses.Resume(t.Context(), vm.ID, "user:alice"); err == nil {
			t.Error("a lost answer is no error")
		}
		if now := w.vm(vm.ID); now.Activity() != fleet.ActivityResuming || w.allocated().RamMB != 512 {
			t.Errorf("%s, %+v", now.Activity(), w.allocated())
		}
		w.mend()
		if now := w.vm(vm.ID); now.Paused != nil || now.State != fleet.VMStateRunning {
			t.Errorf("%+v", now.Paused)
		}
	})
}

// What stands between a pause and running is brought to an end: one that its host
// cannot bring back for good stays paused and says why, one whose host is busy is
// asked again.
func TestNobodyStaysOnTheWay(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		resuming := func() {
			if _, err := w.pauses.Pause(t.Context(), vm.ID, "user:alice"); err != nil {
				t.Fatal(err)
			}
			w.update(func(tx *state.Tx) error {
				row, _ := tx.VMs().Get(vm.ID)
				next, p := *row, *row.Paused
				p.Activity = fleet.ActivityResuming
				next.Paused = &p
				return tx.PutVM(next)
			})
		}
		resuming()
		w.host.Fail(fake.Resume, fleet.Errorf(fleet.CodeConflict, "%w: it is starting", fleet.ErrVMNotRunning))
		_, err := w.pauses.Resume(t.Context(), vm.ID, "user:alice")
		want(t, err, fleet.CodeConflict, fleet.ErrVMNotRunning, "starting")
		if now := w.vm(vm.ID); now.Activity() != fleet.ActivityResuming || w.allocated().RamMB != 512 {
			t.Errorf("it may run, and is %s with %d MB held", now.Activity(), w.allocated().RamMB)
		}
		w.host.Fail(fake.Resume, fleet.Errorf(fleet.CodeUnavailable, "the agent is busy"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.pauses.Run(ctx) }()
		<-time.After(time.Second)
		if now := w.vm(vm.ID); now.Activity() != fleet.ActivityResuming || !strings.Contains(now.Paused.LastError, "busy") {
			t.Errorf("%+v", now.Paused)
		}
		<-time.After(5 * time.Second)
		if now := w.vm(vm.ID); now.Paused != nil {
			t.Errorf("%+v", now.Paused)
		}
		resuming()
		w.host.Fail(fake.Resume, fleet.Errorf(fleet.CodeConflict, "%w: its memory is cut short", fleet.ErrSnapshotCorrupt))
		<-time.After(6 * time.Second)
		if now := w.vm(vm.ID); now.Activity() != fleet.ActivityPaused || !strings.Contains(now.Paused.LastError, "cut short") || w.allocated().RamMB != 0 {
			t.Errorf("%+v", now.Paused)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPauseForWantOfUse(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		why := fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleIdleTimeout, Evidence: "nobody has used it"}
		err := w.pauses.PauseLife(t.Context(), vm.ID, "another", why, nil)
		want(t, err, fleet.CodeNotFound, fleet.ErrVMNotFound, "")
		if err := w.pauses.PauseLife(t.Context(), vm.ID, vm.UID, why, nil); err != nil || w.vm(vm.ID).Paused.Reason != why {
			t.Errorf("%+v, %v", w.vm(vm.ID).Paused, err)
		}
		w.update(func(tx *state.Tx) error {
			h, _ := tx.Hosts().Get("h1")
			next := *h
			next.State = fleet.HostCordoned
			return tx.PutHost(next)
		})
		_, err = w.pauses.Resume(t.Context(), vm.ID, "user:alice")
		want(t, err, fleet.CodeUnavailable, fleet.ErrHostPinUnschedulable, "cordoned")
		_, err = w.pauses.Resume(t.Context(), "fuse-none", "user:alice")
		want(t, err, fleet.CodeNotFound, fleet.ErrVMNotFound, "")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.pauses.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
