package hosts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/lab/rig"
)

// TestLifeOfMachinesHosts drains, kills, forgets and takes back hosts with real
// machines on them.
func TestLifeOfMachinesHosts(t *testing.T) {
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 3, ServerArgs: quick})}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"labelled", f.labelled},
		{"drained", f.drained},
		{"drain cancelled", f.drainCancelled},
		{"killed and forgotten", f.forgotten},
		{"back after all", f.back},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			f.t = t
			part.run(t)
		}) {
			break
		}
	}
	f.t = t
	f.Empty()
}

// labelled changes a host's labels while it runs.
func (f *fleet) labelled(t *testing.T) {
	f.refused([]string{"--label", "rack=7"}, "rack")
	f.CLI("host", "label", "host-2", "rack=7")
	if got := f.create("racked", "--label", "rack=7"); got != "host-2" {
		t.Errorf("the environment for the label is on %s", got)
	}
	f.CLI("rm", "fuse-racked")
	f.CLI("host", "label", "host-2", "rack-")
	f.refused([]string{"--label", "rack=7"}, "rack")
}

// drained empties a host; the others keep what they have.
func (f *fleet) drained(t *testing.T) {
	for n := range 3 {
		f.create(fmt.Sprint("kept-", n), "--host", f.Host(n).ID())
	}
	f.CLI("host", "drain", "host-1", "--grace", "1s", "--deadline", "60s", "--wait")
	if all := f.environments(); len(all) != 2 || all["fuse-kept-0"].ID != "" {
		t.Errorf("after the drain there are %v", all)
	}
	if left := f.qemus()["host-1"]; len(left) != 0 {
		t.Errorf("the drained host runs %v", left)
	}
	if h := f.host(0); h.State != "cordoned" || h.Allocated.VMCount != 0 {
		t.Errorf("the drained host is %+v", h)
	}
	f.refused([]string{"--host", "host-1"}, "cordoned")
	f.CLI("host", "uncordon", "host-1")
	if got := f.create("kept-0", "--host", "host-1"); got != "host-1" {
		t.Errorf("the environment is on %s", got)
	}
	for n := range 3 {
		f.mark(fmt.Sprint("fuse-kept-", n))
	}
}

// drainCancelled stops a drain whose grace has not passed.
func (f *fleet) drainCancelled(t *testing.T) {
	f.create("slowly", "--host", "host-3")
	f.CLI("host", "drain", "host-3", "--grace", "10m", "--deadline", "30m")
	if o := f.Try("host", "drain", "host-3", "--grace", "1s"); o.Code == 0 {
		t.Error("a host is drained twice at a time")
	}
	if h := f.host(2); h.State != "draining" {
		t.Errorf("the host is %+v", h)
	}
	f.CLI("host", "drain", "host-3", "--cancel")
	f.settle()
	if h := f.host(2); h.State == "draining" || h.Allocated.VMCount != 2 {
		t.Errorf("after the drain was cancelled the host is %+v", h)
	}
	f.CLI("host", "uncordon", "host-3")
	f.CLI("rm", "fuse-slowly")
	f.CLI("rm", "fuse-kept-2")
	f.create("kept-2", "--host", "host-3")
	f.mark("fuse-kept-2")
}

// forgotten gives up a host that has lost its power.
func (f *fleet) forgotten(t *testing.T) {
	h := f.Host(2)
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
	if o := f.Try("host", "rm", h.ID()); o.Code == 0 || !strings.Contains(o.Err, "--forget") {
		t.Errorf("rm without --forget: %+v", o)
	}
	f.CLI("host", "rm", h.ID(), "--forget")
	if o := f.Try("get", "fuse-kept-2"); o.Code != 3 || !strings.Contains(o.Err, "host_lost") {
		t.Errorf("get after its host was forgotten: %+v", o)
	}
	if got := strings.Fields(f.CLI("host", "ls", "-o", "name")); slices.Contains(got, h.ID()) {
		t.Errorf("hosts: %v", got)
	}
	f.answers("fuse-kept-0")
	f.answers("fuse-kept-1")
	// Its task may begin anew at once.
	if got := f.create("kept-2"); got == h.ID() {
		t.Errorf("the environment is on %s", got)
	}
	f.mark("fuse-kept-2")
}

// back is the host that was forgotten, which was only off: at most one copy of
// an environment is left, the one that was decided.
func (f *fleet) back(t *testing.T) {
	h := f.Host(2)
	h.Boot()
	h.Register()
	f.becomes(2, "reachable")
	testkit.Eventually(t, time.Minute, "the host that came back holds nothing", func() bool { return len(h.Machines()) == 0 })
	f.settle()
	for _, id := range []string{"fuse-kept-0", "fuse-kept-1", "fuse-kept-2"} {
		f.answers(id)
	}
	testkit.Eventually(t, 30*time.Second, "it takes new environments", func() bool {
		o := f.Try(createArgs("new", "--host", h.ID())...)
		return o.Code == 0
	})
	f.CLI("rm", "fuse-new")
}

// TestPartitionedHostComesBack forgets a host that runs on behind a cut: when it
// is back its machine, which has been replaced, is ended, and no other.
func TestPartitionedHostComesBack(t *testing.T) {
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 2, ServerArgs: quick})}
	f.create("moved", "--host", "host-2")
	f.create("stays", "--host", "host-1")
	f.mark("fuse-stays")
	h := f.Host(1)
	h.Cut()
	f.becomes(1, "unreachable")
	f.CLI("host", "rm", h.ID(), "--forget")
	f.create("moved")
	f.mark("fuse-moved")
	if running := h.Running(); len(running) != 1 {
		t.Errorf("behind the cut there run %v", running)
	}
	h.Heal()
	h.Register()
	f.becomes(1, "reachable")
	testkit.Eventually(t, time.Minute, "the old copy is ended", func() bool { return len(h.Machines()) == 0 && len(h.Running()) == 0 })
	f.settle()
	f.answers("fuse-moved")
	f.answers("fuse-stays")
	f.Empty()
}

// TestJoin has hosts register themselves, and strangers refused.
func TestJoin(t *testing.T) {
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
	testkit.Eventually(t, 30*time.Second, "the host has joined", func() bool {
		return slices.Contains(strings.Fields(f.CLI("host", "ls", "-o", "name")), h.ID())
	})
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
