package hosts

import (
	"fmt"
	"slices"
	"strings"
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
		o.Sim = "boot=2s"
	}})}
	f.create("before", "--host", "host-1")
	h := f.Host(0)
	try := 0
	for !f.loseAnswer(h, fmt.Sprint("lost-", try)) {
		if try++; try == 5 {
			t.Fatal("the answer of no create could be cut off in time")
		}
	}
	task := fmt.Sprint("lost-", try)
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
	if _, there := f.environments()["fuse-"+task]; !there {
		if got := f.create(task, "--host", "host-1"); got != "host-1" {
			t.Errorf("the task begins anew on %s", got)
		}
	}
	f.Empty()
}

// loseAnswer creates on a host that is heard no more once it has begun. It returns
// false if the machine ran before, so that the answer may have been heard.
func (f *fleet) loseAnswer(h *rig.Host, task string) bool {
	f.t.Helper()
	before := len(h.Machines())
	made := make(chan rig.Outcome, 1)
	var creating sync.WaitGroup
	creating.Go(func() { made <- f.Try(createArgs(task, "--host", h.ID())...) })
	testkit.Eventually(f.t, 2*time.Minute, "the host makes the machine", func() bool { return len(h.Machines()) > before })
	h.CutOut()
	cut := time.Now()
	defer creating.Wait()
	defer h.Heal()
	// A short cut is shorter than the patience of the server, a long one is not.
	select {
	case o := <-made:
		if o.Code == 0 && ranAt(f.t, h, "fuse-"+task).Before(cut) {
			return false
		}
		if o.Code == 0 {
			f.t.Errorf("a create was acknowledged whose answer was lost: %+v", o)
		}
	case <-time.After(time.Duration(testkit.Count(4, 60)) * time.Second):
	}
	return true
}

// ranAt is when a host says that a machine began to run.
func ranAt(t *testing.T, h *rig.Host, id string) (at time.Time) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "the host says that "+id+" runs", func() bool {
		for line := range strings.Lines(h.Output()) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			if !strings.Contains(rest, "vm running") || !slices.Contains(strings.Fields(rest), "vm_id="+id) {
				continue
			}
			var err error
			if at, err = time.Parse(time.RFC3339Nano, stamp); err != nil {
				t.Fatal(err)
			}
			return true
		}
		return false
	})
	return at
}

// TestSlowLinks creates over links of a long way: 100 ms there and back do not
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
	const trip = 100 * time.Millisecond
	// A machine that has other things to do may be slow once, not each time.
	trips := time.Duration(100)
	for try := 0; try < 3 && trips > 6; try++ {
		near := best(fmt.Sprint("near-", try))
		for _, h := range f.Hosts() {
			h.Slow(trip/2, trip/20)
		}
		f.settle()
		far := best(fmt.Sprint("far-", try))
		for _, h := range f.Hosts() {
			h.Heal()
		}
		trips = (far - near) / trip
		t.Logf("a create over a near link takes %v, over one of %v there and back %v", near.Round(time.Millisecond), trip, far.Round(time.Millisecond))
		if far < trip {
			t.Errorf("the link is not slow: %v, and %v", near, far)
		}
	}
	if trips > 6 {
		t.Errorf("a create takes %d round trips", trips)
	}
	f.Empty()
}
