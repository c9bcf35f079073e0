package hosts

import (
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/lab/rig"
)

// TestAnswersAreLost cuts one direction only: a host hears what it is to do, and
// nobody hears it. Whatever came of the create, once it is over hosts hold
// exactly what is listed, and the task can begin anew.
func TestAnswersAreLost(t *testing.T) {
	t.Parallel()
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 2, Driver: "sim", ServerArgs: quick, Shape: func(_ int, o *rig.HostOptions) {
		o.Sim = "boot=1s"
	}})}
	f.create("before", "--host", "host-1")
	h := f.Host(0)
	made := make(chan rig.Outcome, 1)
	var creating sync.WaitGroup
	creating.Go(func() { made <- f.Try(createArgs("lost", "--host", "host-1")...) })
	testkit.Eventually(t, 20*time.Second, "the host makes the machine", func() bool { return len(h.Machines()) == 2 })
	h.CutOut()
	// A short cut is shorter than the patience of the server, a long one is not.
	select {
	case o := <-made:
		if o.Code == 0 {
			t.Errorf("a create was acknowledged whose answer was lost: %+v", o)
		}
	case <-time.After(time.Duration(testkit.Count(4, 60)) * time.Second):
	}
	h.Heal()
	creating.Wait()
	f.becomes(0, "reachable")
	testkit.Eventually(t, time.Minute, "the host holds what is listed, no more and no less", func() bool {
		listed := 0
		for _, e := range f.environments() {
			if e.HostID == h.ID() && e.State == "running" {
				listed++
			}
		}
		return listed == len(f.environments()) && listed == len(h.Machines())
	})
	if e := f.environments()["fuse-before"]; e.State != "running" {
		t.Errorf("the environment that was there before is %+v", e)
	}
	if _, there := f.environments()["fuse-lost"]; !there {
		if got := f.create("lost", "--host", "host-1"); got != "host-1" {
			t.Errorf("the task begins anew on %s", got)
		}
	}
	f.Empty()
}

// TestSlowLinks creates over links of a long way: 40 ms there and back do not
// add up to more than a few round trips.
func TestSlowLinks(t *testing.T) {
	f := &fleet{t: t, Lab: rig.New(t, rig.Options{Hosts: 2, Driver: "sim"})}
	best := func(task string) time.Duration {
		took := time.Hour
		for n := range 5 {
			one, err := f.timed(task + string(rune('a'+n)))
			if err != nil {
				t.Fatal(err)
			}
			took = min(took, one)
		}
		return took
	}
	near := best("near-")
	for _, h := range f.Hosts() {
		h.Slow(20*time.Millisecond, 2*time.Millisecond)
	}
	f.settle()
	far := best("far-")
	t.Logf("a create over a near link takes %v, over one of 40 ms there and back %v", near.Round(time.Millisecond), far.Round(time.Millisecond))
	if far < near+40*time.Millisecond {
		t.Errorf("the link is not slow: %v, and %v", near, far)
	}
	if trips := (far - near).Milliseconds() / 40; trips > 6 {
		t.Errorf("a create takes %d round trips", trips)
	}
	for _, h := range f.Hosts() {
		h.Heal()
	}
	f.Empty()
}
