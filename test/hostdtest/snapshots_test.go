package hostdtest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/testkit"
)

func newSnapshotID() string { return "snap-" + strings.ToLower(ulid.Make().String()) }

// env is a VM with an operation of its own.
func (m *machine) env(ref provider.Ref) provider.Environment {
	ref.OpID = ulid.Make().String()
	return m.p.Open(ref)
}

func (m *machine) take(ref provider.Ref, id string, live bool) (fleet.Artifact, error) {
	return m.env(ref).(provider.Checkpointer).TakeSnapshot(m.t.Context(), provider.TakeRequest{SnapshotID: id, Live: live})
}

func (m *machine) fork(ref provider.Ref, a fleet.Artifact) error {
	_, err := m.p.CreateFromSnapshot(m.t.Context(), provider.CreateRequest{Ref: ref, Spec: fleet.Spec{CPUs: 1, RamMB: 64, Image: "minimal"}},
		provider.Seed{SnapshotID: a.ID, Digest: a.Digest, Live: a.Kind == fleet.SnapshotKindLive})
	return err
}

func (m *machine) restore(ref provider.Ref, a fleet.Artifact) error {
	_, err := m.env(ref).(provider.Checkpointer).RestoreSnapshot(m.t.Context(), provider.RestoreRequest{SnapshotID: a.ID, Digest: a.Digest, Kind: a.Kind})
	return err
}

func (m *machine) pause(ref provider.Ref) error {
	_, err := m.env(ref).(provider.Pauser).Pause(m.t.Context(), nil)
	return err
}

func (m *machine) resume(ref provider.Ref) error {
	_, err := m.env(ref).(provider.Pauser).Resume(m.t.Context(), nil)
	return err
}

func (m *machine) delete(id string) error {
	return m.p.DeleteSnapshot(m.t.Context(), id, ulid.Make().String())
}

// wantSnapshots checks that the host keeps exactly these, on its disk too.
func (m *machine) wantSnapshots(ids ...string) {
	m.t.Helper()
	l, err := m.p.Snapshots(m.t.Context())
	if err != nil || !l.Complete {
		m.t.Fatalf("snapshots: %+v, %v", l, err)
	}
	var listed []string
	for _, a := range l.Snapshots {
		listed = append(listed, a.ID)
		if a.Bad != "" {
			m.t.Errorf("%s is bad: %s", a.ID, a.Bad)
		}
	}
	slices.Sort(ids)
	slices.Sort(listed)
	if !slices.Equal(ids, listed) {
		m.t.Errorf("listed %v, want %v", listed, ids)
	}
	if dirs := names(m.t, filepath.Join(m.dir, "host", "snapshots")); !slices.Equal(ids, dirs) {
		m.t.Errorf("directories %v, want %v", dirs, ids)
	}
}

func (m *machine) say(ref provider.Ref, argv ...string) string {
	m.t.Helper()
	res, err := providertest.Exec(m.t.Context(), m.env(ref), fleet.ExecSpec{Argv: argv}, 1<<10)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// The agent dies at each step of taking and deleting. What was answered is
// there afterwards, and nothing else is.
func TestKilledAroundASnapshot(t *testing.T) {
	for _, test := range []struct {
		point   string
		deletes bool // it dies in the deletion
		kept    bool
	}{
		{point: "hostd.snapshot.begun"},
		{point: "hostd.snapshot.written"},
		{point: "hostd.snapshot.answer", kept: true},
		{point: "hostd.snapshot.condemned", deletes: true},
		{point: "hostd.snapshot.discarded", deletes: true},
	} {
		t.Run(test.point, func(t *testing.T) {
			m := newMachine(t)
			m.start(test.point+"=exit", "")
			ref, id := newRef("a"), newSnapshotID()
			if err := m.create(ref); err != nil {
				t.Fatal(err)
			}
			_, err := m.take(ref, id, true)
			if test.deletes && err == nil {
				err = m.delete(id)
			}
			if !errors.Is(err, provider.ErrNoAnswer) {
				t.Fatalf("the agent should have died: %v", err)
			}
			m.wait()
			m.start("", "")
			m.wantExactly(ref)
			if test.kept {
				m.wantSnapshots(id)
			} else {
				m.wantSnapshots()
				if _, err := m.take(ref, id, true); fleet.CodeOf(err) != fleet.CodeConflict {
					t.Errorf("one that was given up on can be written again: %v", err)
				}
			}
			if err := errors.Join(m.delete(id), m.delete(id)); err != nil {
				t.Errorf("delete: %v", err)
			}
			m.wantSnapshots()
			m.wantExactly(ref)
		})
	}
}

func TestKilledDuringAFork(t *testing.T) {
	for _, point := range []string{"hostd.fork.driver", "hostd.fork.thawed", "hostd.create.driver@2"} {
		t.Run(point, func(t *testing.T) {
			m := newMachine(t)
			m.start(point+"=exit", "")
			source, fork := newRef("source"), newRef("fork")
			if err := m.create(source); err != nil {
				t.Fatal(err)
			}
			a, err := m.take(source, newSnapshotID(), true)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.fork(fork, a); !errors.Is(err, provider.ErrNoAnswer) {
				t.Fatalf("fork while the agent dies: %v", err)
			}
			m.wait()
			m.start("", "")
			m.wantExactly(source)
			next := newRef("fork")
			if err := m.fork(next, a); err != nil {
				t.Fatal(err)
			}
			m.wantExactly(source, next)
			if err := m.delete(a.ID); err != nil {
				t.Errorf("a snapshot that a fork was made from: %v", err)
			}
			m.wantExactly(source, next)
		})
	}
}

// A VM is paused or runs, whenever the agent dies; it can go on either way.
func TestKilledAroundAPause(t *testing.T) {
	for _, point := range []string{"hostd.pause.answer", "hostd.resume.kept", "hostd.resume.answer"} {
		t.Run(point, func(t *testing.T) {
			m := newMachine(t)
			m.start(point+"=exit", "")
			ref := newRef("a")
			if err := m.create(ref); err != nil {
				t.Fatal(err)
			}
			m.say(ref, "sh", "-c", "echo before > /tmp/x")
			err := m.pause(ref)
			if err == nil {
				err = m.resume(ref)
			}
			if !errors.Is(err, provider.ErrNoAnswer) {
				t.Fatalf("the agent should have died: %v", err)
			}
			m.wait()
			m.start("", "")
			if err := m.resume(ref); err != nil {
				t.Fatal(err)
			}
			m.wantExactly(ref)
		})
	}
}

func TestKilledDuringARestore(t *testing.T) {
	for _, point := range []string{"hostd.restore.kept", "hostd.restore.answer"} {
		t.Run(point, func(t *testing.T) {
			m := newMachine(t)
			m.start(point+"=exit", "")
			ref := newRef("a")
			if err := m.create(ref); err != nil {
				t.Fatal(err)
			}
			a, err := m.take(ref, newSnapshotID(), true)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.restore(ref, a); !errors.Is(err, provider.ErrNoAnswer) {
				t.Fatalf("restore while the agent dies: %v", err)
			}
			m.wait()
			m.start("", "")
			m.wantExactly(ref)
			m.wantSnapshots(a.ID)
			if err := m.restore(ref, a); err != nil {
				t.Error(err)
			}
			m.wantExactly(ref)
		})
	}
}

func TestPausedIsListedAndTakesNoMemory(t *testing.T) {
	m := newMachine(t)
	m.ram = 100 // for one machine, not for two
	m.start("", "")
	first, second := newRef("first"), newRef("second")
	if err := m.create(first); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.pause(first), m.pause(first)); err != nil {
		t.Fatal(err)
	}
	l, err := m.p.List(t.Context())
	if err != nil || len(l.VMs) != 1 || !l.VMs[0].Paused || !l.VMs[0].Running {
		t.Fatalf("%+v %v", l.VMs, err)
	}
	if _, err := providertest.Exec(t.Context(), m.env(first), fleet.ExecSpec{Argv: []string{"true"}}, 1); !errors.Is(err, fleet.ErrVMNotRunning) {
		t.Errorf("exec at a paused VM: %v", err)
	}
	if _, err := m.take(first, newSnapshotID(), true); !errors.Is(err, fleet.ErrVMNotRunning) {
		t.Errorf("snapshot of a paused VM: %v", err)
	}
	m.kill()
	m.start("", "")
	if l, err = m.p.List(t.Context()); err != nil || len(l.VMs) != 1 || !l.VMs[0].Paused {
		t.Fatalf("after a restart: %+v %v", l.VMs, err)
	}
	if err := errors.Join(m.resume(first), m.resume(first)); err != nil {
		t.Fatal(err)
	}
	m.wantExactly(first)
	if err := m.create(second); !errors.Is(err, fleet.ErrNoCapacity) {
		t.Errorf("two machines in the memory of one: %v", err)
	}
	second = newRef("second")
	if err := errors.Join(m.pause(first), m.create(second)); err != nil {
		t.Fatal(err)
	}
	if err := m.resume(first); !errors.Is(err, fleet.ErrNoCapacity) {
		t.Errorf("resumed without memory: %v", err)
	}
	if err := errors.Join(m.destroy(second), m.resume(first)); err != nil {
		t.Fatal(err)
	}
	m.wantExactly(first)
	second = newRef("second")
	if err := errors.Join(m.pause(first), m.create(second), m.destroy(first)); err != nil {
		t.Fatal(err)
	}
	m.wantExactly(second)
	if err := m.create(newRef("third")); !errors.Is(err, fleet.ErrNoCapacity) {
		t.Errorf("the memory of one that is gone was given back twice: %v", err)
	}
}

// What does not fit together is refused, by name, and changes nothing.
func TestSnapshotsThatDoNotFit(t *testing.T) {
	m := newMachine(t)
	m.start("", "")
	a, b := newRef("a"), newRef("b")
	if err := errors.Join(m.create(a), m.create(b)); err != nil {
		t.Fatal(err)
	}
	live, err := m.take(a, newSnapshotID(), true)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := m.take(a, newSnapshotID(), false)
	if err != nil || disk.Kind != fleet.SnapshotKindDisk || live.Kind != fleet.SnapshotKindLive {
		t.Fatal(disk.Kind, live.Kind, err)
	}
	other, asDisk, asLive, gone := live, live, disk, live
	other.Digest, asDisk.Kind, asLive.Kind, gone.ID = "sha256:0", fleet.SnapshotKindDisk, fleet.SnapshotKindLive, newSnapshotID()
	for name, tt := range map[string]struct {
		err  error
		want error
	}{
		"other bytes":               {m.fork(newRef("f1"), other), fleet.ErrSnapshotCorrupt},
		"the disk of a live one":    {m.fork(newRef("f2"), asDisk), fleet.ErrSnapshotNotSeedable},
		"memory that is not there":  {m.fork(newRef("f3"), asLive), fleet.ErrSnapshotInvalidState},
		"one that is not there":     {m.fork(newRef("f4"), gone), fleet.ErrSnapshotNotFound},
		"of another environment":    {m.restore(b, live), fleet.ErrSnapshotInvalidState},
		"restored with other bytes": {m.restore(a, other), fleet.ErrSnapshotCorrupt},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v, want %v", name, tt.err, tt.want)
		}
	}
	m.wantExactly(a, b)
	m.wantSnapshots(live.ID, disk.ID)
	if _, err := m.take(a, live.ID, true); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("an id that is taken: %v", err)
	}
	// One whose files are cut short is refused, and stays refused.
	cut := filepath.Join(m.dir, "host", "snapshots", live.ID)
	for _, name := range names(t, cut) {
		if name != "owner.json" && !strings.HasSuffix(name, ".json") {
			if err := os.Truncate(filepath.Join(cut, name), 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := m.fork(newRef("f5"), live); !errors.Is(err, fleet.ErrSnapshotCorrupt) {
		t.Errorf("fork of a damaged one: %v", err)
	}
	m.kill()
	m.start("", "")
	if l, err := m.p.Snapshots(t.Context()); err != nil || len(l.Snapshots) != 2 || l.Snapshots[0].Bad == "" && l.Snapshots[1].Bad == "" {
		t.Errorf("quarantine: %+v %v", l, err)
	}
	if err := errors.Join(m.delete(live.ID), m.delete(disk.ID)); err != nil {
		t.Error(err)
	}
	m.wantSnapshots()
	m.wantExactly(a, b)
}

// A deletion ends a capture under way.
func TestDeletionEndsACapture(t *testing.T) {
	m := newMachine(t)
	m.start("", "snapshot=5m")
	ref, id := newRef("a"), newSnapshotID()
	if err := m.create(ref); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := m.take(ref, id, true)
		done <- err
	}()
	dir := filepath.Join(m.dir, "host", "snapshots", id)
	testkit.Eventually(t, time.Minute, "the capture begins", func() bool { _, err := os.Stat(dir); return err == nil })
	if err := m.delete(id); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the capture came to its end")
	} else if msg := fmt.Sprint(err); !strings.Contains(msg, "delete") {
		t.Errorf("the capture ended with %v", err)
	}
	m.wantSnapshots()
	m.wantExactly(ref)
}
