package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

// world is a host with one VM, and a control plane that leads.
type world struct {
	h     *hostdtest.Host
	drv   *sim.Driver
	fleet *providertest.Fleet
	p     *remote.Provider
	ref   provider.Ref
	env   provider.Environment
}

func newWorld(t *testing.T, addr string) *world {
	t.Helper()
	drv, err := sim.New(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		h:     hostdtest.Start(t, hostd.Config{Dir: t.TempDir(), Driver: drv}, addr),
		drv:   drv,
		fleet: providertest.NewFleet(),
		ref:   provider.Ref{ID: "vm", UID: ulid.Make().String(), Generation: 1, OpID: "create"},
	}
	w.p = w.h.Connect(w.fleet)
	created, err := w.p.Create(t.Context(), provider.CreateRequest{Ref: w.ref, Spec: fleet.Spec{CPUs: 1, RamMB: 1}})
	if err != nil {
		t.Fatal(err)
	}
	w.env = created.Environment
	return w
}

func (w *world) destroy(t *testing.T) {
	t.Helper()
	ref := w.ref
	ref.OpID = "destroy"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.p.Destroy(ctx, ref); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

// stuck is a stream that takes nothing until it is let go; it tells when the
// first write came.
type stuck struct {
	once    sync.Once
	reached chan struct{}
	letGo   chan struct{}
}

func newStuck() *stuck { return &stuck{reached: make(chan struct{}), letGo: make(chan struct{})} }

func (s *stuck) wait() {
	s.once.Do(func() { close(s.reached) })
	<-s.letGo
}

func (s *stuck) Write(p []byte) (int, error) { s.wait(); return len(p), nil }

// TestSlowReaderHoldsTheCommandUp lets a command flood a reader that does not
// read: the memory in between stays bounded, and other calls go on.
func TestSlowReaderHoldsTheCommandUp(t *testing.T) {
	w := newWorld(t, "")
	out := newStuck()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := w.env.ExecStream(ctx, fleet.ExecSpec{Argv: []string{"yes", strings.Repeat("y", 1000)}}, fleet.Stdio{Stdout: out})
		done <- err
	}()
	<-out.reached
	before := heap()
	for range 200 {
		if _, err := providertest.Exec(t.Context(), w.env, fleet.ExecSpec{Argv: []string{"true"}}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("%d bytes pile up behind a reader that does not read", grown)
	}
	cancel()
	close(out.letGo)
	if err := <-done; err == nil {
		t.Error("a cancelled exec is no success")
	}
	w.destroy(t)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestDestroyDoesNotWaitForStreams destroys a VM while one command floods a
// caller that does not read and another waits for input.
func TestDestroyDoesNotWaitForStreams(t *testing.T) {
	w := newWorld(t, "")
	out := newStuck()
	done := make(chan error, 2)
	go func() {
		_, err := w.env.ExecStream(t.Context(), fleet.ExecSpec{Argv: []string{"yes"}}, fleet.Stdio{Stdout: out})
		done <- err
	}()
	r, feed := io.Pipe()
	defer feed.Close()
	copied := &firstWrite{seen: make(chan struct{})}
	go func() {
		_, err := w.env.ExecStream(t.Context(), fleet.ExecSpec{Argv: []string{"cat"}}, fleet.Stdio{Stdin: r, Stdout: copied})
		done <- err
	}()
	if _, err := feed.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	<-out.reached
	<-copied.seen
	w.destroy(t)
	close(out.letGo)
	for range 2 {
		if err := <-done; err == nil {
			t.Error("an exec whose VM was destroyed is no success")
		}
	}
}

type firstWrite struct {
	once sync.Once
	seen chan struct{}
}

func (f *firstWrite) Write(p []byte) (int, error) {
	f.once.Do(func() { close(f.seen) })
	return len(p), nil
}

// TestUnreadInputDoesNotStopTheHost pours input into commands that do not
// read it, more than the connection's window takes; control goes on.
func TestUnreadInputDoesNotStopTheHost(t *testing.T) {
	w := newWorld(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var poured atomic.Int64
	for range 40 {
		wg.Go(func() {
			in := readerFunc(func(p []byte) (int, error) {
				if ctx.Err() != nil {
					return 0, io.EOF
				}
				poured.Add(int64(len(p)))
				return len(p), nil
			})
			_, err := w.env.ExecStream(ctx, fleet.ExecSpec{Argv: []string{"sleep", "600"}}, fleet.Stdio{Stdin: in})
			if err == nil {
				t.Error("a cancelled exec is no success")
			}
		})
	}
	testkit.Eventually(t, time.Minute, "the input is held up", func() bool {
		before := poured.Load()
		for range 20 {
			if _, err := w.p.List(t.Context()); err != nil {
				t.Errorf("list: %v", err)
				return true
			}
		}
		return before > 0 && poured.Load() == before
	})
	if n := poured.Load(); n > 64<<20 {
		t.Errorf("%d bytes were taken from callers whose commands read nothing", n)
	}
	w.destroy(t)
	cancel()
	wg.Wait()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestCallerGoneEndsTheCommand checks that the host does not keep a command
// whose caller has left.
func TestCallerGoneEndsTheCommand(t *testing.T) {
	w := newWorld(t, "")
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := w.env.ExecStream(ctx, fleet.ExecSpec{Argv: []string{"sleep", "600"}}, fleet.Stdio{})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("exec: %v", err)
			}
		})
	}
	testkit.Eventually(t, time.Minute, "the commands run", func() bool { return runtime.NumGoroutine() > before+20 })
	cancel()
	wg.Wait()
	testkit.Eventually(t, time.Minute, "the commands are gone", func() bool { return runtime.NumGoroutine() <= before+4 })
	w.destroy(t)
}

func TestFailingInputIsNoShorterInput(t *testing.T) {
	w := newWorld(t, "")
	broken := errors.New("the pipe broke")
	in := io.MultiReader(strings.NewReader("part"), readerFunc(func([]byte) (int, error) { return 0, broken }))
	var out bytes.Buffer
	_, err := w.env.ExecStream(t.Context(), fleet.ExecSpec{Argv: []string{"cat"}}, fleet.Stdio{Stdin: in, Stdout: &out})
	if !errors.Is(err, broken) {
		t.Errorf("exec with input that breaks: %v", err)
	}
	w.destroy(t)
}

func TestWrongTokenAndWrongPin(t *testing.T) {
	w := newWorld(t, "https://127.0.0.1:0")
	for name, cfg := range map[string]remote.Config{
		"token": {URL: w.h.URL, CertSHA256: w.h.CertSHA256, Token: "another-token-of-16"},
		"pin":   {URL: w.h.URL, CertSHA256: strings.Repeat("ab", 32), Token: hostdtest.Token},
		"trust": {URL: w.h.URL, Token: hostdtest.Token},
	} {
		cfg.Fencer = w.fleet
		p, err := remote.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.List(t.Context())
		if fleet.CodeOf(err) != fleet.CodeUnavailable || strings.Contains(err.Error(), cfg.Token) {
			t.Errorf("wrong %s: %v", name, err)
		}
		// Who reads it can compare the fingerprints.
		if named := strings.Contains(err.Error(), w.h.CertSHA256); named != (name != "token") {
			t.Errorf("wrong %s: %v", name, err)
		}
		if pin := strings.Contains(err.Error(), strings.Repeat("ab", 32)); pin != (name == "pin") {
			t.Errorf("wrong %s: %v", name, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	w.destroy(t)
}

// TestClaimIsMadeAgain covers a host that lost its marks, as with its disk:
// the refused call had no effect and is repeated after a claim.
func TestClaimIsMadeAgain(t *testing.T) {
	w := newWorld(t, "")
	w.h.Stop()
	drv, err := sim.New(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fresh := hostdtest.Start(t, hostd.Config{Dir: t.TempDir(), Driver: drv}, w.h.URL)
	if fresh.RegistryID() == w.h.RegistryID() {
		t.Error("two registries have one id")
	}
	w.ref.UID = ulid.Make().String()
	if _, err := w.p.Create(t.Context(), provider.CreateRequest{Ref: w.ref, Spec: fleet.Spec{CPUs: 1, RamMB: 1}}); err != nil {
		t.Errorf("create: %v", err)
	}
	w.destroy(t)
}

// TestAnotherRegistryDoesNotAnswer covers a host agent that was started with an
// empty data directory: that it knows no VM is no news of the VM.
func TestAnotherRegistryDoesNotAnswer(t *testing.T) {
	w := newWorld(t, "")
	listing, err := w.p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pinned := func(registry, machine string) *remote.Provider {
		p, err := remote.New(remote.Config{
			URL: w.h.URL, Token: hostdtest.Token, Fencer: w.fleet, RegistryID: registry, MachineID: machine,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	for name, p := range map[string]*remote.Provider{
		"registry": pinned("01ANOTHERREGISTRY", listing.Facts.MachineID),
		"machine":  pinned(listing.Facts.RegistryID, "another-machine"),
	} {
		env := p.Open(w.ref)
		other := provider.Ref{ID: "other", UID: ulid.Make().String(), Generation: 1, OpID: "create"}
		_, createErr := p.Create(t.Context(), provider.CreateRequest{Ref: other, Spec: fleet.Spec{CPUs: 1, RamMB: 1}})
		_, getErr := p.Get(t.Context(), w.ref)
		_, execErr := env.ExecStream(t.Context(), fleet.ExecSpec{Argv: []string{"true"}}, fleet.Stdio{})
		_, drainErr := env.Drain(t.Context(), "")
		for call, err := range map[string]error{
			"create": createErr, "get": getErr, "exec": execErr, "drain": drainErr,
			"destroy": p.Destroy(t.Context(), w.ref), "upload": env.Upload(t.Context(), nil), "claim": claim(t, p),
		} {
			if fleet.CodeOf(err) != fleet.CodeUnavailable || !strings.Contains(err.Error(), listing.Facts.RegistryID) {
				t.Errorf("another %s, %s: %v", name, call, err)
			}
		}
		if _, err := p.List(t.Context()); err != nil {
			t.Errorf("another %s, list: %v", name, err)
		}
	}
	if listing, err = w.p.List(t.Context()); err != nil || len(listing.VMs) != 1 || !listing.VMs[0].Running {
		t.Errorf("after refused calls: %+v, %v", listing.VMs, err)
	}
	p := pinned(listing.Facts.RegistryID, listing.Facts.MachineID)
	if _, err := p.Get(t.Context(), w.ref); err != nil {
		t.Errorf("the host that is meant: %v", err)
	}
	w.destroy(t)
}

func claim(t *testing.T, p *remote.Provider) error {
	_, err := p.Claim(t.Context())
	return err
}

type fenceFunc func() (provider.Fence, error)

func (f fenceFunc) Fence() (provider.Fence, error) { return f() }

func TestNoCallWithoutLeadership(t *testing.T) {
	w := newWorld(t, "")
	p := w.h.Connect(fenceFunc(func() (provider.Fence, error) { return provider.Fence{}, fleet.ErrNotLeader }))
	env := p.Open(w.ref)
	_, createErr := p.Create(t.Context(), provider.CreateRequest{Ref: w.ref})
	_, listErr := p.List(t.Context())
	_, execErr := env.ExecStream(t.Context(), fleet.ExecSpec{Argv: []string{"true"}}, fleet.Stdio{})
	_, drainErr := env.Drain(t.Context(), "")
	for name, err := range map[string]error{
		"create": createErr, "list": listErr, "exec": execErr, "drain": drainErr,
		"destroy": p.Destroy(t.Context(), w.ref), "upload": env.Upload(t.Context(), nil), "claim": claim(t, p),
	} {
		if !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.destroy(t)
}

func TestUnreachableHost(t *testing.T) {
	p, err := remote.New(remote.Config{URL: "unix:///nonexistent/socket", Token: hostdtest.Token, Fencer: providertest.NewFleet()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.List(t.Context())
	if !errors.Is(err, provider.ErrNoAnswer) || fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("list: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	_, err = p.List(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || fleet.CodeOf(err) != fleet.CodeDeadlineExceeded {
		t.Errorf("list without time: %v", err)
	}
}
