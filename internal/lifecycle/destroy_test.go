package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

func (f *fixture) create(t *testing.T, task string) *fleet.VM {
	t.Helper()
	vm, err := f.svc.Create(t.Context(), CreateRequest{TaskID: task})
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func TestDestroyEndsALife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		vm := f.create(t, "t")
		if err := f.svc.Destroy(t.Context(), vm.ID, manual("user:a")); err != nil {
			t.Fatal(err)
		}
		f.wantNothingLeft(t)
		f.wantTask(t, "t", fleet.TaskRunFailed)
		life := f.life(t, vm.ID)
		if life.State != fleet.VMStateDestroyed || life.Reason != manual("user:a") || life.EndedSeq == 0 || life.UID != vm.UID {
			t.Errorf("life %+v", life)
		}
		f.wantTerminal(t, vm.UID, fleet.VMStateDestroyed)
	})
}

func TestDestroyIsIdempotentForADay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		vm := f.create(t, "t")
		for range 2 {
			if err := f.svc.Destroy(t.Context(), vm.ID, manual("user:a")); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.svc.Destroy(t.Context(), "fuse-never", manual("user:a")); !errors.Is(err, fleet.ErrVMNotFound) || fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("unknown: %v", err)
		}
		<-time.NewTimer(24*time.Hour + time.Second).C
		if err := f.svc.Destroy(t.Context(), vm.ID, manual("user:a")); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("after a day: %v", err)
		}
	})
}

func TestDestroyLifeTouchesNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		first := f.create(t, "t")
		if err := f.svc.Destroy(t.Context(), first.ID, manual("user:a")); err != nil {
			t.Fatal(err)
		}
		second := f.create(t, "t")
		if err := f.svc.DestroyLife(t.Context(), first.ID, first.UID, manual(fleet.ActorReconcile)); err != nil {
			t.Errorf("a life that is over: %v", err)
		}
		if vm := f.vm(t, second.ID); vm.State != fleet.VMStateRunning || vm.UID != second.UID {
			t.Errorf("the next life is %+v", vm)
		}
		if err := f.svc.DestroyLife(t.Context(), second.ID, second.UID, manual(fleet.ActorReconcile)); err != nil {
			t.Error(err)
		}
		f.wantNothingLeft(t)
	})
}

func TestDestroyOfAnUnreachableHostIsPending(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		away := true
		f.host.destroy = func(ctx context.Context, _ provider.Ref) error {
			if away {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		vm := f.create(t, "t")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var pending *PendingError
		err := f.svc.Destroy(ctx, vm.ID, manual("user:a"))
		if !errors.As(err, &pending) || pending.HostID != "local" || fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Fatalf("while the host hangs: %v", err)
		}
		start := time.Now()
		if err := f.svc.Destroy(t.Context(), vm.ID, manual("user:b")); !errors.As(err, &pending) {
			t.Fatalf("joined: %v", err)
		}
		if waited := time.Since(start); waited != 59*time.Second {
			t.Errorf("the second destroy waited %v: it did not join the first", waited)
		}
		_, err = f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		wantConflict(t, err, fleet.ErrTaskAlreadyAssigned, "fuse-t", "destroying")
		if row := f.vm(t, vm.ID); row.State != fleet.VMStateDestroying || row.End.Actor != "user:a" {
			t.Errorf("row %+v", row)
		}
		away = false
		if err := f.svc.Destroy(t.Context(), vm.ID, manual("user:c")); err != nil {
			t.Fatal(err)
		}
		f.wantNothingLeft(t)
		if life := f.life(t, vm.ID); life.Reason.Actor != "user:a" {
			t.Errorf("the first reason is lost: %+v", life.Reason)
		}
	})
}

func TestConcurrentDestroysJoin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		calls := 0
		f.host.destroy = func(ctx context.Context, _ provider.Ref) error {
			f.host.mu.Lock()
			calls++
			f.host.mu.Unlock()
			return pause(ctx, time.Second)
		}
		vm := f.create(t, "t")
		errs := make(chan error)
		for range 20 {
			go func() {
				err := f.svc.Destroy(t.Context(), vm.ID, manual("user:a"))
				if err == nil && f.find(vm.ID) != nil {
					err = errors.New("it answered before the end")
				}
				errs <- err
			}()
		}
		for range 20 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if calls != 1 {
			t.Errorf("%d calls to the host", calls)
		}
	})
}

// A destroy wins over a create wherever that stands.
func TestDestroyWinsOverCreate(t *testing.T) {
	for name, arrange := range map[string]func(f *fixture, enter func(context.Context) error){
		"host_create": func(f *fixture, enter func(context.Context) error) {
			f.host.create = func(ctx context.Context, _ provider.CreateRequest) error { return enter(ctx) }
		},
		"made but unanswered": func(f *fixture, enter func(context.Context) error) {
			f.host.created = func(ctx context.Context, _ provider.CreateRequest) error { return enter(ctx) }
		},
		"upload": func(f *fixture, enter func(context.Context) error) {
			f.host.upload = func(ctx context.Context, _ []fleet.GuestFile) error { return enter(ctx) }
		},
		"startup script": func(f *fixture, enter func(context.Context) error) {
			f.host.exec = func(ctx context.Context, _ fleet.ExecSpec, _ fleet.Stdio) (fleet.ExecStatus, error) {
				return fleet.ExecStatus{}, enter(ctx)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := setup(t, nil)
				entered := make(chan struct{})
				arrange(f, func(ctx context.Context) error { close(entered); return pause(ctx, time.Hour) })
				created := make(chan error, 1)
				go func() {
					_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Boot: fleet.BootOptions{StartupScript: "x"}})
					created <- err
				}()
				<-entered
				start := time.Now()
				if err := f.svc.Destroy(t.Context(), "fuse-t", manual("user:a")); err != nil {
					t.Fatal(err)
				}
				wantConflict(t, <-created, nil, "fuse-t", "destroyed")
				if time.Since(start) > time.Second {
					t.Errorf("it took %v", time.Since(start))
				}
				f.wantNothingLeft(t)
				if life := f.life(t, "fuse-t"); life.State != fleet.VMStateDestroyed || life.Reason != manual("user:a") {
					t.Errorf("life %+v", life)
				}
				f.wantTerminal(t, f.life(t, "fuse-t").UID, fleet.VMStateDestroyed)
			})
		})
	}
}

// The claim is taken over after the last step has begun: it does not settle.
func TestDestroyAtTheLastMoment(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		destroyed := make(chan error, 1)
		f.fail(t, StepSettle, func(run func() error) error {
			go func() { destroyed <- f.svc.Destroy(t.Context(), "fuse-t", manual("user:a")) }()
			for f.vm(t, "fuse-t").State != fleet.VMStateDestroying {
				_ = pause(t.Context(), time.Millisecond)
			}
			return run()
		})
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		wantConflict(t, err, nil, "fuse-t", "destroyed")
		if err := <-destroyed; err != nil {
			t.Error(err)
		}
		f.wantNothingLeft(t)
	})
}

func TestDestroyOfAQueuedCreate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, func(c *Config) { c.Limits.Creates = 1 })
		f.host.create = func(ctx context.Context, _ provider.CreateRequest) error { return pause(ctx, time.Hour) }
		f.host.destroy = func(context.Context, provider.Ref) error { return nil }
		for _, task := range []string{"a", "b"} {
			if _, err := f.svc.CreateAsync(t.Context(), CreateRequest{TaskID: task}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if err := f.svc.Destroy(t.Context(), "fuse-b", manual("user:a")); err != nil {
			t.Fatal(err)
		}
		if f.find("fuse-b") != nil {
			t.Error("the queued create kept its row")
		}
		if err := f.svc.Destroy(t.Context(), "fuse-a", manual("user:a")); err != nil {
			t.Fatal(err)
		}
		f.wantNothingLeft(t)
	})
}

// The guest's end is known and the store is away: nothing is forgotten.
func TestDestroyWaitsForTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		down := &outage{}
		f := setup(t, func(c *Config) { down.Store = c.Store; c.Store = down })
		vm := f.create(t, "t")
		f.host.destroy = func(context.Context, provider.Ref) error { down.set(true); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var pending *PendingError
		if err := f.svc.Destroy(ctx, vm.ID, manual("user:a")); !errors.As(err, &pending) {
			t.Fatalf("got %v", err)
		}
		down.set(false)
		f.settle(t)
		f.wantNothingLeft(t)
	})
}

func TestDestroyIntentNeedsTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		down := &outage{}
		f := setup(t, func(c *Config) { down.Store = c.Store; c.Store = down })
		vm := f.create(t, "t")
		down.set(true)
		if err := f.svc.Destroy(t.Context(), vm.ID, manual("user:a")); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("got %v", err)
		}
		if len(f.host.has()) != 1 {
			t.Error("the host was told of a destroy that is not durable")
		}
		down.set(false)
	})
}

// A row that names no host has nothing to clear; the loop relies on its end.
func TestDestroyOfARowWithoutAHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.update(t, func(tx *state.Tx) error {
			return tx.PutVM(fleet.VM{ID: "fuse-t", UID: "u1", Generation: 1, TaskID: "t", State: fleet.VMStateProvisioning})
		})
		if err := f.svc.DestroyLife(t.Context(), "fuse-t", "u1", manual("user:a")); err != nil {
			t.Fatal(err)
		}
		f.wantNothingLeft(t)
	})
}

func TestRecoveryEndsAnInterruptedCreate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.host.create = func(ctx context.Context, _ provider.CreateRequest) error { return pause(ctx, time.Hour) }
		vm, err := f.svc.CreateAsync(t.Context(), CreateRequest{TaskID: "t"})
		if err != nil {
			t.Fatal(err)
		}
		reason := fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleCreateInterrupted}
		if err := f.svc.DestroyLife(t.Context(), vm.ID, vm.UID, reason); err != nil {
			t.Fatal(err)
		}
		f.wantNothingLeft(t)
		if life := f.life(t, vm.ID); life.State != fleet.VMStateFailed || life.Reason != reason {
			t.Errorf("life %+v", life)
		}
	})
}

func TestComplete(t *testing.T) {
	for name, ref := range map[string]string{"by id": "fuse-t", "by task": "t"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := setup(t, nil)
				f.host.destroy = func(ctx context.Context, _ provider.Ref) error { return pause(ctx, time.Second) }
				f.create(t, "t")
				start := time.Now()
				vm, err := f.svc.Complete(t.Context(), ref, "user:a", "request r1")
				if err != nil || vm.State != fleet.VMStateDestroying || time.Since(start) != 0 {
					t.Fatalf("%+v, %v", vm, err)
				}
				f.wantTask(t, "t", fleet.TaskRunCompleted)
				if _, err := f.svc.Complete(t.Context(), ref, "user:a", "request r1"); err != nil {
					t.Errorf("again, while it ends: %v", err)
				}
				f.settle(t)
				f.wantNothingLeft(t)
				f.wantTask(t, "t", fleet.TaskRunCompleted)
				if life := f.life(t, "fuse-t"); life.Reason != (fleet.Reason{Actor: "user:a", Rule: fleet.RuleTaskCompleted, Evidence: "request r1"}) || life.State != fleet.VMStateDestroyed {
					t.Errorf("life %+v", life)
				}
				if _, err := f.svc.Complete(t.Context(), "fuse-t", "user:a", "request r1"); err != nil {
					t.Errorf("again, after the end: %v", err)
				}
			})
		})
	}
}

func TestCompleteRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		if _, err := f.svc.Complete(t.Context(), "fuse-x", "user:a", "request r1"); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("unknown: %v", err)
		}
		f.host.create = func(ctx context.Context, _ provider.CreateRequest) error { return pause(ctx, time.Hour) }
		if _, err := f.svc.CreateAsync(t.Context(), CreateRequest{TaskID: "t"}); err != nil {
			t.Fatal(err)
		}
		_, err := f.svc.Complete(t.Context(), "fuse-t", "user:a", "request r1")
		wantConflict(t, err, fleet.ErrVMNotRunning, "provisioning")
		if err := f.svc.Destroy(t.Context(), "fuse-t", manual("user:a")); err != nil {
			t.Fatal(err)
		}
		if _, err := f.svc.Complete(t.Context(), "fuse-t", "user:a", "request r1"); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("after another end: %v", err)
		}
	})
}

func TestDrain(t *testing.T) {
	for name, tt := range map[string]struct {
		drain  func(context.Context, string) (fleet.ExecStatus, error)
		code   fleet.Code
		result string
		event  string
	}{
		"well": {event: "vm.drained", result: "ok"},
		"command fails": {
			drain: func(context.Context, string) (fleet.ExecStatus, error) { return fleet.ExecStatus{ExitCode: 3}, nil },
			code:  fleet.CodeInternal, event: "vm.drain_failed",
			result: "environment fuse-t is draining, but stopping its services ended with exit code 3",
		},
		"host away": {
			drain: func(context.Context, string) (fleet.ExecStatus, error) {
				return fleet.ExecStatus{}, provider.ErrNoAnswer
			},
			code: fleet.CodeUnavailable, event: "vm.drain_failed",
			result: "environment fuse-t is draining, but its services may still run",
		},
		"too slow": {
			drain: func(ctx context.Context, _ string) (fleet.ExecStatus, error) {
				return fleet.ExecStatus{}, pause(ctx, time.Hour)
			},
			code: fleet.CodeDeadlineExceeded, event: "vm.drain_failed",
			result: "environment fuse-t is draining, but its services may still run",
		},
		"panics": {
			drain: func(context.Context, string) (fleet.ExecStatus, error) { panic("boom") },
			code:  fleet.CodeInternal, event: "vm.drain_failed", result: "internal error",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := setup(t, nil)
				f.create(t, "t")
				f.host.drain = tt.drain
				vm, err := f.svc.Drain(t.Context(), "fuse-t", "user:a")
				if fleet.CodeOf(err) != tt.code || vm.State != fleet.VMStateDraining || vm.DrainResult != tt.result {
					t.Fatalf("%+v, %v", vm, err)
				}
				events := f.events(t, vm.UID)
				if got := events[len(events)-1].Type; got != tt.event {
					t.Errorf("last event %s", got)
				}
				_, err = f.svc.Drain(t.Context(), "fuse-t", "user:a")
				wantConflict(t, err, fleet.ErrVMNotRunning, "draining")
				if err := f.svc.Destroy(t.Context(), "fuse-t", manual("user:a")); err != nil {
					t.Error(err)
				}
				f.wantNothingLeft(t)
			})
		})
	}
}

func TestDrainGoesOnWithoutItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.create(t, "t")
		f.host.drain = func(ctx context.Context, _ string) (fleet.ExecStatus, error) {
			return fleet.ExecStatus{}, pause(ctx, 30*time.Second)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.svc.Drain(ctx, "fuse-t", "user:a"); fleet.CodeOf(err) != fleet.CodeDeadlineExceeded {
			t.Fatalf("got %v", err)
		}
		if vm, ok, err := f.svc.Await(t.Context(), f.vm(t, "fuse-t").UID); err != nil || !ok || vm.DrainResult != "ok" {
			t.Errorf("%+v, %v, %v", vm, ok, err)
		}
	})
}

func TestDestroyWinsOverDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.create(t, "t")
		entered := make(chan struct{})
		f.host.drain = func(ctx context.Context, _ string) (fleet.ExecStatus, error) {
			close(entered)
			return fleet.ExecStatus{}, pause(ctx, time.Hour)
		}
		drained := make(chan error, 1)
		go func() {
			_, err := f.svc.Drain(t.Context(), "fuse-t", "user:a")
			drained <- err
		}()
		<-entered
		if err := f.svc.Destroy(t.Context(), "fuse-t", manual("user:b")); err != nil {
			t.Fatal(err)
		}
		wantConflict(t, <-drained, nil, "destroyed")
		f.wantNothingLeft(t)
	})
}

func TestCloseAbandonsWhatDoesNotEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.host.created = func(ctx context.Context, _ provider.CreateRequest) error { return pause(ctx, time.Hour) }
		result := make(chan error, 1)
		go func() {
			_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
			result <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := f.svc.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		if err := <-result; fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("the create got %v", err)
		}
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateProvisioning {
			t.Errorf("the row is %s: recovery ends it", vm.State)
		}
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "u"}); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("after close: %v", err)
		}
	})
}

// The process ends at each step in turn. What it left is what recovery finds:
// it ends the life, and nothing is left.
func TestStopAtEachStep(t *testing.T) {
	for _, name := range []string{StepCredentials, StepPlace, StepHostCreate, StepProfileFiles, StepCallerFiles, StepStartupScript, StepSettle} {
		for _, when := range []string{"before", "after"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := setup(t, nil)
					f.fail(t, name, func(run func() error) error {
						if when == "after" {
							defer f.svc.core.stop(errStopping)
							return run()
						}
						f.svc.core.stop(errStopping)
						return run()
					})
					vm, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Boot: fleet.BootOptions{StartupScript: "x", Files: map[string][]byte{"/a": nil}}})
					f.settle(t)
					row := f.find("fuse-t")
					if err == nil != (row != nil && row.State == fleet.VMStateRunning) {
						t.Fatalf("answered %v, %v; row %+v", vm, err, row)
					}
					if err == nil {
						return
					}
					if row == nil && len(f.host.has()) > 0 {
						t.Fatalf("the host has %v without a row", f.host.has())
					}
					f.restart(t)
					if row != nil {
						reason := fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleCreateInterrupted}
						if err := f.svc.DestroyLife(t.Context(), row.ID, row.UID, reason); err != nil {
							t.Fatal(err)
						}
					}
					f.wantNothingLeft(t)
				})
			})
		}
	}
}
