// Package providertest is the suite that every provider passes: the fake, and
// the remote one over a host agent with the sim or the qemu driver. It says
// what the port's contract means; tests of a control plane may then rely on
// the fake.
package providertest

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
)

// Fleet is a control plane's side of the fence; tests move it as they like.
type Fleet struct {
	mu      sync.Mutex
	now     provider.Fence
	earlier map[int64]provider.Proof
	accept  bool
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
	earlier := maps.Clone(f.earlier)
	if earlier == nil {
		earlier = map[int64]provider.Proof{}
	}
	earlier[f.now.Term] = provider.Proof{Token: f.now.ClaimToken, Revision: f.now.Revision}
	return &Fleet{now: next, earlier: earlier}
}

// Proof shows what the fleet knows of an earlier term.
func (f *Fleet) Proof(term int64) provider.Proof {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.earlier[term]
}

// Accepted reports whether the operator confirmed the store.
func (f *Fleet) Accepted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accept
}

// Change changes what the fleet shows, and whether its store is confirmed.
func (f *Fleet) Change(now func(*provider.Fence), accept bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.accept = accept
	if now != nil {
		now(&f.now)
	}
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
	// It may be nil where they take seconds anyway.
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
		{"Stores", testStores},
		{"Volatile", testVolatile},
		{"SharedHost", testSharedHost},
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
	s.t.Helper()
	c, err := secrets.NewVMCredentials(ref.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	return provider.CreateRequest{Ref: ref, Spec: s.Spec, Credentials: provider.Credentials{
		Hostname: "suite", MachineID: c.MachineID, Token: c.Token, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM,
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

func (s *suite) claim(p provider.Provider) error {
	_, err := p.(provider.Claimer).Claim(s.ctx)
	return err
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
	res, err := Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"echo", "here"}}, 1<<10)
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
	_, err = Exec(s.ctx, created.Environment, fleet.ExecSpec{Argv: []string{"true"}}, 1)
	s.wantCode("exec after the end", err, fleet.CodeNotFound)
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
	if _, err := s.p.(provider.Claimer).Claim(s.ctx); err != nil {
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
