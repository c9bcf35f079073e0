package hostdtest_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

// childBinary is the host agent with failpoints.
var childBinary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hostd-child")
	if err != nil {
		panic(err)
	}
	childBinary = filepath.Join(dir, "child")
	out, err := exec.Command("go", "build", "-tags", "failpoints", "-o", childBinary, "./child").CombinedOutput()
	if err != nil {
		panic(fmt.Sprintf("build the child: %v: %s", err, out))
	}
	code := testkit.Leakless{Tests: m}.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// machine is a host whose agent comes and goes; what it ran stays.
type machine struct {
	t    *testing.T
	dir  string
	sock string
	cmd  *exec.Cmd
	p    *remote.Provider
	ram  int // MiB to hand out; zero: the driver's
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostd")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, sock: filepath.Join(dir, "s")}
	m.p, err = remote.New(remote.Config{
		URL: "unix://" + m.sock, Token: hostdtest.Token, Fencer: providertest.NewFleet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.kill()
		if err := errors.Join(m.p.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return m
}

// start runs the agent and waits for its first complete listing.
func (m *machine) start(failpoints, sim string) {
	m.t.Helper()
	m.cmd = exec.Command(childBinary, "-dir", m.dir, "-addr", "unix://"+m.sock, "-token", hostdtest.Token, "-sim", sim, "-ram", fmt.Sprint(m.ram))
	m.cmd.Env = append(os.Environ(), failpoint.Env+"="+failpoints)
	m.cmd.Stderr = os.Stderr
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	testkit.Eventually(m.t, time.Minute, "the agent lists its VMs", func() bool {
		l, err := m.p.List(m.t.Context())
		return err == nil && l.Complete
	})
}

// wait returns once the agent has died; it must have been killed.
func (m *machine) wait() {
	m.t.Helper()
	err := m.cmd.Wait()
	m.cmd = nil
	var ee *exec.ExitError
	if !errors.As(err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		m.t.Fatalf("the agent ended with %v, want SIGKILL", err)
	}
}

func (m *machine) kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill() // already gone is as good
	_ = m.cmd.Wait()
	m.cmd = nil
}

func (m *machine) create(ref provider.Ref) error {
	_, err := m.p.Create(m.t.Context(), provider.CreateRequest{Ref: ref, Spec: fleet.Spec{CPUs: 1, RamMB: 64, Image: "minimal"}})
	return err
}

func (m *machine) destroy(ref provider.Ref) error {
	ref.OpID = ulid.Make().String()
	return m.p.Destroy(m.t.Context(), ref)
}

// wantExactly checks that the host runs these VMs and that nothing else of it
// is on the machine: no directory, no object.
func (m *machine) wantExactly(refs ...provider.Ref) {
	m.t.Helper()
	var want []string
	for _, r := range refs {
		want = append(want, r.UID)
		res, err := providertest.Exec(m.t.Context(), m.p.Open(r), fleet.ExecSpec{Argv: []string{"echo", "alive"}}, 100)
		if err != nil || string(res.Stdout) != "alive\n" {
			m.t.Errorf("%s is not usable: %+v, %v", r.ID, res, err)
		}
	}
	slices.Sort(want)
	l, err := m.p.List(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	var listed []string
	for _, v := range l.VMs {
		listed = append(listed, v.UID)
		if !v.Running {
			m.t.Errorf("%s does not run: %+v", v.ID, v.Exit)
		}
	}
	slices.Sort(listed)
	if diff := cmp.Diff(want, listed); diff != "" {
		m.t.Errorf("listed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, names(m.t, filepath.Join(m.dir, "host", "vms"))); diff != "" {
		m.t.Errorf("directories (-want +got):\n%s", diff)
	}
	if got := names(m.t, filepath.Join(m.dir, "objects")); len(got) != len(want) {
		m.t.Errorf("objects: %v, want one for each of %v", got, want)
	}
	if l.Foreign != 0 {
		m.t.Errorf("%d foreign VMs", l.Foreign)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func newRef(id string) provider.Ref {
	return provider.Ref{ID: id, UID: ulid.Make().String(), Generation: 1, OpID: ulid.Make().String()}
}

func TestKilledDuringCreate(t *testing.T) {
	for _, test := range []struct {
		failpoints, sim string
		answered        bool
	}{
		{failpoints: "hostd.create.owner_record@2=exit"},
		{failpoints: "hostd.create.slot@2=exit"},
		{failpoints: "hostd.create.driver@2=exit"},
		{failpoints: "hostd.create.answer@2=exit"},
		{failpoints: "hostd.create.answered@2=exit", answered: true},
		// The create fails by itself and the agent dies while undoing it.
		{failpoints: "hostd.create.driver@2=error|hostd.destroy.driver=exit"},
		{failpoints: "hostd.create.driver@2=error|hostd.destroy.clear=exit"},
	} {
		t.Run(strings.TrimSuffix(test.failpoints, "=exit"), func(t *testing.T) {
			m := newMachine(t)
			m.start(test.failpoints, test.sim)
			kept, cut := newRef("kept"), newRef("cut")
			if err := m.create(kept); err != nil {
				t.Fatal(err)
			}
			if err := m.create(cut); !errors.Is(err, provider.ErrNoAnswer) {
				t.Fatalf("create while the agent dies: %v", err)
			}
			m.wait()
			m.start("", "")
			if test.answered {
				m.wantExactly(kept, cut)
				if err := m.create(cut); err != nil {
					t.Errorf("repeat of a create that had come to its answer: %v", err)
				}
			} else {
				m.wantExactly(kept)
				err := m.create(cut)
				var fe *fleet.Error
				if !errors.As(err, &fe) || fe.Details[fleet.DetailReason] != fleet.RuleCreateInterrupted {
					t.Errorf("repeat of an interrupted create: %v", err)
				}
			}
			if err := m.destroy(cut); err != nil {
				t.Error(err)
			}
			next := newRef("cut")
			if err := m.create(next); err != nil {
				t.Errorf("next life: %v", err)
			}
			m.wantExactly(kept, next)
		})
	}
}

func TestKilledDuringDestroy(t *testing.T) {
	for _, point := range []string{"intent", "driver", "clear", "answer"} {
		t.Run(point, func(t *testing.T) {
			m := newMachine(t)
			m.start("hostd.destroy."+point+"=exit", "")
			kept, gone := newRef("kept"), newRef("gone")
			if err := errors.Join(m.create(kept), m.create(gone)); err != nil {
				t.Fatal(err)
			}
			if err := m.destroy(gone); !errors.Is(err, provider.ErrNoAnswer) {
				t.Fatalf("destroy while the agent dies: %v", err)
			}
			m.wait()
			m.start("", "")
			m.wantExactly(kept)
			if err := m.destroy(gone); err != nil {
				t.Errorf("repeat: %v", err)
			}
			if err := m.create(gone); fleet.CodeOf(err) != fleet.CodeConflict {
				t.Errorf("create of the life that ended: %v", err)
			}
			m.wantExactly(kept)
		})
	}
}

// TestKilledUnderLoad kills the agent at no particular place. What it had
// acknowledged is there afterwards; what it had not can be destroyed.
func TestKilledUnderLoad(t *testing.T) {
	m := newMachine(t)
	l := &load{m: m, acked: map[string]provider.Ref{}, doomed: map[string]provider.Ref{}}
	for round := range testkit.Count(3, 50) {
		m.start("", "boot=0ms..4ms,remove=0ms..2ms")
		l.run(round, 60+17*(round%5))
		m.start("", "")
		for _, r := range l.doomed {
			if err := m.destroy(r); err != nil {
				t.Fatalf("destroy of %s, which was asked for before or whose create got no answer: %v", r.ID, err)
			}
		}
		clear(l.doomed)
		m.wantExactly(slices.Collect(maps.Values(l.acked))...)
		m.kill()
	}
}

type load struct {
	m *machine

	mu     sync.Mutex
	acked  map[string]provider.Ref // created, and not asked to be destroyed
	doomed map[string]provider.Ref // the others that were asked for
}

// run creates and destroys until the agent is killed, after some creates.
func (l *load) run(round, creates int) {
	var wg sync.WaitGroup
	begun, enough := make(chan struct{}), make(chan struct{})
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				r := newRef(fmt.Sprintf("r%d-w%d-%d", round, w, i))
				select {
				case begun <- struct{}{}:
				case <-enough:
				}
				err := l.m.create(r)
				l.mu.Lock()
				if err != nil || i%3 == 0 {
					l.doomed[r.UID] = r
				} else {
					l.acked[r.UID] = r
				}
				l.mu.Unlock()
				if err != nil || i%3 == 0 && l.m.destroy(r) != nil {
					return
				}
			}
		})
	}
	for range creates {
		<-begun
	}
	close(enough)
	l.m.kill()
	wg.Wait()
}
