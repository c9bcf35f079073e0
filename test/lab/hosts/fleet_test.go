package hosts

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/lab/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

// fleet is a lab with what its tests look at.
type fleet struct {
	*rig.Lab
	t *testing.T
}

// environment is the part of an answer that is looked at.
type environment struct {
	ID     string `json:"id"`
	UID    string `json:"uid"`
	State  string `json:"state"`
	HostID string `json:"host_id"`
	Reason struct {
		Rule     string `json:"rule"`
		Evidence string `json:"evidence"`
	} `json:"end_reason"`
}

// environments are those that are listed, by id.
func (f *fleet) environments() map[string]environment {
	f.t.Helper()
	a, err := f.Do(http.MethodGet, "/v1/environments?limit=200", "")
	if err != nil || a.Status != http.StatusOK {
		f.t.Fatalf("list: %v %d %s", err, a.Status, a.Body)
	}
	var page struct {
		Environments []environment `json:"environments"`
	}
	a.JSON(f.t, &page)
	all := map[string]environment{}
	for _, e := range page.Environments {
		all[e.ID] = e
	}
	return all
}

// create makes a small environment and returns its host.
func (f *fleet) create(task string, flags ...string) string {
	f.t.Helper()
	f.CLI(createArgs(task, flags...)...)
	return f.environments()["fuse-"+task].HostID
}

func createArgs(task string, flags ...string) []string {
	return append([]string{"create", "--task-id", task, "--cpus", "1", "--ram-mb", "128", "--storage-gb", "1"}, flags...)
}

// refused creates an environment that no host may take; the message has to have
// each of the words.
func (f *fleet) refused(flags []string, words ...string) {
	f.t.Helper()
	o := f.Try(createArgs("refused", flags...)...)
	if o.Code == 0 {
		f.t.Errorf("create %v works", flags)
		f.CLI("rm", "fuse-refused")
		return
	}
	for _, w := range words {
		if !strings.Contains(o.Err, w) {
			f.t.Errorf("create %v: no %q in\n%s", flags, w, o.Err)
		}
	}
}

// hostState is what the API says of a host.
type hostState struct {
	State     string `json:"state"`
	Condition string `json:"condition"`
	Allocated struct {
		VMCount int `json:"vm_count"`
	} `json:"allocated"`
}

func (f *fleet) host(n int) (h hostState) {
	f.t.Helper()
	a, err := f.Do(http.MethodGet, "/v1/hosts/"+f.Host(n).ID(), "")
	if err != nil || a.Status != http.StatusOK {
		f.t.Fatalf("host %d: %v %d %s", n, err, a.Status, a.Body)
	}
	a.JSON(f.t, &h)
	return h
}

// becomes waits until a host's condition is another one.
func (f *fleet) becomes(n int, condition string) {
	f.t.Helper()
	testkit.Eventually(f.t, 2*time.Minute, f.Host(n).ID()+" is "+condition, func() bool { return f.host(n).Condition == condition })
}

// answers holds an environment to being the one that it was, and to work.
func (f *fleet) answers(id string) {
	f.t.Helper()
	if got := f.CLI("exec", id, "--", "cat", "/mark"); got != id+"\n" {
		f.t.Errorf("%s holds %q", id, got)
	}
}

func (f *fleet) mark(id string) {
	f.t.Helper()
	f.CLI("exec", id, "--", "sh", "-c", "echo "+id+" > /mark")
}

// qemus counts the machines that run on all hosts.
func (f *fleet) qemus() map[string][]string {
	f.t.Helper()
	all := map[string][]string{}
	for _, h := range f.Hosts() {
		if h.Up() {
			all[h.ID()] = h.Running()
		}
	}
	return all
}

// quick are flags with which a host that is cut off is noticed within seconds.
var quick = []string{"--host-unreachable-looks", "3", "--host-unreachable-after", "3s"}

// TestMachinesOnThreeHosts takes real machines on three hosts through a fleet's
// life.
func TestMachinesOnThreeHosts(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 3, ServerArgs: quick, Shape: func(n int, o *rig.HostOptions) {
		o.Labels = map[string]string{"disk": []string{"slow", "slow", "fast"}[n]}
		o.Region = []string{"north", "north", "south"}[n]
	}})}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"spread", f.spread},
		{"pins and labels", f.pins},
		{"cordon", f.cordon},
		{"cut off", f.cutOff},
		{"agent killed", f.agentKilled},
		{"rebooted", f.rebooted},
		{"drained", f.drained},
		{"killed and forgotten", f.forgotten},
		{"back after all", f.back},
		{"binpack", f.binpack},
		{"eight at once", f.eightAtOnce},
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

// Three environments go to three hosts.
func (f *fleet) spread(t *testing.T) {
	on := map[string]bool{}
	for n := range 3 {
		task := fmt.Sprint("spread-", n)
		on[f.create(task)] = true
		f.mark("fuse-" + task)
	}
	if len(on) != 3 {
		t.Errorf("three environments are on %v", slices.Sorted(maps.Keys(on)))
	}
	for id, names := range f.qemus() {
		if len(names) != 1 {
			t.Errorf("%s runs %v", id, names)
		}
	}
}

func (f *fleet) pins(t *testing.T) {
	for flag, want := range map[string]string{"--host=host-2": "host-2", "--label=disk=fast": "host-3"} {
		if got := f.create("chosen", flag); got != want {
			t.Errorf("%s: the environment is on %s", flag, got)
		}
		f.CLI("rm", "fuse-chosen")
	}
	f.refused([]string{"--host", "host-9"}, "host-9")
	f.refused([]string{"--label", "disk=fats"}, "fats", "fast")
	f.refused([]string{"--region", "suoth"}, "suoth", "south")
	f.refused([]string{"--host", "host-1", "--label", "disk=fast"}, "host-1")
}

func (f *fleet) cordon(t *testing.T) {
	f.CLI("host", "cordon", "host-1")
	f.CLI("host", "cordon", "host-3")
	if got := f.create("beside"); got != "host-2" {
		t.Errorf("with two hosts cordoned the environment is on %s", got)
	}
	f.refused([]string{"--host", "host-1"}, "cordoned")
	f.CLI("host", "uncordon", "host-1")
	f.CLI("host", "uncordon", "host-3")
	f.CLI("rm", "fuse-beside")
}

// A host that is cut off keeps its environments, and takes none.
func (f *fleet) cutOff(t *testing.T) {
	before, machines := f.environments(), f.qemus()
	h := f.Host(1)
	begin := time.Now()
	h.Cut()
	f.becomes(1, "unreachable")
	if got := f.create("meanwhile"); got == h.ID() {
		t.Errorf("a host that is cut off got an environment")
	}
	f.refused([]string{"--host", h.ID()}, h.ID())
	if o := f.Try("host", "rm", h.ID()); o.Code == 0 {
		t.Error("a host with environments is removed")
	}
	// Nothing tells that nothing happens: the time of the cut has to pass.
	<-time.After(time.Until(begin.Add(time.Duration(testkit.Count(10, 120)) * time.Second)))
	f.CLI("rm", "fuse-meanwhile")
	h.Heal()
	f.becomes(1, "reachable")
	f.settle()
	if after := f.environments(); !maps.Equal(before, after) {
		t.Errorf("environments before the cut: %v, after it: %v", before, after)
	}
	if after := f.qemus(); !maps.EqualFunc(machines, after, slices.Equal) {
		t.Errorf("machines before the cut: %v, after it: %v", machines, after)
	}
	for id := range before {
		f.answers(id)
	}
}

// settle waits for three whole rounds of the loop.
func (f *fleet) settle() {
	f.t.Helper()
	cycles := f.cycles()
	testkit.Eventually(f.t, 2*time.Minute, "three rounds of the loop", func() bool { return f.cycles() >= cycles+3 })
}

func (f *fleet) cycles() (n float64) {
	f.t.Helper()
	a, err := f.Do(http.MethodGet, "/metrics", "")
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(a.Body) {
		if v, ok := strings.CutPrefix(line, "orchestrator_reconcile_cycles_total "); ok {
			if _, err := fmt.Sscan(v, &n); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	return n
}

// An agent that is killed finds its machine again.
func (f *fleet) agentKilled(t *testing.T) {
	before, machines := f.environments(), f.qemus()
	h := f.Host(0)
	h.KillAgent()
	f.becomes(0, "unreachable")
	h.StartAgent()
	f.becomes(0, "reachable")
	f.settle()
	if after := f.environments(); !maps.Equal(before, after) {
		t.Errorf("environments before the agent's end: %v, after it: %v", before, after)
	}
	if after := f.qemus(); !maps.EqualFunc(machines, after, slices.Equal) {
		t.Errorf("machines before the agent's end: %v, after it: %v", machines, after)
	}
	for id, e := range before {
		if e.HostID == h.ID() {
			f.answers(id)
		}
	}
}

// A host that loses its power loses its environments, and nobody else's.
func (f *fleet) rebooted(t *testing.T) {
	before := f.environments()
	h := f.Host(2)
	h.Reboot()
	gone := ""
	for id, e := range before {
		if e.HostID == h.ID() {
			gone = id
		}
	}
	testkit.Eventually(t, 2*time.Minute, gone+" is gone with its host", func() bool {
		_, there := f.environments()[gone]
		return !there
	})
	for id, e := range before {
		if after, there := f.environments()[id]; e.HostID != h.ID() && (!there || after != e) {
			t.Errorf("%s was %v and is %v (%v), though its host ran on", id, e, after, there)
		}
	}
	if o := f.Try("get", gone); o.Code != 3 {
		t.Errorf("get %s: %+v", gone, o)
	}
	f.becomes(2, "reachable")
	testkit.Eventually(t, time.Minute, "the host has nothing any more", func() bool { return len(h.Machines()) == 0 })
	if got := f.create("again", "--host", h.ID()); got != h.ID() {
		t.Errorf("after the reboot an environment for the host is on %s", got)
	}
	f.CLI("rm", "fuse-again")
}

// Binpack fills one host before the next.
func (f *fleet) binpack(t *testing.T) {
	f.Empty()
	s := f.Server(0)
	s.Stop()
	s.Start("--placement", "binpack")
	on := map[string]bool{}
	for n := range 2 {
		on[f.create(fmt.Sprint("packed-", n))] = true
	}
	if len(on) != 1 {
		t.Errorf("two environments are on %v", slices.Sorted(maps.Keys(on)))
	}
	s.Stop()
	s.Start()
	f.Empty()
}

// Eight creates at once on two hosts.
func (f *fleet) eightAtOnce(t *testing.T) {
	f.CLI("host", "cordon", "host-3")
	begin := time.Now()
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			if o := f.Try(createArgs(fmt.Sprint("eight-", n))...); o.Code != 0 {
				t.Errorf("create %d: %+v", n, o)
			}
		})
	}
	wg.Wait()
	t.Logf("8 creates at once on 2 hosts: %.1f s", time.Since(begin).Seconds())
	on := map[string]int{}
	for _, e := range f.environments() {
		on[e.HostID]++
	}
	if on["host-1"] != 4 || on["host-2"] != 4 {
		t.Errorf("eight environments are on %v", on)
	}
	f.Empty()
	f.CLI("host", "uncordon", "host-3")
	for n := range f.Hosts() {
		if used := f.host(n).Allocated.VMCount; used != 0 {
			t.Errorf("host %d counts %d environments", n, used)
		}
	}
}
