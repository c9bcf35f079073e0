package guestops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// guest is an environment that runs what it is told.
type guest struct {
	provider.Environment
	run func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error)
}

func (g *guest) ExecStream(ctx context.Context, spec fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error) {
	return g.run(ctx, spec, io)
}

// link is the provider of the one host; it opens the guest and notes for whom.
type link struct {
	provider.Provider
	guest *guest
	mu    sync.Mutex
	ref   provider.Ref
}

func (l *link) Open(ref provider.Ref) provider.Environment {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ref = ref
	return l.guest
}

func (l *link) provider(string) (provider.Provider, error) { return l, nil }

type providerFunc func(string) (provider.Provider, error)

func (f providerFunc) Provider(id string) (provider.Provider, error) { return f(id) }

type fixture struct {
	svc   *Service
	store *state.Store
	link  *link
}

func setup(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{store: store, link: &link{guest: &guest{run: echo}}}
	cfg := Config{Store: store, Providers: providerFunc(f.link.provider)}
	if change != nil {
		change(&cfg)
	}
	if f.svc, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	f.put(t, "fuse-t", fleet.VMStateProvisioning, fleet.VMStateRunning)
	return f
}

// put moves an environment through the given states.
func (f *fixture) put(t *testing.T, id string, states ...fleet.VMState) {
	t.Helper()
	for _, s := range states {
		if _, err := f.store.Update(t.Context(), func(tx *state.Tx) error {
			if _, ok := tx.Hosts().Get("local"); !ok {
				if err := tx.PutHost(fleet.Host{ID: "local", Capacity: fleet.HostCapacity{CPUs: 9, RamMB: 9000, StorageGB: 9, VMCount: 9}}); err != nil {
					return err
				}
			}
			return tx.PutVM(fleet.VM{ID: id, UID: "u-" + id, Generation: 3, State: s, TaskID: id, HostID: "local", Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1}})
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// echo writes its argv to stdout and its stdin to stderr.
func echo(_ context.Context, spec fleet.ExecSpec, s fleet.Stdio) (fleet.ExecStatus, error) {
	fmt.Fprintf(s.Stdout, "%q", spec.Argv)
	if s.Stdin != nil {
		if _, err := io.Copy(s.Stderr, s.Stdin); err != nil {
			return fleet.ExecStatus{}, err
		}
	}
	return fleet.ExecStatus{ExitCode: 3}, nil
}

func TestExec(t *testing.T) {
	f := setup(t, nil)
	var got fleet.ExecSpec
	f.link.guest.run = func(ctx context.Context, spec fleet.ExecSpec, s fleet.Stdio) (fleet.ExecStatus, error) {
		got = spec
		return echo(ctx, spec, s)
	}
	res, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{
		Shell: "echo $A", Env: map[string]string{"A": "b"}, Cwd: "/w", User: "1000:1000", Stdin: []byte("in\x00\xff"), Timeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := provider.ExecResult{ExecStatus: fleet.ExecStatus{ExitCode: 3}, Stdout: []byte(`["sh" "-lc" "echo $A"]`), Stderr: []byte("in\x00\xff")}
	if diff := cmp.Diff(want, res); diff != "" {
		t.Error(diff)
	}
	spec := fleet.ExecSpec{Argv: []string{"sh", "-lc", "echo $A"}, Env: map[string]string{"A": "b"}, Cwd: "/w", User: "1000:1000", Timeout: time.Second}
	if diff := cmp.Diff(spec, got); diff != "" {
		t.Error(diff)
	}
	if ref := f.link.ref; ref.ID != "fuse-t" || ref.UID != "u-fuse-t" || ref.Generation != 3 || ref.OpID == "" {
		t.Errorf("ref %+v", ref)
	}
}

func TestExecTimeouts(t *testing.T) {
	f := setup(t, nil)
	for asked, want := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Second, time.Hour: 10 * time.Minute} {
		var got time.Duration
		f.link.guest.run = func(_ context.Context, spec fleet.ExecSpec, _ fleet.Stdio) (fleet.ExecStatus, error) {
			got = spec.Timeout
			return fleet.ExecStatus{ExitCode: 124, TimedOut: true}, nil
		}
		res, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}, Timeout: asked})
		if err != nil || !res.TimedOut || res.ExitCode != 124 || got != want {
			t.Errorf("%v: %+v, %v; timeout %v, want %v", asked, res, err, got, want)
		}
	}
}

func TestExecRefuses(t *testing.T) {
	long := strings.Repeat("a", maxArgument+1)
	for name, tt := range map[string]struct {
		req   ExecRequest
		scope string
	}{
		"nothing":         {ExecRequest{}, "cmd"},
		"both":            {ExecRequest{Cmd: []string{"a"}, Shell: "a"}, "cmd"},
		"empty program":   {ExecRequest{Cmd: []string{""}}, "cmd"},
		"NUL":             {ExecRequest{Cmd: []string{"a", "b\x00"}}, "cmd"},
		"long word":       {ExecRequest{Cmd: []string{"a", long}}, "cmd"},
		"long shell":      {ExecRequest{Shell: long}, "cmd"},
		"many words":      {ExecRequest{Cmd: repeat(maxArgs+1, "a")}, "cmd"},
		"long in all":     {ExecRequest{Cmd: repeat(10, long[1:])}, "cmd"},
		"env name":        {ExecRequest{Cmd: []string{"a"}, Env: map[string]string{"A=B": ""}}, "env"},
		"env value":       {ExecRequest{Cmd: []string{"a"}, Env: map[string]string{"A": "\x00"}}, "env"},
		"relative cwd":    {ExecRequest{Cmd: []string{"a"}, Cwd: "a"}, "cwd"},
		"user":            {ExecRequest{Cmd: []string{"a"}, User: "a b"}, "user"},
		"stdin":           {ExecRequest{Cmd: []string{"a"}, Stdin: make([]byte, maxStdin+1)}, "stdin"},
		"negative time":   {ExecRequest{Cmd: []string{"a"}, Timeout: -1}, "timeout_ms"},
		"many variables":  {ExecRequest{Cmd: []string{"a"}, Env: manyVars()}, "env"},
		"user with group": {ExecRequest{Cmd: []string{"a"}, User: "a:b:c"}, "user"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, nil)
			_, err := f.svc.Exec(t.Context(), "fuse-t", tt.req)
			var fe *fleet.Error
			if !errors.As(err, &fe) || fe.Code != fleet.CodeInvalidArgument || fe.Details[fleet.DetailScope] != tt.scope || fe.Details[fleet.DetailLimit] == "" || fe.Details[fleet.DetailRemedy] == "" {
				t.Errorf("got %v %+v", err, fe)
			}
			if _, err := f.svc.ExecStream(t.Context(), "fuse-t", tt.req, fleet.Stdio{}); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
				t.Errorf("streamed: %v", err)
			}
		})
	}
}

func repeat(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func manyVars() map[string]string {
	m := map[string]string{}
	for i := range maxEnv + 1 {
		m[fmt.Sprintf("A%d", i)] = ""
	}
	return m
}

func TestExecNeedsARunningEnvironment(t *testing.T) {
	f := setup(t, nil)
	f.put(t, "fuse-p", fleet.VMStateProvisioning)
	f.put(t, "fuse-d", fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDraining)
	f.put(t, "fuse-x", fleet.VMStateProvisioning, fleet.VMStateDestroying)
	for id, want := range map[string]fleet.Code{"fuse-p": fleet.CodeConflict, "fuse-d": fleet.CodeConflict, "fuse-x": fleet.CodeConflict, "fuse-no": fleet.CodeNotFound} {
		_, err := f.svc.Exec(t.Context(), id, ExecRequest{Cmd: []string{"a"}})
		sentinel := fleet.ErrVMNotRunning
		if want == fleet.CodeNotFound {
			sentinel = fleet.ErrVMNotFound
		}
		if fleet.CodeOf(err) != want || !errors.Is(err, sentinel) || !strings.Contains(err.Error(), id) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// What a drained environment has left can be read, and nothing else done there.
func TestADrainedEnvironmentIsRead(t *testing.T) {
	f := setup(t, nil)
	f.put(t, "fuse-d", fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDraining)
	for verb, want := range map[string]fleet.Code{
		"processes.read": fleet.CodeUnimplemented, // admitted: the rig's host reaches no guests
		"files.write":    fleet.CodeConflict, "attach": fleet.CodeConflict, "exec": fleet.CodeConflict,
	} {
		if _, err := f.svc.Open(t.Context(), "fuse-d", Use{Verb: verb}); fleet.CodeOf(err) != want {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// What the transport does is an error, never an exit code.
func TestExecTransportFailures(t *testing.T) {
	stale := fleet.Errorf(fleet.CodeConflict, "old: %w", fleet.ErrStaleTerm)
	for name, tt := range map[string]struct {
		err  error
		want fleet.Code
		open bool // the command may have run
	}{
		"plain":               {errors.New("EOF at 10.0.0.1"), fleet.CodeUnavailable, true},
		"the host's own":      {fleet.Errorf(fleet.CodeInternal, "internal error of the host agent"), fleet.CodeUnavailable, true},
		"no answer":           {fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "the host did not answer"), fleet.CodeUnavailable, true},
		"refusal":             {fleet.Errorf(fleet.CodeInvalidArgument, "no such user"), fleet.CodeInvalidArgument, false},
		"a host that is full": {fleet.Errorf(fleet.CodeUnavailable, "too many commands"), fleet.CodeUnavailable, false},
		"stale term":          {stale, fleet.CodeUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, nil)
			f.link.guest.run = func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error) {
				return fleet.ExecStatus{ExitCode: 1}, tt.err
			}
			res, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}})
			var fe *fleet.Error
			if !errors.As(err, &fe) || fe.Code != tt.want || !errors.Is(err, tt.err) || errors.Is(err, provider.ErrNoAnswer) != tt.open ||
				strings.Contains(fe.Message, "10.0.0.1") || res.ExitCode != 0 {
				t.Errorf("got %+v, %v", res, err)
			}
		})
	}
}

func TestExecHostNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, nil)
		f.link.guest.run = func(ctx context.Context, _ fleet.ExecSpec, _ fleet.Stdio) (fleet.ExecStatus, error) {
			<-ctx.Done()
			return fleet.ExecStatus{}, ctx.Err()
		}
		start := time.Now()
		_, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}, Timeout: time.Second})
		if fleet.CodeOf(err) != fleet.CodeDeadlineExceeded || time.Since(start) != time.Second+grace {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestExecOfAnEnvironmentThatEnds(t *testing.T) {
	f := setup(t, nil)
	f.link.guest.run = func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error) {
		f.put(t, "fuse-t", fleet.VMStateDestroying)
		return fleet.ExecStatus{}, fleet.Errorf(fleet.CodeConflict, "%w: it is being destroyed", fleet.ErrVMNotRunning)
	}
	_, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}})
	if fleet.CodeOf(err) != fleet.CodeConflict || !errors.Is(err, provider.ErrNoAnswer) || !strings.Contains(err.Error(), "ended while") {
		t.Errorf("got %v", err)
	}
}

func TestExecOutputIsBounded(t *testing.T) {
	f := setup(t, nil)
	f.link.guest.run = func(_ context.Context, _ fleet.ExecSpec, s fleet.Stdio) (fleet.ExecStatus, error) {
		for range 9 {
			if n, err := s.Stdout.Write(bytes.Repeat([]byte("x"), 1<<20)); n != 1<<20 || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
		}
		fmt.Fprint(s.Stderr, "e")
		return fleet.ExecStatus{}, nil
	}
	res, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}})
	if err != nil || !res.Truncated || len(res.Stdout) != outputLimit || string(res.Stderr) != "e" {
		t.Errorf("%d bytes, truncated %v, %v", len(res.Stdout), res.Truncated, err)
	}
}

// Large outputs at once share a budget; each keeps its beginning without a gap,
// and what was taken comes back.
func TestExecOutputSharesABudget(t *testing.T) {
	f := setup(t, nil)
	const total = 1 << 20
	f.svc.output.left = total
	want := make([]byte, 3<<20)
	for i := range want {
		want[i] = byte(i / 1000)
	}
	f.link.guest.run = func(_ context.Context, _ fleet.ExecSpec, s fleet.Stdio) (fleet.ExecStatus, error) {
		for chunk := range slices.Chunk(want, 10_000) {
			if n, err := s.Stdout.Write(chunk); n != len(chunk) || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
		}
		if n, err := s.Stderr.Write(want); n != len(want) || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		f.svc.output.give(total) // room again: what follows a gap stays away
		defer f.svc.output.take(total)
		return fleet.ExecStatus{}, errors.Join(write(s.Stdout, want[:1]), write(s.Stderr, want[:1]))
	}
	for range 2 {
		res, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}})
		if err != nil || !res.Truncated {
			t.Fatalf("truncated %v, %v", res.Truncated, err)
		}
		if !bytes.HasPrefix(want, res.Stdout) || !bytes.HasPrefix(want, res.Stderr) {
			t.Error("the output has a gap")
		}
		if held := cap(res.Stdout) + cap(res.Stderr); held > total+2*outputFree || len(res.Stdout) < total/2 || len(res.Stderr) < outputFree {
			t.Errorf("%d and %d bytes in %d", len(res.Stdout), len(res.Stderr), held)
		}
		if f.svc.output.left != total {
			t.Errorf("%d bytes are left of %d", f.svc.output.left, total)
		}
	}
}

func write(w io.Writer, p []byte) error {
	_, err := w.Write(p)
	return err
}

func TestExecStream(t *testing.T) {
	f := setup(t, nil)
	var out, errs strings.Builder
	status, err := f.svc.ExecStream(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"cat"}}, fleet.Stdio{Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs})
	if err != nil || status.ExitCode != 3 || out.String() != `["cat"]` || errs.String() != "in" {
		t.Errorf("%+v %q %q %v", status, out.String(), errs.String(), err)
	}
}

func TestExecAsksForAdmission(t *testing.T) {
	no := fleet.Errorf(fleet.CodeForbidden, "no")
	f := setup(t, func(c *Config) {
		c.Admit = func(_ context.Context, actor, verb string, params map[string]string) error {
			if actor != "user:x" || verb != "exec" || params["id"] != "fuse-t" || params["command"] != "rm" {
				t.Errorf("asked %s %s %v", actor, verb, params)
			}
			return no
		}
	})
	f.link.guest.run = func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error) {
		t.Error("it ran")
		return fleet.ExecStatus{}, nil
	}
	if _, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Actor: "user:x", Cmd: []string{"rm"}}); !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
}

func TestExecIsBoundedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, func(c *Config) { c.Concurrent = 2 })
		release := make(chan struct{})
		f.link.guest.run = func(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error) {
			<-release
			return fleet.ExecStatus{}, nil
		}
		if _, used := f.svc.Activity("u-fuse-t"); used {
			t.Error("used before its first command")
		}
		ended := make(chan error)
		for range 2 {
			go func() {
				_, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}})
				ended <- err
			}()
		}
		synctest.Wait()
		began := time.Now()
		_, err := f.svc.Exec(t.Context(), "fuse-t", ExecRequest{Cmd: []string{"a"}})
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Code != fleet.CodeUnavailable || fe.Details["retry_after"] == "" || fe.Details[fleet.DetailLimit] != "2" {
			t.Errorf("a third at once: %v", err)
		}
		if a, _ := f.svc.Activity("u-fuse-t"); a.Open != 2 || !a.Last.Equal(began) {
			t.Errorf("while two run: %+v", a)
		}
		f.svc.Forget(func(string) bool { return false })
		<-time.NewTimer(time.Minute).C
		close(release)
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if a, ok := f.svc.Activity("u-fuse-t"); !ok || a.Open != 0 || !a.Last.Equal(began.Add(time.Minute)) {
			t.Errorf("afterwards: %+v", a)
		}
		f.svc.Forget(func(string) bool { return false })
		if _, ok := f.svc.Activity("u-fuse-t"); ok {
			t.Error("an ended life is remembered")
		}
	})
}

// A session counts while it is open, however quiet, and ends once.
func TestAnOpenSessionIsAUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, nil)
		end, err := f.svc.Begin("u")
		if err != nil {
			t.Fatal(err)
		}
		<-time.NewTimer(time.Hour).C
		if a, _ := f.svc.Activity("u"); a.Open != 1 {
			t.Errorf("while it is open: %+v", a)
		}
		closed := time.Now()
		end()
		<-time.NewTimer(time.Minute).C
		end()
		if a, _ := f.svc.Activity("u"); a.Open != 0 || !a.Last.Equal(closed) {
			t.Errorf("afterwards: %+v", a)
		}
	})
}

// Nothing begins in a life that is shut, and what has begun goes on.
func TestNoUseBeginsWhileShut(t *testing.T) {
	f := setup(t, nil)
	end, err := f.svc.Begin("u")
	if err != nil {
		t.Fatal(err)
	}
	open := f.svc.Shut("u")
	if _, err := f.svc.Begin("u"); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("shut: %v", err)
	}
	if a, _ := f.svc.Activity("u"); a.Open != 1 {
		t.Errorf("while it is shut: %+v", a)
	}
	if _, err := f.svc.Begin("v"); err != nil {
		t.Errorf("another life: %v", err)
	}
	end()
	open()
	if end, err = f.svc.Begin("u"); err != nil {
		t.Errorf("open again: %v", err)
	}
	end()
}
