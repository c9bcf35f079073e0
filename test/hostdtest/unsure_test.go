package hostdtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

// noWayBack cannot keep what it restores or resumes, nor say that it went back.
type noWayBack struct{ *sim.Driver }

func (d noWayBack) stuck(r driver.Revived, err error) (driver.Revived, error) {
	undo := r.Undo
	r.Keep = func(context.Context) error { return errors.New("not kept") }
	r.Undo = func(ctx context.Context) error { return errors.Join(undo(ctx), errors.New("nobody knows")) }
	return r, err
}

func (d noWayBack) Restore(ctx context.Context, vm driver.VM, a driver.Artifact, step func(string)) (driver.Revived, error) {
	return d.stuck(d.Driver.Restore(ctx, vm, a, step))
}

func (d noWayBack) Resume(ctx context.Context, vm driver.VM, step func(string)) (driver.Revived, error) {
	return d.stuck(d.Driver.Resume(ctx, vm, step))
}

// A machine of which nobody knows whether it went back is looked at anew, and
// nothing of it is removed.
func TestNobodyKnowsWhatRuns(t *testing.T) {
	dir := t.TempDir()
	drv, err := sim.New(sim.Options{ObjectDir: dir + "/objects"})
	if err != nil {
		t.Fatal(err)
	}
	host := hostdtest.Start(t, hostd.Config{Dir: dir + "/host", Driver: noWayBack{drv}, SweepEvery: 20 * time.Millisecond}, "")
	p := host.Connect(providertest.NewFleet())
	m := &machine{t: t, p: p}
	ref := newRef("a")
	if err := m.create(ref); err != nil {
		t.Fatal(err)
	}
	a, err := m.take(ref, newSnapshotID(), true)
	if err != nil {
		t.Fatal(err)
	}
	stands := func(paused bool) func() bool {
		return func() bool {
			l, err := p.List(t.Context())
			return err == nil && l.Complete && len(l.VMs) == 1 && l.VMs[0].Running && l.VMs[0].Paused == paused
		}
	}
	if err := m.restore(ref, a); !errors.Is(err, provider.ErrNoAnswer) {
		t.Fatalf("restored: %v, want that nobody knows", err)
	}
	runs := func() bool {
		res, err := providertest.Exec(t.Context(), m.env(ref), fleet.ExecSpec{Argv: []string{"echo", "word"}}, 1<<10)
		return err == nil && string(res.Stdout) == "word\n"
	}
	testkit.Eventually(t, time.Minute, "the machine runs as it did", runs)
	if err := m.pause(ref); err != nil {
		t.Fatal(err)
	}
	if err := m.resume(ref); !errors.Is(err, provider.ErrNoAnswer) {
		t.Fatalf("resumed: %v, want that nobody knows", err)
	}
	testkit.Eventually(t, time.Minute, "the machine is paused as it was", stands(true))
	if err := m.destroy(ref); err != nil {
		t.Error(err)
	}
	if err := m.delete(a.ID); err != nil {
		t.Error(err)
	}
}
