package playguard

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/playguard/rig"
)

// deployRows are about what runs: half-finished, changed from outside, gone
// with its host.
var deployRows = []row{
	{name: "T04 one-shot service", run: oneShot, both: true},
	{name: "T12 flaps", run: flaps},
	{name: "T13 compose killed in a recreate", run: composeKilled, both: true, long: true},
	{name: "T16 T21 link cut in an up", run: linkCutInUp, both: true, long: true},
	{name: "T19 worker killed", run: workerKilled, both: true},
	{name: "T22 a bad deploy leaves the old one", run: badDeploy, both: true, quick: true},
	{name: "T42 still starting", run: stillStarting},
	{name: "unchanged services keep running", run: unchangedKeep, both: true},
	{name: "a service is missing", run: serviceMissing, both: true},
	{name: "stopped and removed on the host", run: stoppedOnHost},
	{name: "stop and start", run: stopAndStart, both: true},
	{name: "compose file missing", run: fileMissing, both: true},
	{name: "T39 reboot", run: reboot, both: true, long: true},
	{name: "T09 T39 daemon killed", run: daemonKilled},
}

func oneShot(w *world) {
	p := w.Up("a", "services:\n"+service("web", "")+"  init:\n    image: "+dockertest.Image+"\n    network_mode: none\n    command: ['true']\n    restart: 'no'\nvolumes:\n  web:\n")
	for range 3 {
		if steps := w.sees(); !ruled(steps, decide.RuleConverged) {
			w.t.Errorf("%v", steps)
		}
		w.Later(w.Policy.Period)
	}
	w.state("a", model.StateRunning)
	if have := w.host.Containers(p.Project); !slices.Equal(have, []string{"init exited", "web running"}) {
		w.t.Errorf("%q", have)
	}
}

// What is bad in every second look only is never acted on.
func flaps(w *world) {
	p := w.Up("a", file("web"))
	id := w.ids(p)[0]
	for range 3 {
		w.hand(p, "kill", id)
		w.untouched(w.sees())
		w.Later(w.Policy.StrikeGap + time.Second)
		w.hand(p, "start", id)
		steps := w.sees()
		for _, s := range steps {
			if s.Works() {
				w.t.Errorf("%s", s)
			}
		}
		w.Later(w.Policy.StrikeGap + time.Second)
	}
	w.state("a", model.StateRunning)
	if have := w.ids(p); len(have) != 1 || have[0] != id {
		w.t.Errorf("%v, was %s", have, id)
	}
}

// version is a compose file whose service web differs with n; db stays.
func version(n int) string {
	return "services:\n" + service("web", fmt.Sprintf("    environment: {N: '%d'}\n", n)) + service("db", "") + "volumes:\n  web:\n  db:\n"
}

// rollout begins a rollout of another version, as a job does, and returns the
// name of its up, which is at work.
func (w *world) rollout(id model.PlaygroundID, n int) (op string, end func()) {
	w.t.Helper()
	w.Define(id, version(n))
	return w.beginUp(id, fmt.Sprint(n))
}

// beginUp begins what a defined playground is to be, as a job does.
func (w *world) beginUp(id model.PlaygroundID, tag string) (op string, end func()) {
	w.t.Helper()
	p := w.Rows[id]
	name := "f" + tag
	done, err := w.Start(p, name, decide.Files{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Wait(name)
	done()
	op = "u" + tag
	p.State, p.StateSince = model.StateInProgress, w.Now
	p.Op = model.Op{ID: op, Kind: model.OpUp, Started: w.Now, Epoch: w.Epoch}
	w.Rows[id], w.Jobs[id] = p, decide.JobNone
	end, err = w.Start(p, op, decide.Up{})
	if err != nil {
		w.t.Fatal(err)
	}
	return op, end
}

// upTime is how long an up takes here, so that moments are spread over it.
func (w *world) upTime(id model.PlaygroundID) time.Duration {
	w.t.Helper()
	from := time.Now()
	op, end := w.rollout(id, 1)
	w.Wait(op)
	end()
	took := time.Since(from)
	w.Passes(4)
	return took
}

func pause(d time.Duration) { <-time.After(d) }

// Whoever runs compose on the host dies in the middle of it: the next passes
// end with one container for each service, without force.
func composeKilled(w *world) {
	p := w.Up("a", version(0))
	took := w.upTime("a")
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	w.t.Logf("seed %d, an up takes %s", seed, took)
	for n := range testkit.Count(3, 20) {
		op, end := w.rollout("a", n+2)
		pause(time.Duration(random.Int64N(int64(took))))
		w.host.KillProcesses(p.Project.String()) // compose and the runner
		w.Wait(op)
		w.Later(w.Policy.StaleFast + time.Second)
		steps := w.Passes(10)
		end() // the daemon goes on with what Compose had asked of it, in its own time
		if w.t.Failed() || w.Rows["a"].State != model.StateRunning {
			w.t.Logf("steps: %v\nhost: %v", steps, w.host.Containers(p.Project))
		}
		w.state("a", model.StateRunning)
		w.running(p, "db", "web")
		w.Later(w.Policy.RepairWindow + time.Second)
	}
}

// Every connection is cut in the middle of an up, and a look is made in the
// meantime: the up ends as if nothing had been.
func linkCutInUp(w *world) {
	p := w.Up("a", version(0))
	took := w.upTime("a")
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	w.t.Logf("seed %d, an up takes %s", seed, took)
	cuts := 20
	if w.host.Flavour == rig.V1 { // which takes its time
		cuts = testkit.Count(5, 20)
	}
	for n := range cuts {
		op, end := w.rollout("a", n+2)
		pause(time.Duration(random.Int64N(int64(took))))
		if n%2 == 0 {
			w.host.Link.Cut()
		} else {
			w.host.SSH.KillSessions()
		}
		w.Disconnect()
		steps := w.Pass() // in the middle
		for _, s := range steps {
			if m, moved := s.Act.(decide.Move); s.Works() || moved && m.To != model.StateRunning {
				w.t.Errorf("in the middle of an up: %s", s)
			}
		}
		if pr := w.Wait(op); pr.Status != 0 || pr.Lost {
			w.t.Errorf("the up did not end well: %+v", pr)
		}
		end()
		w.running(p, "db", "web")
	}
	w.Passes(5)
	w.state("a", model.StateRunning)
}

// A job that nobody works on any more is taken up again: after two minutes if
// its worker is known to be dead, else after thirty.
func workerKilled(w *world) {
	for i, job := range []decide.Job{decide.JobNone, decide.JobUnknown} {
		id := model.PlaygroundID(fmt.Sprintf("w%d", i))
		p := w.Define(id, file("web"))
		p.State, p.StateSince = model.StateInProgress, w.Now
		w.Rows[id], w.Jobs[id] = p, job
		limit := []time.Duration{w.Policy.StaleFast, w.Policy.StaleSlow}[i]
		w.Later(limit - time.Second)
		w.Pass()
		w.state(id, model.StateInProgress)
		w.Later(2 * time.Second)
		w.Passes(5)
		w.state(id, model.StateRunning)
		w.running(p, "web")
	}
}

// An image that is not there fails an up before anything is taken away.
func badDeploy(w *world) {
	p := w.Up("a", file("web"))
	id := w.ids(p)
	w.Define("a", strings.Replace(file("web"), dockertest.Image, "127.0.0.1:1/none:1", 1))
	if failure := w.Job("a"); failure == "" {
		w.t.Error("the up did not fail")
	}
	if p := w.Rows["a"]; p.State != model.StateError || p.Failure.Class == model.ClassUnknown {
		w.t.Errorf("%s %+v", p.State, p.Failure)
	}
	w.running(p, "web")
	if have := w.ids(p); !slices.Equal(have, id) {
		w.t.Errorf("the old one is %v now, was %v", have, id)
	}
	w.Define("a", file("web"))
	if failure := w.Job("a"); failure != "" {
		w.t.Error(failure)
	}
	w.Passes(3)
	w.state("a", model.StateRunning)
	if have := w.ids(p); !slices.Equal(have, id) {
		w.t.Errorf("going back made %v of %v", have, id)
	}
}

func stillStarting(w *world) {
	check := "    healthcheck:\n      test: [CMD, cat, /tmp/ok]\n      interval: 200ms\n      timeout: 5s\n      retries: 1000\n      start_period: 1h\n"
	p := w.Define("a", fileOf([]string{"web"}, check))
	if failure := w.Job("a"); failure != "" {
		w.t.Fatal(failure)
	}
	for _, state := range []model.State{model.StateInProgress, model.StateRunning} {
		r := w.Rows["a"]
		r.State = state
		for range 3 {
			w.Later(time.Hour) // however old what runs is
			r.StateSince = w.Now
			w.Rows["a"] = r
			// That it ran in this life of the host may be noted.
			w.untouched(slices.DeleteFunc(w.sees(), func(s decide.Step) bool { return s.Rule == decide.RuleSight }))
			w.state("a", state)
		}
	}
	r := w.Rows["a"]
	r.State = model.StateInProgress
	w.Rows["a"] = r
	w.hand(p, "exec", w.ids(p)[0], "touch", "/tmp/ok")
	testkit.Eventually(w.t, 2*time.Minute, "it is healthy", func() bool {
		w.Pass()
		return w.Rows["a"].State == model.StateRunning
	})
}

func unchangedKeep(w *world) {
	p := w.Up("a", version(0))
	byService := func() map[string]string {
		return map[string]string{"web": w.host.ID(p.Project, "web"), "db": w.host.ID(p.Project, "db")}
	}
	before := byService()
	w.upTime("a")
	after := byService()
	if after["db"] != before["db"] || after["web"] == before["web"] {
		w.t.Errorf("a rollout of web alone made %v of %v", after, before)
	}
	w.state("a", model.StateRunning)
}

// The only finding is that a service is missing: plain up, and the others stay.
func serviceMissing(w *world) {
	p := w.Up("a", file("web", "db"))
	w.hand(p, "rm", "-f", w.host.ID(p.Project, "web"))
	before := w.ids(p)
	if steps := w.sees(); does(steps, model.OpUp) {
		w.t.Errorf("after one look: %v", steps)
	}
	w.Later(w.Policy.StrikeGap + time.Second)
	if steps := w.Passes(5); !does(steps, model.OpUp) || !ruled(steps, decide.RuleServices) {
		w.t.Errorf("%v", steps)
	}
	w.running(p, "db", "web")
	if after := w.ids(p); !slices.Contains(after, before[0]) {
		w.t.Errorf("the one that ran is gone: %v, was %v", after, before)
	}
}

// What somebody stops or removes on the host is stopped, after two looks, and
// nothing is done there; its volumes stay.
func stoppedOnHost(w *world) {
	p, q := w.Up("a", file("web")), w.Up("b", file("web"))
	id := w.ids(p)[0]
	testkit.Eventually(w.t, 2*time.Minute, "it listens to who tells it to end", func() bool {
		out, err := w.docker.Docker("top", id)
		return err == nil && strings.Contains(out, "sleep 100000")
	})
	w.hand(p, "stop", "-t", "120", id)
	w.hand(q, "rm", "-f", w.ids(q)[0])
	w.untouched(w.sees())
	w.Later(w.Policy.StrikeGap + time.Second)
	steps := w.Passes(3)
	for _, s := range steps {
		if s.Works() {
			w.t.Errorf("%s", s)
		}
	}
	w.state("a", model.StateStopped)
	w.state("b", model.StateStopped)
	if a, b := w.Rows["a"].Reason, w.Rows["b"].Reason; a == b || a == "" {
		w.t.Errorf("the reasons do not differ: %q, %q", a, b)
	}
	w.volume(q, "web", true)
}

// volume holds whether a volume of a playground is there.
func (w *world) volume(p model.Playground, name string, want bool) {
	w.t.Helper()
	full := p.Project.String() + "_" + name
	_, err := w.docker.Docker("volume", "inspect", full)
	if (err == nil) != want {
		w.t.Errorf("volume %s is there: %v, want %v", full, err == nil, want)
	}
}

func (w *world) request(id model.PlaygroundID, a model.Action) {
	w.t.Helper()
	p, err := w.Rows[id].Request(a, w.Now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Rows[id] = p
}

func stopAndStart(w *world) {
	p := w.Up("a", file("web"))
	w.hand(p, "exec", w.ids(p)[0], "touch", "/data/work")
	w.request("a", model.ActionStop)
	w.Passes(4)
	w.state("a", model.StateStopped)
	if have := w.host.Containers(p.Project); !slices.Equal(have, []string{"web exited"}) {
		w.t.Errorf("%q", have)
	}
	w.Later(w.Policy.ApplyGrace + time.Second)
	w.untouched(w.sees()) // nobody starts what a person stopped
	w.request("a", model.ActionStart)
	w.Job("a")
	w.Passes(3)
	w.state("a", model.StateRunning)
	w.running(p, "web")
	if _, err := w.docker.Docker("exec", w.ids(p)[0], "cat", "/data/work"); err != nil {
		w.t.Errorf("the work is gone: %v", err)
	}
}

// A file that is gone hides nothing that runs; it is written back.
func fileMissing(w *world) {
	p := w.Up("a", file("web"))
	ids := w.ids(p)
	at := filepath.Join(w.host.Dir(p.Project), "compose.yml")
	if err := os.Remove(at); err != nil {
		w.t.Fatal(err)
	}
	steps := w.Passes(4)
	if does(steps, model.OpUp) || !does(steps, model.OpFiles) {
		w.t.Errorf("%v", steps)
	}
	w.state("a", model.StateRunning)
	if _, err := os.Stat(at); err != nil {
		w.t.Error(err)
	}
	if have := w.ids(p); !slices.Equal(have, ids) {
		w.t.Errorf("%v, were %v", have, ids)
	}
}

// The host boots: everything is at rest with 0 in a life of its own. What a
// person wants up comes back, what a person stopped stays.
func reboot(w *world) {
	p, q := w.Up("a", file("web")), w.Up("b", file("web"))
	w.request("b", model.ActionStop)
	w.Passes(4)
	w.Ledger.ByHand("", func() {
		w.docker.Stop(w.t)
		w.host.Boot(2 + int(w.Epoch))
		w.docker.Run(w.t)
	})
	w.rebase()
	steps := w.Passes(6)
	if !ruled(steps, decide.RuleEvent) {
		w.t.Errorf("%v", steps)
	}
	w.state("a", model.StateRunning)
	w.running(p, "web")
	w.state("b", model.StateStopped)
	if have := w.host.Containers(q.Project); !slices.Equal(have, []string{"web exited"}) {
		w.t.Errorf("%q", have)
	}
	w.host.Boot(1)
}

// The daemon is killed with everything that runs, and comes back.
func daemonKilled(w *world) {
	p := w.Up("a", file("web"))
	w.Ledger.ByHand("", func() {
		w.docker.Kill()
		w.blind(0, "daemon") // unseen
		w.docker.Run(w.t)
	})
	w.rebase()
	steps := w.Passes(6)
	if !ruled(steps, decide.RuleEvent) {
		w.t.Errorf("%v", steps)
	}
	w.state("a", model.StateRunning)
	w.running(p, "web")
}
