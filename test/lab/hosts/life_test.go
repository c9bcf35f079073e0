package hosts

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/lab/rig"
)

// drained empties a host; the others keep what they have.
func (f *fleet) drained(t *testing.T) {
	before := f.environments()
	if before["fuse-spread-0"].HostID == "" {
		t.Fatalf("environments: %v", before)
	}
	id := before["fuse-spread-0"].HostID
	n := slices.IndexFunc(f.Hosts(), func(h *rig.Host) bool { return h.ID() == id })
	f.CLI("host", "drain", id, "--grace", "1s", "--deadline", "60s", "--wait")
	for name, e := range f.environments() {
		if e.HostID == id {
			t.Errorf("after the drain %s is on %s", name, id)
		}
		delete(before, name)
	}
	for name, e := range before {
		if e.HostID != id {
			t.Errorf("%s on %s ended with the drain of %s", name, e.HostID, id)
		}
	}
	if left := f.qemus()[id]; len(left) != 0 {
		t.Errorf("the drained host runs %v", left)
	}
	if h := f.host(n); h.State != "cordoned" || h.Allocated.VMCount != 0 {
		t.Errorf("the drained host is %+v", h)
	}
	f.refused([]string{"--host", id}, "cordoned")
	f.CLI("host", "uncordon", id)
}

// forgotten gives up a host that has lost its power.
func (f *fleet) forgotten(t *testing.T) {
	h := f.Host(2)
	f.create("lost", "--host", h.ID())
	if o := f.Try("host", "rm", h.ID(), "--forget"); o.Code == 0 {
		t.Fatal("a host that answers was forgotten")
	}
	before := f.environments()
	h.Kill()
	f.becomes(2, "unreachable")
	f.settle()
	if after := f.environments(); len(after) != len(before) {
		t.Errorf("environments before the host's end: %v, after it: %v", before, after)
	}
	if o := f.Try("host", "rm", h.ID()); o.Code == 0 {
		t.Errorf("rm without --forget: %+v", o)
	}
	f.CLI("host", "rm", h.ID(), "--forget")
	if o := f.Try("get", "fuse-lost"); o.Code != 3 || !strings.Contains(o.Err, "host_lost") {
		t.Errorf("get after its host was forgotten: %+v", o)
	}
	if got := strings.Fields(f.CLI("host", "ls", "-o", "name")); slices.Contains(got, h.ID()) {
		t.Errorf("hosts: %v", got)
	}
	after := f.environments()
	for name, e := range before {
		if e.HostID == h.ID() {
			continue
		}
		if after[name] != e {
			t.Errorf("%s was %v and is %v", name, e, after[name])
		}
		f.answers(name)
	}
}

// back is the host that was forgotten, which was only off: at most one copy of
// an environment is left, the one that was decided.
func (f *fleet) back(t *testing.T) {
	h := f.Host(2)
	if got := f.create("lost"); got == h.ID() {
		t.Fatalf("the environment is on %s, which is gone", got)
	}
	f.mark("fuse-lost")
	h.Boot()
	h.Register()
	f.becomes(2, "reachable")
	testkit.Eventually(t, 2*time.Minute, "the host that came back holds nothing", func() bool { return len(h.Machines()) == 0 })
	f.settle()
	f.answers("fuse-lost")
	testkit.Eventually(t, 2*time.Minute, "it takes new environments", func() bool {
		return f.Try(createArgs("new", "--host", h.ID())...).Code == 0
	})
}

// TestLabelsAndDrains changes labels and cancels a drain while hosts run.
func TestLabelsAndDrains(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 2, Driver: "sim", ServerArgs: quick})}
	f.refused([]string{"--label", "rack=7"}, "rack")
	f.CLI("host", "label", "host-2", "rack=7")
	if got := f.create("racked", "--label", "rack=7"); got != "host-2" {
		t.Errorf("the environment for the label is on %s", got)
	}
	f.CLI("host", "label", "host-2", "rack-")
	f.refused([]string{"--label", "rack=7"}, "rack")

	f.CLI("host", "drain", "host-2", "--grace", "10m", "--deadline", "30m")
	if o := f.Try("host", "drain", "host-2", "--grace", "1s"); o.Code == 0 {
		t.Error("a host is drained twice at a time")
	}
	if h := f.host(1); h.State != "draining" {
		t.Errorf("the host is %+v", h)
	}
	f.refused([]string{"--host", "host-2"}, "drain")
	f.CLI("host", "drain", "host-2", "--cancel")
	f.settle()
	if h := f.host(1); h.State == "draining" || h.Allocated.VMCount != 1 {
		t.Errorf("after the drain was cancelled the host is %+v", h)
	}
	f.CLI("host", "uncordon", "host-2")
	if got := f.create("after", "--host", "host-2"); got != "host-2" {
		t.Errorf("the environment is on %s", got)
	}
	f.Empty()
}

// TestPartitionedHostComesBack forgets a host that runs on behind a cut: when it
// is back its machine, which has been replaced, is ended, and no other.
func TestPartitionedHostComesBack(t *testing.T) {
	t.Parallel()
	driver := []string{"sim", "qemu"}[testkit.Count(0, 1)]
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 2, Driver: driver, ServerArgs: quick})}
	f.create("moved", "--host", "host-2")
	f.create("stays", "--host", "host-1")
	h := f.Host(1)
	h.Cut()
	f.becomes(1, "unreachable")
	f.CLI("host", "rm", h.ID(), "--forget")
	f.create("moved")
	if there := h.Machines(); len(there) != 1 {
		t.Errorf("behind the cut there are %v", there)
	}
	before := f.environments()
	h.Heal()
	h.Register()
	f.becomes(1, "reachable")
	testkit.Eventually(t, 2*time.Minute, "the old copy is ended", func() bool { return len(h.Machines()) == 0 && len(h.Running()) == 0 })
	f.settle()
	if after := f.environments(); !maps.Equal(before, after) {
		t.Errorf("environments before it came back: %v, after it: %v", before, after)
	}
	if there := f.Host(0).Machines(); len(there) != 2 {
		t.Errorf("the other host has %v", there)
	}
	f.Empty()
}

// TestJoin has hosts register themselves, and strangers refused.
func TestJoin(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Driver: "sim", ServerArgs: quick})}
	token := strings.TrimSpace(f.CLI("host", "join-token", "--uses", "2", "--label", "by=join"))
	file := filepath.Join(t.TempDir(), "join")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	join := func(o *rig.HostOptions) {
		o.Args = append(o.Args, "--join", f.Server(0).URL(), "--join-token-file", file)
	}
	h := f.AddHost(join)
	testkit.Eventually(t, 2*time.Minute, "the host has joined", func() bool {
		return slices.Contains(strings.Fields(f.CLI("host", "ls", "-o", "name")), h.ID())
	})
	f.becomes(0, "reachable")
	if got := f.create("one", "--label", "by=join"); got != h.ID() {
		t.Errorf("the environment is on %s", got)
	}
	// Joining again, after a reboot, keeps what is known of it.
	h.Reboot()
	f.becomes(0, "reachable")
	f.settle()
	if hosts := strings.Fields(f.CLI("host", "ls", "-o", "name")); len(hosts) != 1 {
		t.Errorf("hosts: %v", hosts)
	}
	f.Empty()
}

// TestAnotherMachineAtTheAddress puts another machine in a host's place: nothing
// is believed of what it says, and it is no host before somebody says so.
func TestAnotherMachineAtTheAddress(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 2, Driver: "sim", ServerArgs: quick})}
	f.create("one", "--host", "host-1")
	h := f.Host(0)
	h.Kill()
	h.Wipe()
	h.Boot()
	f.becomes(0, "unreachable")
	f.settle()
	if all := f.environments(); len(all) != 1 {
		t.Errorf("environments: %v", all)
	}
	if err := h.TryRegister(); err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("another machine was registered under a host's id: %v", err)
	}
	var asked *rig.RefusedError
	if err := f.Host(1).TryRegisterAs("host-9", f.Host(1).Token()); !errors.As(err, &asked) || asked.Status != 409 {
		t.Errorf("a machine was registered under a second id: %v", err)
	}
	if err := f.Host(1).TryRegisterAs("host-2", "wrong"); !errors.As(err, &asked) || asked.Status != 502 || !strings.Contains(asked.Body, "unauthorized") {
		t.Errorf("a wrong token: %v", err)
	}
	f.CLI("host", "rm", "host-1", "--forget")
	h.Register()
	f.becomes(0, "reachable")
	if got := f.create("two", "--host", "host-1"); got != "host-1" {
		t.Errorf("the environment is on %s", got)
	}
	f.Empty()
}

// TestRepin gives a host another certificate: it is not believed before somebody
// accepts that, and its environments stay.
func TestRepin(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 1, Driver: "sim", ServerArgs: quick})}
	f.create("one")
	before := f.environments()
	h := f.Host(0)
	h.StopAgent()
	if err := os.RemoveAll(filepath.Join(h.Dir(), "host", "tls")); err != nil {
		t.Fatal(err)
	}
	h.StartAgent()
	f.becomes(0, "unreachable")
	if out := f.CLI("host", "get", "host-1"); !strings.Contains(out, "certificate") {
		t.Errorf("nothing says why it is not believed:\n%s", out)
	}
	f.refused([]string{"--host", "host-1"}, "host-1")
	f.CLI("host", "repin", "host-1")
	f.becomes(0, "reachable")
	f.settle()
	if after := f.environments(); !maps.Equal(before, after) {
		t.Errorf("environments before: %v, after: %v", before, after)
	}
	f.Empty()
}
