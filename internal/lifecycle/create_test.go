package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

func TestCreateRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		var seen []string
		vm, err := f.svc.Create(t.Context(), CreateRequest{
			TaskID: "A.b_c", Owner: "k1",
			Boot: fleet.BootOptions{
				Secrets:       map[string]string{"TOKEN": "correct horse"},
				Files:         map[string][]byte{"/srv/a": []byte("x")},
				StartupScript: "true",
				Manifest:      []byte(`{"version":"1","machine":{"env":{"T":{"secret":"TOKEN"}}}}`),
			},
			Progress: func(p Progress) {
				if !p.Done {
					seen = append(seen, strings.TrimSuffix(p.Step+"/"+p.Sub, "/"))
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if vm.ID != "fuse-A.b_c" || vm.State != fleet.VMStateRunning || vm.Owner != "k1" || vm.HostID != "local" || vm.URL == "" || vm.Placement == nil {
			t.Errorf("got %+v", vm)
		}
		want := []string{"credentials", "place", "host_create", "host_create/boot", "profile_files", "caller_files", "expose", "startup_script", "settle"}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Error("progress:", diff)
		}
		if diff := cmp.Diff(map[string]string{vm.ID: vm.UID}, f.host.has()); diff != "" {
			t.Error("host:", diff)
		}
		f.wantEvents(t, vm.UID, "vm.provisioning", "task.assigned", "vm.scheduled", "vm.running", "task.running", "secrets.deployed")
		f.wantTask(t, "A.b_c", fleet.TaskRunRunning)
		f.wantGuestFiles(t)
		stored := f.vm(t, vm.ID)
		if strings.Contains(string(mustJSON(t, stored)), "correct horse") {
			t.Error("a secret is stored in clear")
		}
		var steps []string
		for _, s := range stored.Boot.Steps {
			steps = append(steps, s.Step)
		}
		if diff := cmp.Diff(want[:2], steps[:2]); diff != "" || !slices.Contains(steps, "host_create/boot") || !slices.Contains(steps, "startup_script") {
			t.Errorf("steps %v", steps)
		}
	})
}

func (f *fixture) wantGuestFiles(t *testing.T) {
	t.Helper()
	for path, want := range map[string]fleet.GuestFile{
		fleet.FuseSecretsPath:        {Data: []byte(`{"TOKEN":"correct horse"}`), Mode: 0o600},
		fleet.GuestEgressJSONPath:    {Data: []byte(`{"mode":"direct"}`), Mode: 0o644},
		fleet.GuestEgressEnvPath:     {Data: []byte{}, Mode: 0o644},
		fleet.GuestEgressProfilePath: {Data: []byte(egressProfile), Mode: 0o644},
		uploads.GuestEnvPath:         {Data: []byte("T='correct horse'\n"), Mode: 0o600},
		"/srv/a":                     {Data: []byte("x"), Mode: 0o644},
	} {
		want.Path = path
		got, ok := f.host.file(path)
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("%s: %v", path, diff)
		}
	}
	if _, ok := f.host.file(fleet.GuestManifestPath); !ok {
		t.Error("no manifest")
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	doc, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestCreateMakesATaskID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		vm, err := f.svc.Create(t.Context(), CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(vm.TaskID, "task-") || fleet.ValidateTaskID(vm.TaskID) != nil || vm.ID != "fuse-"+vm.TaskID {
			t.Errorf("task %q, id %q", vm.TaskID, vm.ID)
		}
	})
}

// Each step fails in turn, in each way a step can fail, and nothing is left:
// no VM, no row, no reservation; the life says why.
func TestCreateFailsAtEachStep(t *testing.T) {
	boom := errors.New("boom correct horse")
	ways := map[string]func(run func() error) error{
		"error before": func(func() error) error { return boom },
		"error after": func(run func() error) error {
			if err := run(); err != nil {
				return err
			}
			return boom
		},
		"panic before": func(func() error) error { panic("boom") },
		"panic after": func(run func() error) error {
			if err := run(); err != nil {
				return err
			}
			panic("boom")
		},
		"refusal": func(func() error) error { return fleet.Errorf(fleet.CodeUnavailable, "disk full correct horse") },
	}
	steps := []string{StepCredentials, StepPlace, StepHostCreate, StepProfileFiles, StepCallerFiles, StepStartupScript, StepSettle}
	for _, step := range steps {
		for name, way := range ways {
			if step == StepSettle && (name == "error after" || name == "panic after") {
				continue // it has settled: there is nothing that could fail after it
			}
			t.Run(step+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := setup(t, nil)
					f.fail(t, step, way)
					_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Boot: fleet.BootOptions{
						Secrets: map[string]string{"a": "correct horse"}, StartupScript: "true", Files: map[string][]byte{"/a": nil},
					}})
					var fe *fleet.Error
					if !errors.As(err, &fe) {
						t.Fatalf("got %v", err)
					}
					if strings.Contains(fmt.Sprint(err, fe.Details), "correct horse") {
						t.Errorf("a secret shows in %v", err)
					}
					f.wantNothingLeft(t)
					if step == StepCredentials || step == StepPlace && strings.HasSuffix(name, "before") || step == StepPlace && name == "refusal" {
						return
					}
					life := f.life(t, "fuse-t")
					if life.State != fleet.VMStateFailed || life.Reason.Rule != fleet.RuleProvisionFailed || !strings.Contains(life.Reason.Evidence, step) || strings.Contains(life.Error, "correct") {
						t.Errorf("life %+v", life)
					}
					f.wantTask(t, "t", fleet.TaskRunFailed)
					f.wantTerminal(t, life.UID, fleet.VMStateFailed)
					if f.again(t); len(f.host.has()) != 1 {
						t.Error("a second create of the task did not work")
					}
				})
			})
		}
	}
}

func TestCreateLostAnswerLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.host.created = func(context.Context, provider.CreateRequest) error {
			return fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "host local did not answer")
		}
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		if fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Fatalf("got %v", err)
		}
		f.wantNothingLeft(t)
	})
}

func TestCreateHostNeverAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.host.created = func(ctx context.Context, _ provider.CreateRequest) error { <-ctx.Done(); return ctx.Err() }
		start := time.Now()
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		if fleet.CodeOf(err) != fleet.CodeDeadlineExceeded || time.Since(start) != 5*time.Minute {
			t.Fatalf("got %v after %v", err, time.Since(start))
		}
		f.wantNothingLeft(t)
	})
}

// The undo cannot reach the host either: the intent stays, and the destroy
// that the loop tries later ends the life with the reason of the failure.
func TestCreateUndoWaitsForTheHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		away := true
		f.host.created = func(context.Context, provider.CreateRequest) error { return provider.ErrNoAnswer }
		f.host.destroy = func(context.Context, provider.Ref) error {
			if away {
				return provider.ErrNoAnswer
			}
			return nil
		}
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"}); err == nil {
			t.Fatal("created")
		}
		vm := f.vm(t, "fuse-t")
		if vm.State != fleet.VMStateDestroying || vm.End == nil || vm.End.Rule != fleet.RuleProvisionFailed || len(f.host.has()) != 1 {
			t.Fatalf("row %+v, host %v", vm, f.host.has())
		}
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"}); fleet.CodeOf(err) != fleet.CodeConflict || !strings.Contains(err.Error(), "fuse-t") {
			t.Errorf("a duplicate got %v", err)
		}
		away = false
		if err := f.svc.DestroyLife(t.Context(), vm.ID, vm.UID, fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleManualDestroy}); err != nil {
			t.Fatal(err)
		}
		f.wantNothingLeft(t)
		if life := f.life(t, "fuse-t"); life.State != fleet.VMStateFailed || life.Reason.Rule != fleet.RuleProvisionFailed {
			t.Errorf("life %+v", life)
		}
	})
}

// The caller leaves; the work does not.
func TestCreateGoesOnWithoutItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.host.create = func(ctx context.Context, _ provider.CreateRequest) error { return pause(ctx, time.Minute) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := false
		_, err := f.svc.Create(ctx, CreateRequest{TaskID: "t", Progress: func(Progress) { late = late || ctx.Err() != nil }})
		if fleet.CodeOf(err) != fleet.CodeDeadlineExceeded || !strings.Contains(err.Error(), "fuse-t") {
			t.Fatalf("got %v", err)
		}
		vm, ok, err := f.svc.Await(t.Context(), f.vm(t, "fuse-t").UID)
		if err != nil || !ok || vm.State != fleet.VMStateRunning || late {
			t.Errorf("vm %+v, %v, %v; told after leaving: %v", vm, ok, err, late)
		}
	})
}

func TestCreateAsyncAnswersAfterTheClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.host.create = func(ctx context.Context, _ provider.CreateRequest) error { return pause(ctx, time.Minute) }
		start := time.Now()
		vm, err := f.svc.CreateAsync(t.Context(), CreateRequest{TaskID: "t"})
		if err != nil || vm.State != fleet.VMStateProvisioning || time.Since(start) != 0 {
			t.Fatalf("%+v, %v after %v", vm, err, time.Since(start))
		}
		synctest.Wait()
		if _, _, err := f.svc.Await(t.Context(), vm.UID); err != nil {
			t.Error(err)
		}
	})
}

func TestCreateDuplicates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.host.create = func(ctx context.Context, _ provider.CreateRequest) error { return pause(ctx, time.Second) }
		results := make(chan error)
		for range 64 {
			go func() {
				_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
				results <- err
			}()
		}
		ok := 0
		for range 64 {
			err := <-results
			switch {
			case err == nil:
				ok++
			case !errors.Is(err, fleet.ErrTaskAlreadyAssigned) || fleet.CodeOf(err) != fleet.CodeConflict || !strings.Contains(err.Error(), "fuse-t"):
				t.Errorf("got %v", err)
			}
		}
		if ok != 1 || len(f.host.has()) != 1 {
			t.Errorf("%d succeeded; host %v", ok, f.host.has())
		}
	})
}

// Whoever has an answer finds the place of what was answered free.
func TestAnAnswerFindsItsPlaceFree(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var svc *Service
		held := map[string]int{} // creates in flight as the end of one is logged, just before its answer
		log := logs(func(line string) {
			for _, end := range []string{"environment running", "create failed"} {
				if strings.Contains(line, end) {
					held[end] = svc.inFlight()
				}
			}
		})
		f := setup(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		svc = f.svc
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "a"}); err != nil {
			t.Fatal(err)
		}
		f.host.create = func(context.Context, provider.CreateRequest) error { return errors.New("no") }
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "b"}); err == nil {
			t.Fatal("made by a host that would not")
		}
		if diff := cmp.Diff(map[string]int{"environment running": 0, "create failed": 0}, held); diff != "" {
			t.Error(diff)
		}
	})
}

type logs func(line string)

func (l logs) Write(p []byte) (int, error) {
	l(string(p))
	return len(p), nil
}

func TestCreateQueueIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, func(c *Config) { c.Limits.Creates, c.Limits.Queue = 2, 3 })
		atOnce, most := 0, 0
		f.host.create = func(ctx context.Context, _ provider.CreateRequest) error {
			f.host.mu.Lock()
			atOnce++
			most = max(most, atOnce)
			f.host.mu.Unlock()
			err := pause(ctx, time.Second)
			f.host.mu.Lock()
			atOnce--
			f.host.mu.Unlock()
			return err
		}
		var refused error
		for i := range 6 {
			if _, err := f.svc.CreateAsync(t.Context(), CreateRequest{TaskID: strconv.Itoa(i)}); err != nil {
				if i != 5 {
					t.Errorf("create %d: %v", i, err)
				}
				refused = err
			}
		}
		var fe *fleet.Error
		if !errors.As(refused, &fe) || fe.Code != fleet.CodeUnavailable || fe.Details[fleet.DetailLimit] != "5" || fe.Details["retry_after"] == "" {
			t.Errorf("the sixth got %v", refused)
		}
		f.settle(t)
		if len(f.host.has()) != 5 || most != 2 || f.svc.inFlight() != 0 {
			t.Errorf("host %v; %d at once, %d in flight", f.host.has(), most, f.svc.inFlight())
		}
	})
}

func TestCreateNoCapacity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Spec: fleet.Spec{CPUs: 200}})
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Code != fleet.CodeUnavailable || !errors.Is(err, fleet.ErrNoCapacity) || fe.Details[fleet.DetailRemedy] == "" {
			t.Errorf("got %v", err)
		}
		f.wantNothingLeft(t)
		if _, ok := f.task("t"); ok {
			t.Error("a task was left")
		}
	})
}

func TestStartupScript(t *testing.T) {
	const secret = "correct horse"
	status := func(code int, timedOut bool, output string) func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error) {
		return func(_ context.Context, spec fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error) {
			if spec.Argv[1] == "-c" {
				return fleet.ExecStatus{}, nil
			}
			fmt.Fprint(io.Stdout, output)
			return fleet.ExecStatus{ExitCode: code, TimedOut: timedOut}, nil
		}
	}
	for name, tt := range map[string]struct {
		exec     func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error)
		code     fleet.Code
		is       error
		details  map[string]string
		exitCode int
	}{
		"fails": {
			exec: status(3, false, "oops "+secret), code: fleet.CodeInvalidArgument,
			details: map[string]string{"exit_code": "3", "output": "oops [REDACTED]"}, exitCode: 3,
		},
		"too slow": {
			exec: status(124, true, "zzz"), code: fleet.CodeInvalidArgument, is: fleet.ErrStartupScriptTimeout,
			details: map[string]string{"output": "zzz", fleet.DetailLimit: "30s"}, exitCode: 124,
		},
		"last command missing": {
			exec: status(127, false, "sh: x: not found"), code: fleet.CodeInvalidArgument,
			details: map[string]string{"exit_code": "127"}, exitCode: 127,
		},
		"no shell": {
			exec: func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error) {
				return fleet.ExecStatus{ExitCode: 127}, nil
			},
			code: fleet.CodeInvalidArgument, details: map[string]string{fleet.DetailReason: "no_shell"}, exitCode: 127,
		},
		"guest gone": {
			exec: func(_ context.Context, _ fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error) {
				fmt.Fprint(io.Stderr, "begun")
				return fleet.ExecStatus{}, fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "the guest does not answer")
			},
			code: fleet.CodeUnavailable, exitCode: -1,
		},
		"host hangs": {
			exec: func(ctx context.Context, _ fleet.ExecSpec, _ fleet.Stdio) (fleet.ExecStatus, error) {
				<-ctx.Done()
				return fleet.ExecStatus{}, ctx.Err()
			},
			code: fleet.CodeDeadlineExceeded, exitCode: -1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := setup(t, nil)
				f.host.exec = tt.exec
				_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Boot: fleet.BootOptions{
					StartupScript: "x", Secrets: map[string]string{"s": secret},
				}})
				var fe *fleet.Error
				if !errors.As(err, &fe) || fe.Code != tt.code || tt.is != nil && !errors.Is(err, tt.is) {
					t.Fatalf("got %v", err)
				}
				for k, v := range tt.details {
					if fe.Details[k] != v {
						t.Errorf("detail %s is %q, want %q", k, fe.Details[k], v)
					}
				}
				f.wantNothingLeft(t)
				log, ok, err := f.store.StartupLog(t.Context(), f.life(t, "fuse-t").UID)
				if err != nil || !ok || log.ExitCode != tt.exitCode || strings.Contains(string(log.Output), secret) {
					t.Errorf("startup log %+v, %v, %v", log, ok, err)
				}
			})
		})
	}
}

func TestStartupScriptRunsInTheWorkspace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		var got fleet.ExecSpec
		f.host.exec = func(_ context.Context, spec fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error) {
			got = spec
			fmt.Fprint(io.Stdout, "out")
			fmt.Fprint(io.Stderr, "err")
			return fleet.ExecStatus{}, nil
		}
		vm, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Boot: fleet.BootOptions{
			StartupScript: "echo hi", StartupScriptTimeout: 40 * time.Second,
			Manifest: []byte(`{"version":"1","machine":{"workspace":"/it's"}}`),
		}})
		if err != nil {
			t.Fatal(err)
		}
		want := fleet.ExecSpec{Argv: []string{"sh", "-lc", `mkdir -p '/it'\''s' && cd '/it'\''s' || exit 1; echo hi`}, Timeout: 40 * time.Second}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		log, ok, err := f.store.StartupLog(t.Context(), vm.UID)
		if err != nil || !ok || string(log.Output) != "outerr" || log.ExitCode != 0 {
			t.Errorf("startup log %+v, %v, %v", log, ok, err)
		}
	})
}

// The store is away when the create wants to settle: the caller hears it at
// once, and the VM is undone as soon as the store is back.
func TestCreateCannotBeSettled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		down := &outage{}
		f := setup(t, func(c *Config) { down.Store = c.Store; c.Store = down })
		f.host.created = func(context.Context, provider.CreateRequest) error { down.set(true); return nil }
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		if !errors.Is(err, fleet.ErrStoreUnavailable) || fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Fatalf("got %v", err)
		}
		timer := time.NewTimer(time.Minute)
		<-timer.C
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateProvisioning || len(f.host.has()) != 1 {
			t.Fatalf("row %+v, host %v", vm, f.host.has())
		}
		down.set(false)
		f.settle(t)
		f.wantNothingLeft(t)
		if life := f.life(t, "fuse-t"); life.State != fleet.VMStateFailed {
			t.Errorf("life %+v", life)
		}
	})
}

// A claim that cannot be journaled is refused at once: there is nothing to undo
// for which the caller would have to wait until the store is back.
func TestCreateCannotBeClaimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		down := &outage{}
		f := setup(t, func(c *Config) { down.Store = c.Store; c.Store = down })
		down.set(true)
		start := time.Now()
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		if !errors.Is(err, fleet.ErrStoreUnavailable) || time.Since(start) != 0 {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		down.set(false)
		f.wantNothingLeft(t)
		f.again(t)
	})
}

// Leadership ends while a create wants to settle: nothing waits for a store that
// will not come back, and nothing is done at the host without it.
func TestCreateWhenLeadershipEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		down := &outage{forGood: true}
		f := setup(t, func(c *Config) { down.Store = c.Store; c.Store = down })
		f.host.created = func(context.Context, provider.CreateRequest) error { down.set(true); return nil }
		start := time.Now()
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		if !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("got %v", err)
		}
		if err := f.svc.Close(t.Context()); err != nil || time.Since(start) != 0 {
			t.Errorf("close: %v after %v", err, time.Since(start))
		}
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateProvisioning || len(f.host.has()) != 1 {
			t.Errorf("row %+v, host %v", vm, f.host.has())
		}
	})
}

func TestCreateIdempotencyRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		req := CreateRequest{TaskID: "t", Idempotency: &state.Idempotency{Owner: "o", Key: "k", BodyHash: "h", Method: "POST", Path: "/v1/environments"}}
		f.host.create = func(context.Context, provider.CreateRequest) error {
			if rec, ok := f.record("o", "k"); !ok || rec.Done || rec.ResourceID != f.vm(t, "fuse-t").UID {
				t.Errorf("record at the claim: %+v, %v", rec, ok)
			}
			return errors.New("boom")
		}
		if _, err := f.svc.Create(t.Context(), req); err == nil {
			t.Fatal("created")
		}
		if rec, ok := f.record("o", "k"); ok {
			t.Errorf("record of a failed create: %+v", rec)
		}
		f.host.create = nil
		vm, err := f.svc.Create(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if rec, ok := f.record("o", "k"); !ok || !rec.Done || rec.ResourceID != vm.UID || rec.Status != 201 || rec.BodyHash != "h" {
			t.Errorf("record of a create: %+v, %v", rec, ok)
		}
	})
}

func TestCreateAsksForAdmission(t *testing.T) {
	bubble(t, func(t *testing.T) {
		no := fleet.Errorf(fleet.CodeForbidden, "no")
		f := setup(t, func(c *Config) {
			c.Admit = func(_ context.Context, actor, verb string, params map[string]string) error {
				if actor == "user:x" && verb == "create" && params["task_id"] == "t" {
					return no
				}
				return nil
			}
		})
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Actor: "user:x"}); !errors.Is(err, no) {
			t.Errorf("got %v", err)
		}
		f.wantNothingLeft(t)
	})
}
