package playguard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/testkit"
)

// endRows are about what ends by itself: expiry, and tricks.
var endRows = []row{
	{name: "expiry waits for uncommitted work", run: expiryWaits, both: true, long: true},
	{name: "expiry meets work that appears meanwhile", run: expiryMeetsWork},
	{name: "expiry by a host whose clock is off", run: expiryHostClock},
	{name: "reclaim killed at each step, and cut", run: reclaimCut, long: true},
	{name: "trick runs once", run: trickOnce, both: true},
	{name: "trick is tried again", run: trickAgain},
	{name: "trick is ended by its deadline", run: trickDeadline},
	{name: "trick and a daemon that dies", run: trickDaemonDies},
	{name: "trick and a reboot", run: trickReboot, long: true},
	{name: "trick helper runs once", run: trickHelperOnce, both: true},
}

// checkout clones a repository into the directory of a playground, and returns
// its path.
func (w *world) checkout(p model.Playground) string {
	w.t.Helper()
	at := filepath.Join(w.host.Dir(p.Project), "props", "web")
	script := `set -e; cd "$1"; git init -q --bare origin; git clone -q origin seed 2>/dev/null; cd seed; git config user.email a@b; git config user.name a
echo text >file; git add file; git commit -q -m one; git push -q origin HEAD; cd ..; mkdir -p "$(dirname "$2")"; git clone -q origin "$2"`
	if out, err := exec.CommandContext(w.t.Context(), "sh", "-c", script, "sh", w.t.TempDir(), at).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return at
}

// expires sets the end of a playground that was given three days.
func (w *world) expires(id model.PlaygroundID, in time.Duration) {
	p := w.Rows[id]
	p.Expiry = model.Until(w.Now.Add(in), w.Now.Add(in-72*time.Hour))
	w.Rows[id] = p
}

func (w *world) write(path, text string) {
	w.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// expiryWaits: one playground is gone when its time is over, and its neighbour
// waits because a file was not committed. It goes when that is done.
func expiryWaits(w *world) {
	gone, work := w.Up("a", file("web")), w.Up("b", file("web"))
	w.checkout(gone)
	at := filepath.Join(w.checkout(work), "notes")
	w.write(at, "three days of thought\n")
	w.expires("a", 30*time.Minute)
	w.expires("b", 30*time.Minute)
	if steps := w.sees(); !ruled(steps, decide.RuleWarn) || does(steps, model.OpReclaim) {
		w.t.Errorf("no warning half an hour ahead: %v", steps)
	}
	w.Later(29 * time.Minute)
	if steps := w.sees(); does(steps, model.OpReclaim) || ruled(steps, decide.RuleWarn) {
		w.t.Errorf("before its time, or warned twice: %v", steps)
	}
	w.Later(2 * time.Minute)
	w.sees()
	w.state("b", model.StateHasChanges)
	if why := w.Rows["b"].Reason; !strings.Contains(why, "web: 1 changed or untracked files") {
		w.t.Errorf("it is parked: %s", why)
	}
	w.Passes(6)
	if _, ok := w.Rows["a"]; ok || len(w.ids(gone)) > 0 || exists(w.host.Dir(gone.Project)) {
		w.t.Errorf("what is clean is not gone: %v %v", w.Rows["a"], w.ids(gone))
	}
	w.running(work, "web")
	if w.Rows["b"].Attention != model.AttentionExpired || !exists(at) {
		w.t.Errorf("%+v", w.Rows["b"])
	}
	// The work is pushed: nothing is lost any more.
	if out, err := exec.CommandContext(w.t.Context(), "sh", "-c", `cd "$1" && git -c user.email=a@b -c user.name=a -c core.hooksPath=/dev/null commit -qam x --allow-empty && git add . && git -c user.email=a@b -c user.name=a commit -qm notes && git push -q`, "sh", filepath.Dir(at)).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	w.Passes(6)
	if _, ok := w.Rows["b"]; ok || len(w.ids(work)) > 0 {
		w.t.Errorf("it stays though its work is pushed: %+v", w.Rows["b"])
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// expiryMeetsWork: somebody begins to work after the look that decided. The host
// looks again, and leaves everything as it is.
func expiryMeetsWork(w *world) {
	p := w.Up("a", file("web"))
	at := filepath.Join(w.checkout(p), "notes")
	w.expires("a", time.Minute)
	w.sees()
	w.Later(20 * time.Minute)
	steps := w.Decide(w.t.Context())
	if !does(steps, model.OpReclaim) {
		w.t.Fatalf("it is not due: %v", steps)
	}
	before := w.ids(p)
	w.write(at, "begun just now\n")
	w.Act(steps)
	w.sees() // the end of the operation
	w.state("a", model.StateHasChanges)
	w.running(p, "web")
	if !exists(at) || !slices.Equal(before, w.ids(p)) {
		w.t.Error("the work or its containers are gone")
	}
	// Given more time it is as it was.
	row := w.Rows["a"]
	row.Expiry, row.State = row.Expiry.Extended(time.Hour, w.Now), model.StateRunning
	w.Rows["a"] = row
	if steps := w.Passes(3); slices.ContainsFunc(steps, decide.Step.Works) {
		w.t.Errorf("%v", steps)
	}
	w.state("a", model.StateRunning)
}

// killAt kills the operation at work when it comes to each of these commands of
// docker, one after the other: before it, or after it if it says so, and does
// something right before. Looks go on.
func (w *world) killAt(do string, steps ...string) (left func() []string, restore func()) {
	w.t.Helper()
	list := filepath.Join(w.t.TempDir(), "steps")
	w.write(list, strings.Join(steps, "\n")+"\n")
	restore = w.host.Shim("docker", fmt.Sprintf(`next=$(head -n 1 %[1]s); pid=
for op in %[2]s/ops/%[3]s/*; do [ -f "$op/exit" ] || { p=$(cut -d" " -f1 "$op/pid" 2>/dev/null) && grep -qs "${op##*/}" "/proc/$p/cmdline" && pid=$p; }; done
case ${pid:+$next} in
"$1") sed -i 1d %[1]s; %[4]s; kill -9 "$pid"; exit 1 ;;
"after $1") /usr/bin/docker "$@"; sed -i 1d %[1]s; %[4]s; kill -9 "$pid"; exit 1 ;;
esac
exec /usr/bin/docker "$@"`, list, w.host.Root, w.Runner.Installation, do))
	return func() []string {
		raw, err := os.ReadFile(list)
		if err != nil {
			w.t.Fatal(err)
		}
		return strings.Fields(strings.ReplaceAll(string(raw), "after ", "after-"))
	}, restore
}

// reclaimCut: the host kills a reclaim at each of its steps, one try after the
// other; what is clean is gone in the end, and what holds work, which appears right
// before the kill, is there. A connection that is cut changes nothing.
func reclaimCut(w *world) {
	gone, work, cut := w.Up("a", file("web")), w.Up("b", file("web")), w.Up("c", file("web"))
	w.checkout(gone)
	notes := filepath.Join(w.checkout(work), "notes")
	w.checkout(cut)

	// Work appears after the decision, and the reclaim dies when it has stopped what ran.
	w.expires("b", time.Minute)
	w.sees()
	w.Later(20 * time.Minute)
	steps := w.Decide(w.t.Context())
	if !does(steps, model.OpReclaim) {
		w.t.Fatalf("it is not due: %v", steps)
	}
	left, restore := w.killAt("echo begun just now >"+notes, "after stop")
	w.Act(steps)
	restore()
	w.Later(w.Policy.StaleFast + time.Second)
	w.Passes(6)
	if p, ok := w.Rows["b"]; !ok || !exists(notes) || p.State == model.StateDestroying || len(left()) > 0 {
		w.t.Errorf("the work is there: %v, %+v, not killed at %v", exists(notes), p, left())
	}
	w.volume(work, "web", true)

	// A clean one is killed again and again.
	w.expires("a", time.Minute)
	w.sees()
	w.Later(20 * time.Minute)
	moments := []string{"after stop", "rm", "volume"}
	if testkit.Count(0, 1) == 1 {
		moments = []string{"ps", "stop", "after stop", "rm", "after rm", "network", "volume", "after volume"}
	}
	left, restore = w.killAt(":", moments...)
	for range 20 {
		if w.Passes(2); len(left()) == 0 {
			break
		}
		w.Later(w.Policy.StaleFast + time.Second)
	}
	restore()
	for range 10 {
		if _, ok := w.Rows["a"]; !ok {
			break
		}
		w.Later(w.Policy.StaleFast + time.Second)
		w.Passes(2)
	}
	if p, ok := w.Rows["a"]; ok || len(left()) > 0 || len(w.ids(gone)) > 0 || exists(w.host.Dir(gone.Project)) {
		w.t.Errorf("it is %+v, has %v, and was not killed at %v", p, w.ids(gone), left())
	}

	// The connection goes, the operation stays.
	end, err := w.Start(cut, "cut", decide.Reclaim{Volumes: []string{cut.Project.String() + "_web"}})
	defer end()
	if err != nil {
		w.t.Fatal(err)
	}
	w.host.Link.Cut()
	w.Disconnect()
	if pr := w.Wait("cut"); pr.Status != 0 || pr.Lost || len(w.ids(cut)) > 0 || exists(w.host.Dir(cut.Project)) {
		w.t.Errorf("%+v, it has %v", pr, w.ids(cut))
	}
}

// expiryHostClock: only our clock counts.
func expiryHostClock(w *world) {
	p := w.Up("a", file("web"))
	w.expires("a", 30*time.Minute)
	w.sees()
	restore := w.host.Shim("date", `[ "$1" = +%s ] || exec /bin/date "$@"; echo $(($(/bin/date +%s) + 3600))`)
	defer restore()
	steps := w.sees()
	if host, _ := w.Last.Host(); time.Until(host.Clock).Abs() < 50*time.Minute {
		w.t.Fatalf("the host's clock is not off: %s", host.Clock)
	}
	if slices.ContainsFunc(steps, decide.Step.Works) {
		w.t.Errorf("%v", steps)
	}
	w.state("a", model.StateRunning)
	w.running(p, "web")
}

// job is a compose file of a trick whose only service runs a script.
func jobFile(script string) string {
	return fmt.Sprintf("services:\n  job:\n    image: %s\n    command: [sh, -c, %q]\n    network_mode: none\n    restart: \"no\"\n    volumes: ['data:/data']\nvolumes:\n  data:\n", dockertest.Image, script)
}

// trick defines a job and begins it as its creation job does.
func (w *world) trick(id model.PlaygroundID, script string, t model.Trick) model.Playground {
	w.t.Helper()
	return w.trickOf(id, jobFile(script), t)
}

func (w *world) trickOf(id model.PlaygroundID, file string, t model.Trick) model.Playground {
	w.t.Helper()
	p := w.Define(id, file)
	t.Watch, t.Since, t.Attempt = []string{"job"}, w.Now, 1
	p.Intent, p.Trick = model.IntentJob, &t
	w.Rows[id] = p
	if failure := w.Job(id); failure != "" {
		w.t.Fatal(failure)
	}
	return w.Rows[id]
}

// until makes passes, a little apart, until the trick is as it should be.
func (w *world) until(id model.PlaygroundID, what string, is func(p model.Playground) bool) (all []decide.Step) {
	w.t.Helper()
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
		all = append(all, w.Pass()...)
		if is(w.Rows[id]) {
			return all
		}
		if p := w.Rows[id]; p.Trick != nil && !p.Trick.Open() && p.Trick.Last().Logs == model.LogsOwed {
			t := *p.Trick // nobody brings logs in here
			t.Attempts = slices.Clone(t.Attempts)
			t.Attempts[len(t.Attempts)-1].Logs = model.LogsKept
			p.Trick = &t
			w.Rows[id] = p
		}
		w.Later(w.Policy.StrikeGap + time.Second)
	}
	w.t.Fatalf("it is not %s: %+v %+v", what, w.Rows[id], w.Rows[id].Trick)
	return nil
}

// trickReboot: the host goes down in the middle of a trick in good order: what ends
// with 0 when it is told to has not done its work. The next attempt has its chance.
func trickReboot(w *world) {
	w.trick("a", `trap "exit 0" TERM; [ -e /data/again ] && exit 0; touch /data/again; sleep 100000 & wait`, model.Trick{Retries: 1, Backoff: time.Minute})
	w.until("a", "running", func(p model.Playground) bool { return p.State == model.StateRunning })
	w.Pass() // notes this life of the host
	w.Ledger.ByHand("", func() {
		w.docker.Stop(w.t)
		w.host.Boot(2 + int(w.Epoch))
		w.docker.Run(w.t)
	})
	w.rebase()
	w.until("a", "completed", completed)
	t := w.Rows["a"].Trick
	if len(t.Attempts) != 2 || t.Attempts[0].End != model.TrickInterrupted || t.Attempts[0].Code == 0 || t.Attempts[1].Code != 0 || t.Attempts[1].End != "" {
		w.t.Errorf("attempts %+v", t.Attempts)
	}
	w.host.Boot(1)
}

// trickHelperOnce: the up of a trick is cut between its helper and its job. The next
// one starts the job, and not the helper, which has changed something.
func trickHelperOnce(w *world) {
	w.Tricks = true
	file := "services:\n  helper:\n    image: " + dockertest.Image + "\n    command: [sh, -c, 'echo once >>/data/runs']\n    network_mode: none\n    volumes: ['data:/data']\n" +
		strings.Replace(strings.TrimPrefix(jobFile(`trap "exit 0" TERM; sleep 100000 & wait`), "services:\n"), "  job:\n",
			"  job:\n    x-fuse: {job: true}\n    depends_on: {helper: {condition: service_completed_successfully}}\n", 1)
	p := w.trickOf("a", file, model.Trick{})
	ids := w.ids(p)
	w.hand(p, "rm", "-f", w.host.ID(p.Project, "job")) // as if it had not come to that
	row := w.Rows["a"]
	row.State, row.Op, row.StateSince = model.StateInProgress, model.Op{}, w.Now.Add(-time.Hour)
	w.Rows["a"], w.Jobs["a"] = row, decide.JobNone
	steps := w.until("a", "running", func(p model.Playground) bool { return p.State == model.StateRunning })
	out, err := w.docker.Docker("exec", w.host.ID(p.Project, "job"), "cat", "/data/runs")
	if err != nil || out != "once" {
		w.t.Errorf("the helper ran %q %v: %v", out, err, steps)
	}
	if now := w.ids(p); len(now) != 2 || !slices.Contains(ids, now[0]) && !slices.Contains(ids, now[1]) {
		w.t.Errorf("containers %v, were %v", now, ids)
	}
}

func completed(p model.Playground) bool { return p.State == model.StateCompleted }

// trickOnce: what a job exits with is its trick's code, also when everything
// that is remembered of its start is lost, and what it leaves is taken away.
func trickOnce(w *world) {
	p := w.trick("a", "echo once >>/data/runs; exit 7", model.Trick{})
	row := w.Rows["a"] // as a server finds it that comes back much later
	row.State, row.Op, row.StateSince = model.StateInProgress, model.Op{}, w.Now.Add(-time.Hour)
	w.Rows["a"], w.Jobs["a"] = row, decide.JobNone
	steps := w.until("a", "completed", completed)
	if does(steps, model.OpUp) {
		w.t.Errorf("it was brought up again: %v", steps)
	}
	if last := w.Rows["a"].Trick.Last(); last.Code != 7 || last.N != 1 || last.End != "" {
		w.t.Errorf("its end is %+v", last)
	}
	w.Passes(4)
	w.state("a", model.StateCompleted)
	if len(w.ids(p)) > 0 || exists(w.host.Dir(p.Project)) {
		w.t.Errorf("it leaves %v", w.ids(p))
	}
}

// trickAgain: the second attempt has containers of its own, and its result is
// the trick's.
func trickAgain(w *world) {
	w.trick("a", "echo again >>/data/runs; [ $(wc -l </data/runs) -gt 1 ]", model.Trick{Retries: 2, Backoff: time.Minute})
	first := w.ids(w.Rows["a"])
	w.until("a", "in its second attempt", func(p model.Playground) bool { return p.Trick.Attempt == 2 })
	if slices.Equal(first, w.ids(w.Rows["a"])) {
		w.t.Error("it runs in the same container")
	}
	w.until("a", "completed", completed)
	t := w.Rows["a"].Trick
	if len(t.Attempts) != 2 || t.Attempts[0].Code != 1 || t.Attempts[1].Code != 0 {
		w.t.Errorf("attempts %+v", t.Attempts)
	}
}

// trickDeadline: what runs too long is stopped.
func trickDeadline(w *world) {
	w.trick("a", `trap "exit 0" TERM; sleep 100000 & wait`, model.Trick{Deadline: 10 * time.Minute})
	w.until("a", "running", func(p model.Playground) bool { return p.State == model.StateRunning })
	w.Later(11 * time.Minute)
	steps := w.until("a", "completed", completed)
	if last := w.Rows["a"].Trick.Last(); last.Code != model.CodeDeadline || last.End != model.TrickDeadline || !does(steps, model.OpStop) {
		w.t.Errorf("its end is %+v", last)
	}
}

// trickDaemonDies: a daemon that is killed, and the job with it, is no success
// of the job, and it is not run again unless that was asked for.
func trickDaemonDies(w *world) {
	w.trick("a", `trap "exit 0" TERM; sleep 100000 & wait`, model.Trick{})
	w.until("a", "running", func(p model.Playground) bool { return p.State == model.StateRunning })
	w.Pass() // notes this life of the host
	w.Ledger.ByHand("", func() {
		w.docker.Kill()
		w.docker.Run(w.t)
	})
	w.rebase()
	steps := w.until("a", "completed", completed)
	last := w.Rows["a"].Trick.Last()
	if last.Code == 0 || last.End != model.TrickInterrupted || does(steps, model.OpUp) {
		w.t.Errorf("its end is %+v: %v", last, steps)
	}
}
