// Package providertest is the suite that every provider passes: the fake, and
// the remote one over a host agent with the sim or the qemu driver. It says
// what the port's contract means; tests of a control plane may then rely on
// the fake.
package providertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// Fleet is a control plane's side of the fence; tests move it as they like.
type Fleet struct {
	mu  sync.Mutex
	now provider.Fence
}

// NewFleet makes a fleet that nobody else knows, in its first term.
func NewFleet() *Fleet {
	return &Fleet{now: provider.Fence{
		FleetID: ulid.Make().String(), Term: 1, ClaimToken: rand.Text(), Fingerprint: "store-1",
	}}
}

// Fence returns the fence as it is now.
func (f *Fleet) Fence() (provider.Fence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, nil
}

// At returns the same fleet at another term with a token of its own.
func (f *Fleet) At(term int64) *Fleet {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.now
	next.Term, next.ClaimToken = term, rand.Text()
	return &Fleet{now: next}
}

// Harness is one host under test.
type Harness struct {
	// Connect returns a provider of the host for a fleet; the harness closes
	// it when the test ends.
	Connect func(f provider.Fencer) provider.Provider
	// Spec is a small machine that the host can boot.
	Spec fleet.Spec
	// LoseAnswer makes the next change through p take effect and its answer
	// get lost.
	LoseAnswer func(p provider.Provider)
	// SlowCreate makes creates take longer than a test waits, until undone.
	// It is nil where they take seconds anyway.
	SlowCreate func() (undo func())
	// Patience bounds one test; zero takes a minute.
	Patience time.Duration
}

type suite struct {
	Harness
	t     *testing.T
	ctx   context.Context //nolint:containedctx // of the one test
	fleet *Fleet
	p     provider.Provider
}

// Run holds a provider to the contract. open returns a host that is ready and
// without VMs of the suite's fleets; it is called once per group of tests.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"Lifecycle", testLifecycle},
		{"OneVM", testOneVM},
		{"Identity", testIdentity},
		{"LostAnswers", testLostAnswers},
		{"DestroyDuringCreate", testDestroyDuringCreate},
		{"CreateGoesOn", testCreateGoesOn},
		{"Refusals", testRefusals},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &suite{Harness: open(t), t: t, fleet: NewFleet()}
			if s.Patience == 0 {
				s.Patience = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
			defer cancel()
			s.ctx, s.p = ctx, s.Connect(s.fleet)
			test.run(s)
			s.nothingLeft()
		})
	}
}

// ref names a new life of a new VM.
func newRef(id string) provider.Ref {
	return provider.Ref{ID: id, UID: ulid.Make().String(), Generation: 1, OpID: ulid.Make().String()}
}

func again(r provider.Ref) provider.Ref {
	r.OpID = ulid.Make().String()
	return r
}

func (s *suite) request(ref provider.Ref) provider.CreateRequest {
	return provider.CreateRequest{Ref: ref, Spec: s.Spec, Credentials: provider.Credentials{
		Hostname: "suite", MachineID: strings.Repeat("ab", 16), Token: strings.Repeat("cd", 32),
	}}
}

func (s *suite) create(ref provider.Ref) provider.Environment {
	s.t.Helper()
	created, err := s.p.Create(s.ctx, s.request(ref))
	if err != nil {
		s.t.Fatalf("create %s: %v", ref.ID, err)
	}
	return created.Environment
}

func (s *suite) destroy(ref provider.Ref) {
	s.t.Helper()
	if err := s.p.Destroy(s.ctx, again(ref)); err != nil {
		s.t.Fatalf("destroy %s: %v", ref.ID, err)
	}
}

// listed returns the uids that a provider sees.
func (s *suite) listed(p provider.Provider) []string {
	s.t.Helper()
	l, err := p.List(s.ctx)
	if err != nil {
		s.t.Fatalf("list: %v", err)
	}
	if !l.Complete {
		s.t.Fatalf("listing is not complete: %s", l.Reason)
	}
	var uids []string
	for _, v := range l.VMs {
		uids = append(uids, v.UID)
	}
	return uids
}

func (s *suite) nothingLeft() {
	s.t.Helper()
	if uids := s.listed(s.p); len(uids) > 0 {
		s.t.Errorf("left on the host: %v", uids)
	}
}

func (s *suite) wantCode(what string, err error, code fleet.Code) {
	s.t.Helper()
	if fleet.CodeOf(err) != code {
		s.t.Errorf("%s: %v (%s), want code %s", what, err, fleet.CodeOf(err), code)
	}
}

func (s *suite) wantStale(what string, err error) {
	s.t.Helper()
	if !errors.Is(err, fleet.ErrStaleTerm) || fleet.CodeOf(err) != fleet.CodeConflict {
		s.t.Errorf("%s: %v (%s), want a stale term", what, err, fleet.CodeOf(err))
	}
}

func (s *suite) wantEcho(env provider.Environment) {
	s.t.Helper()
	res, err := provider.Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"echo", "here"}}, 1<<10)
	if err != nil || res.ExitCode != 0 || string(res.Stdout) != "here\n" {
		s.t.Errorf("echo in %s: %+v, %v", env.Name(), res, err)
	}
}

func testLifecycle(s *suite) {
	ref := newRef("suite-Life.1_a")
	var steps []string
	req := s.request(ref)
	req.Progress = func(step string) { steps = append(steps, step) }
	created, err := s.p.Create(s.ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	var timed []string
	for _, st := range created.Boot.Steps {
		timed = append(timed, st.Step)
	}
	if len(steps) == 0 || !slices.Equal(steps, timed) {
		s.t.Errorf("steps reported %v, timed %v", steps, timed)
	}
	if created.Environment.Name() != ref.ID || created.Boot.Mode != fleet.BootCold {
		s.t.Errorf("created %q, boot mode %q", created.Environment.Name(), created.Boot.Mode)
	}
	got, err := s.p.Get(s.ctx, ref)
	if err != nil {
		s.t.Fatal(err)
	}
	want := fleet.ObservedVM{ID: ref.ID, UID: ref.UID, Generation: 1, Running: true}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("get (-want +got):\n%s", diff)
	}
	l, err := s.p.List(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.ObservedVM{want}, l.VMs); diff != "" {
		s.t.Errorf("list (-want +got):\n%s", diff)
	}
	if l.Facts.RegistryID == "" {
		s.t.Error("the listing does not say which registry it comes from")
	}
	s.wantEcho(created.Environment)
	s.destroy(ref)
	if _, err := s.p.Get(s.ctx, ref); !errors.Is(err, fleet.ErrVMNotFound) {
		s.t.Errorf("get after the end: %v", err)
	}
	s.destroy(ref)
	_, err = provider.Exec(s.ctx, created.Environment, fleet.ExecSpec{Argv: []string{"true"}}, 1)
	s.wantCode("exec after the end", err, fleet.CodeNotFound)
}

// testOneVM shares one VM among the tests that leave it as it is.
func testOneVM(s *suite) {
	ref := newRef("suite-one")
	env := s.create(ref)
	for _, test := range []struct {
		name string
		run  func(*suite, provider.Ref, provider.Environment)
	}{
		{"ExecStatus", testExecStatus},
		{"ExecBytes", testExecBytes},
		{"ExecEnds", testExecEnds},
		{"Upload", testUpload},
		{"Foreign", testForeign},
		{"RepeatCreate", testRepeatCreate},
		{"OtherLife", testOtherLife},
		{"StaleGeneration", testStaleGeneration},
		{"StaleTerm", testStaleTerm},
		{"Drain", testDrain},
	} {
		s.t.Run(test.name, func(t *testing.T) {
			inner := *s
			inner.t = t
			test.run(&inner, ref, env)
			if got := inner.listed(inner.p); !slices.Equal(got, []string{ref.UID}) {
				t.Errorf("afterwards the host lists %v", got)
			}
			s.p = inner.p
			env = s.p.Open(ref)
			inner.wantEcho(env)
		})
	}
	s.destroy(ref)
}

func testExecStatus(s *suite, _ provider.Ref, env provider.Environment) {
	for _, test := range []struct {
		name   string
		spec   fleet.ExecSpec
		status fleet.ExecStatus
		stdout string
	}{
		{"true", fleet.ExecSpec{Argv: []string{"true"}}, fleet.ExecStatus{}, ""},
		{"false", fleet.ExecSpec{Argv: []string{"false"}}, fleet.ExecStatus{ExitCode: 1}, ""},
		{"exit code", fleet.ExecSpec{Argv: []string{"sh", "-lc", "exit 7"}}, fleet.ExecStatus{ExitCode: 7}, ""},
		{"not found", fleet.ExecSpec{Argv: []string{"no-such-command"}}, fleet.ExecStatus{ExitCode: 127}, ""},
		{"env", fleet.ExecSpec{Argv: []string{"sh", "-c", `echo "$GREETING"`}, Env: map[string]string{"GREETING": "a  b"}}, fleet.ExecStatus{}, "a  b\n"},
		{"cwd", fleet.ExecSpec{Argv: []string{"pwd"}, Cwd: "/tmp"}, fleet.ExecStatus{}, "/tmp\n"},
		{"odd arguments", fleet.ExecSpec{Argv: []string{"echo", "", "a\tb", "c\"d", "e\nf"}}, fleet.ExecStatus{}, " a\tb c\"d e\nf\n"},
	} {
		res, err := provider.Exec(s.ctx, env, test.spec, 1<<20)
		if err != nil {
			s.t.Errorf("%s: %v", test.name, err)
			continue
		}
		if res.ExecStatus != test.status || string(res.Stdout) != test.stdout {
			s.t.Errorf("%s: %+v %q, want %+v %q", test.name, res.ExecStatus, res.Stdout, test.status, test.stdout)
		}
	}
	res, err := provider.Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}, 1<<10)
	if err != nil || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" || res.ExitCode != 3 {
		s.t.Errorf("both streams: %+v, %v", res, err)
	}
	_, err = provider.Exec(s.ctx, env, fleet.ExecSpec{}, 1)
	s.wantCode("empty command", err, fleet.CodeInvalidArgument)
}

func testExecBytes(s *suite, _ provider.Ref, env provider.Environment) {
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent) // never fails
	var got bytes.Buffer
	status, err := env.ExecStream(s.ctx, fleet.ExecSpec{Argv: []string{"cat"}}, fleet.Stdio{Stdin: bytes.NewReader(sent), Stdout: &got})
	if err != nil || status.ExitCode != 0 || !bytes.Equal(got.Bytes(), sent) {
		s.t.Errorf("cat of %d bytes gave %d, equal %v: %+v, %v", len(sent), got.Len(), bytes.Equal(got.Bytes(), sent), status, err)
	}
	res, err := provider.Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"cat"}}, 1)
	if err != nil || res.ExitCode != 0 || len(res.Stdout) != 0 {
		s.t.Errorf("without stdin a command reads end of file: %+v, %v", res, err)
	}
	res, err = provider.Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"seq", "100000"}}, 1<<10)
	if err != nil || !res.Truncated || len(res.Stdout) != 1<<10 || !bytes.HasPrefix(res.Stdout, []byte("1\n2\n3\n")) {
		s.t.Errorf("over the limit: truncated %v, %d bytes, %v", res.Truncated, len(res.Stdout), err)
	}
}

func testExecEnds(s *suite, _ provider.Ref, env provider.Environment) {
	res, err := provider.Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"sleep", "600"}, Timeout: 100 * time.Millisecond}, 1)
	if err != nil || res.ExitCode != 124 || !res.TimedOut {
		s.t.Errorf("timeout: %+v, %v", res, err)
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	out := writerFunc(func(p []byte) (int, error) { cancel(errGivenUp); return len(p), nil })
	_, err = env.ExecStream(ctx, fleet.ExecSpec{Argv: []string{"yes"}}, fleet.Stdio{Stdout: out})
	if err == nil {
		s.t.Error("a cancelled exec is no success")
	}
	broken := writerFunc(func([]byte) (int, error) { return 0, errGivenUp })
	_, err = env.ExecStream(s.ctx, fleet.ExecSpec{Argv: []string{"yes"}}, fleet.Stdio{Stdout: broken})
	if !errors.Is(err, errGivenUp) {
		s.t.Errorf("a writer that fails ends the exec with its error: %v", err)
	}
}

var errGivenUp = errors.New("the test has seen enough")

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func testUpload(s *suite, _ provider.Ref, env provider.Environment) {
	data := []byte("line\n\x00\xff binary\r\n")
	err := env.Upload(s.ctx, []fleet.GuestFile{{Path: "/suite/deep/file", Data: data}, {Path: "/suite/empty"}})
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := provider.Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"cat", "/suite/deep/file", "/suite/empty"}}, 1<<10)
	if err != nil || !bytes.Equal(res.Stdout, data) {
		s.t.Errorf("read back %q, %v", res.Stdout, err)
	}
	err = env.Upload(s.ctx, []fleet.GuestFile{{Path: "not/absolute", Data: data}})
	s.wantCode("upload to a relative path", err, fleet.CodeInvalidArgument)
}

func testForeign(s *suite, ref provider.Ref, _ provider.Environment) {
	other := s.Connect(NewFleet())
	if uids := s.listed(other); len(uids) != 0 {
		s.t.Errorf("another fleet sees %v", uids)
	}
	l, err := other.List(s.ctx)
	if err != nil || l.Foreign != 1 {
		s.t.Errorf("another fleet counts %d foreign VMs, %v", l.Foreign, err)
	}
	_, err = other.Get(s.ctx, ref)
	s.wantCode("get by another fleet", err, fleet.CodeNotFound)
	err = other.Destroy(s.ctx, again(ref))
	s.wantCode("destroy by another fleet", err, fleet.CodeForbidden)
	_, err = provider.Exec(s.ctx, other.Open(ref), fleet.ExecSpec{Argv: []string{"true"}}, 1)
	s.wantCode("exec by another fleet", err, fleet.CodeForbidden)
	_, err = other.Create(s.ctx, s.request(again(ref)))
	s.wantCode("create of a uid by another fleet", err, fleet.CodeConflict)
}

func testRepeatCreate(s *suite, ref provider.Ref, _ provider.Environment) {
	first, err := s.p.Create(s.ctx, s.request(ref))
	if err != nil {
		s.t.Fatalf("a repeated create gets the first answer: %v", err)
	}
	second, err := s.p.Create(s.ctx, s.request(ref))
	if err != nil || !cmp.Equal(first.Boot, second.Boot) || first.ImageDigest != second.ImageDigest {
		s.t.Errorf("answers differ: %+v and %+v, %v", first, second, err)
	}
	_, err = s.p.Create(s.ctx, s.request(again(ref)))
	s.wantCode("another create of the same life", err, fleet.CodeConflict)
}

func testOtherLife(s *suite, ref provider.Ref, _ provider.Environment) {
	other := newRef(ref.ID)
	_, err := s.p.Create(s.ctx, s.request(other))
	s.wantCode("a second life of the same VM", err, fleet.CodeConflict)
	if err == nil || !strings.Contains(err.Error(), ref.UID) {
		s.t.Errorf("the refusal does not name the life in the way: %v", err)
	}
	older := newRef(ref.ID)
	if err := s.p.Destroy(s.ctx, older); err != nil {
		s.t.Errorf("destroy of another life: %v", err)
	}
	_, err = s.p.Create(s.ctx, s.request(again(older)))
	s.wantCode("create of a life that was destroyed before", err, fleet.CodeConflict)
}

func testStaleGeneration(s *suite, _ provider.Ref, _ provider.Environment) {
	next := newRef("suite-generation")
	next.Generation = 5
	s.create(next)
	old := again(next)
	old.Generation = 4
	s.wantCode("destroy by an earlier claim", s.p.Destroy(s.ctx, old), fleet.CodeConflict)
	if got := s.listed(s.p); len(got) != 2 {
		s.t.Errorf("after it the host lists %v", got)
	}
	next.Generation = 0 // any
	s.destroy(next)
}

func testStaleTerm(s *suite, ref provider.Ref, env provider.Environment) {
	leader := s.fleet.At(10)
	p := s.Connect(leader)
	if err := p.(provider.Claimer).Claim(s.ctx); err != nil {
		s.t.Fatalf("claim of a higher term: %v", err)
	}
	fresh := newRef("suite-stale")
	_, err := s.p.Create(s.ctx, s.request(fresh))
	s.wantStale("create in a stale term", err)
	s.wantStale("destroy in a stale term", s.p.Destroy(s.ctx, again(ref)))
	_, err = provider.Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"true"}}, 1)
	s.wantStale("exec in a stale term", err)
	s.wantStale("upload in a stale term", env.Upload(s.ctx, []fleet.GuestFile{{Path: "/stale"}}))
	_, err = env.Drain(s.ctx, "")
	s.wantStale("drain in a stale term", err)
	s.wantStale("claim of a stale term", s.p.(provider.Claimer).Claim(s.ctx))
	twin := s.Connect(s.fleet.At(10))
	s.wantStale("claim of the same term by another", twin.(provider.Claimer).Claim(s.ctx))
	s.wantStale("destroy by another claimant", twin.Destroy(s.ctx, again(ref)))
	res, err := provider.Exec(s.ctx, p.Open(ref), fleet.ExecSpec{Argv: []string{"cat", "/stale"}}, 1)
	if err != nil || res.ExitCode != 1 {
		s.t.Errorf("the refused upload had an effect, or: %+v, %v", res, err)
	}
	s.p, s.fleet = p, leader
}

func testDrain(s *suite, ref provider.Ref, _ provider.Environment) {
	handle := s.p.Open(again(ref))
	status, err := handle.Drain(s.ctx, "exit 4")
	if err != nil || status.ExitCode != 4 {
		s.t.Errorf("drain: %+v, %v", status, err)
	}
	status, err = handle.Drain(s.ctx, "exit 5")
	if err != nil || status.ExitCode != 4 {
		s.t.Errorf("a repeated drain gets the first answer: %+v, %v", status, err)
	}
}

// testIdentity tells lives of one VM id apart across the end.
func testIdentity(s *suite) {
	first, second := newRef("suite-reborn"), newRef("suite-reborn")
	s.create(first)
	s.destroy(first)
	s.create(second)
	s.destroy(first)
	if got := s.listed(s.p); !slices.Equal(got, []string{second.UID}) {
		s.t.Errorf("a late destroy of the first life leaves %v", got)
	}
	if _, err := s.p.Get(s.ctx, first); !errors.Is(err, fleet.ErrVMNotFound) {
		s.t.Errorf("get of the first life: %v", err)
	}
	_, err := s.p.Create(s.ctx, s.request(first))
	s.wantCode("late repeat of the first create", err, fleet.CodeConflict)
	s.destroy(second)
}

func testLostAnswers(s *suite) {
	ref := newRef("suite-lost")
	if err := s.p.(provider.Claimer).Claim(s.ctx); err != nil {
		s.t.Fatal(err)
	}
	s.LoseAnswer(s.p)
	if _, err := s.p.Create(s.ctx, s.request(ref)); !errors.Is(err, provider.ErrNoAnswer) {
		s.t.Fatalf("create whose answer was lost: %v", err)
	}
	s.wantEcho(s.create(ref))
	if got := s.listed(s.p); !slices.Equal(got, []string{ref.UID}) {
		s.t.Errorf("the host lists %v", got)
	}
	s.LoseAnswer(s.p)
	gone := again(ref)
	if err := s.p.Destroy(s.ctx, gone); !errors.Is(err, provider.ErrNoAnswer) {
		s.t.Fatalf("destroy whose answer was lost: %v", err)
	}
	if err := s.p.Destroy(s.ctx, gone); err != nil {
		s.t.Errorf("its repeat: %v", err)
	}
}

type outcome struct {
	created provider.Created
	err     error
}

// begin starts a create and returns once the host works on it.
func (s *suite) begin(ctx context.Context, ref provider.Ref) <-chan outcome {
	s.t.Helper()
	begun, ended := make(chan struct{}), make(chan outcome, 1)
	req := s.request(ref)
	once := sync.OnceFunc(func() { close(begun) })
	req.Progress = func(string) { once() }
	go func() {
		created, err := s.p.Create(ctx, req)
		ended <- outcome{created, err}
	}()
	select {
	case <-begun:
	case o := <-ended:
		s.t.Fatalf("create ended before it began: %v", o.err)
	case <-s.ctx.Done():
		s.t.Fatal("create did not begin")
	}
	return ended
}

func (s *suite) slow() (undo func()) {
	if s.SlowCreate == nil {
		return func() {}
	}
	return s.SlowCreate()
}

func testDestroyDuringCreate(s *suite) {
	undo := s.slow()
	defer undo()
	ref := newRef("suite-cut-off")
	ended := s.begin(s.ctx, ref)
	s.destroy(ref)
	o := <-ended
	s.wantCode("the create that was cut off", o.err, fleet.CodeConflict)
	_, err := s.p.Create(s.ctx, s.request(ref))
	s.wantCode("its repeat", err, fleet.CodeConflict)
}

// testCreateGoesOn checks that the work does not depend on who asked for it.
func testCreateGoesOn(s *suite) {
	undo := s.slow()
	ref := newRef("suite-goes-on")
	ctx, leave := context.WithCancel(s.ctx)
	ended := s.begin(ctx, ref)
	leave()
	if o := <-ended; !errors.Is(o.err, provider.ErrNoAnswer) {
		s.t.Errorf("the caller that left: %v", o.err)
	}
	undo()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			created, err := s.p.Create(s.ctx, s.request(ref))
			if err != nil {
				s.t.Errorf("a concurrent repeat waits for the first: %v", err)
				return
			}
			s.wantEcho(created.Environment)
		})
	}
	wg.Wait()
	s.destroy(ref)
}

func testRefusals(s *suite) {
	for name, spoil := range map[string]func(*provider.CreateRequest){
		"no cpus":       func(r *provider.CreateRequest) { r.Spec.CPUs = 0 },
		"negative ram":  func(r *provider.CreateRequest) { r.Spec.RamMB = -1 },
		"unknown image": func(r *provider.CreateRequest) { r.Spec.Image = "no-such-image" },
		"uid as a path": func(r *provider.CreateRequest) { r.UID = "../up" },
		"id as a path":  func(r *provider.CreateRequest) { r.ID = "../up" },
		"no operation":  func(r *provider.CreateRequest) { r.OpID = "" },
	} {
		req := s.request(newRef("suite-refused"))
		spoil(&req)
		_, err := s.p.Create(s.ctx, req)
		s.wantCode(name, err, fleet.CodeInvalidArgument)
	}
	req := s.request(newRef("suite-refused"))
	req.Spec.RamMB = 1 << 29
	_, err := s.p.Create(s.ctx, req)
	var fe *fleet.Error
	if !errors.Is(err, fleet.ErrNoCapacity) || !errors.As(err, &fe) || fe.Code != fleet.CodeUnavailable {
		s.t.Fatalf("more memory than there is: %v", err)
	}
	for _, key := range []string{fleet.DetailLimit, fleet.DetailUsage, fleet.DetailRemedy} {
		if fe.Details[key] == "" {
			s.t.Errorf("the refusal has no %s: %v", key, fe.Details)
		}
	}
	if _, err := s.p.Get(s.ctx, newRef("suite-unknown")); !errors.Is(err, fleet.ErrVMNotFound) {
		s.t.Errorf("get of an unknown VM: %v", err)
	}
	s.destroy(newRef("suite-unknown"))
}
