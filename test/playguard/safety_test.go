package playguard

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

// safetyRows are about who may act, and on what.
var safetyRows = []row{
	{name: "T14 T40 destroy goes on until nothing is left", run: destroyGoesOn, both: true, quick: true},
	{name: "files of another user", run: filesOfAnother, long: true},
	{name: "T20 two at once", run: twoAtOnce, both: true},
	{name: "T25 lock of a killed operation", run: lockGoesWithProcess},
	{name: "T26 lease stolen", run: leaseStolen, both: true, quick: true},
	{name: "T27 T28 T29 volumes", run: volumesStay, both: true},
	{name: "T31 T34 somebody else's directory", run: othersDirectory, both: true},
	{name: "T33 records rolled back", run: recordsRolledBack},
	{name: "T36 two installations", run: twoInstallations, both: true, long: true},
	{name: "foreign project of our name", run: foreignProject},
	{name: "T37 T38 dirty checkouts", run: dirtyCheckouts},
}

func destroyGoesOn(w *world) {
	p := w.Up("a", file("web", "db"))
	w.request("a", model.ActionDestroy)
	restore := w.host.Shim("docker", `case "$1" in rm) exit 1 ;; esac; exec /usr/bin/docker "$@"`)
	w.Passes(3)
	w.state("a", model.StateDestroying)
	restore()
	w.Passes(8)
	if _, ok := w.Rows["a"]; ok {
		w.t.Errorf("its row is still there: %+v", w.Rows["a"])
	}
	if have := w.host.Containers(p.Project); len(have) != 0 {
		w.t.Errorf("%q", have)
	}
	w.volume(p, "web", false)
	if _, err := os.Stat(w.host.Dir(p.Project)); !os.IsNotExist(err) {
		w.t.Errorf("its directory: %v", err)
	}
}

// Containers leave files that the SSH user may not remove. A destroy takes the rest
// away, says once what a person has to do, and waits for that; where people allow
// containers with paths of the host the daemon removes them.
func filesOfAnother(w *world) {
	const protected = `case "$*" in */data*) echo "rm: cannot remove 'data': Permission denied" >&2; exit 1 ;; esac; exec /bin/rm "$@"`
	for _, id := range []model.PlaygroundID{"a", "b"} {
		p := w.Up(id, file("web"))
		if err := os.MkdirAll(filepath.Join(w.host.Dir(p.Project), "data", "of root"), 0o755); err != nil {
			w.t.Fatal(err)
		}
		restore := w.host.Shim("rm", protected)
		w.request(id, model.ActionDestroy)
		steps := w.Passes(3)
		if r := w.Rows[id]; r.State != model.StateDestroying || r.Attention != model.AttentionLeft || !does(steps, model.OpDestroy) {
			w.t.Errorf("%s: %s %q %v", id, r.State, r.Attention, steps)
		}
		if have := w.host.Containers(p.Project); len(have) != 0 {
			w.t.Errorf("%q", have)
		}
		w.volume(p, "web", false)
		if steps := w.Passes(3); does(steps, model.OpDestroy) || !refusedBy(steps, id, decide.GuardBackoff) {
			w.t.Errorf("tried again at once: %v", steps)
		}
		if id == "b" {
			req := runner.Request{Op: "daemon", Epoch: w.Epoch, Project: p.Project, Playground: id, Verb: decide.VerbOf(decide.Destroy{}), Limit: time.Minute, Payload: runner.ByDaemon}
			w.Ledger.ByHand(p.Project.String(), func() {
				if err := w.Runner.Start(w.t.Context(), w.Conn(), req); err != nil {
					w.t.Fatal(err)
				}
				if pr := w.Wait("daemon"); pr.Status != 0 {
					w.t.Errorf("by the daemon: %+v", pr)
				}
			})
		}
		restore()
		if id == "a" { // a person removes them
			if err := os.RemoveAll(w.host.Dir(p.Project)); err != nil {
				w.t.Fatal(err)
			}
		}
		w.Passes(4)
		if _, ok := w.Rows[id]; ok {
			w.t.Errorf("its row is still there: %+v", w.Rows[id])
		}
		if _, err := os.Stat(w.host.Dir(p.Project)); !os.IsNotExist(err) {
			w.t.Errorf("its directory: %v", err)
		}
	}
}

// Two ups of one project at once: one is refused, and there is one set of
// containers.
func twoAtOnce(w *world) {
	p := w.Up("a", version(0))
	w.Define("a", version(1))
	f, err := w.Start(p, "f", decide.Files{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Wait("f")
	f()
	w.Conn()
	// The one that begins is at work until all have their answer.
	open := filepath.Join(w.t.TempDir(), "open")
	restore := w.host.Shim("docker", `[ "$1" != compose ] || while [ ! -e `+open+` ]; do sleep 0.1; done; exec /usr/bin/docker "$@"`)
	defer restore()
	var wg sync.WaitGroup
	errs, ends := make([]error, 3), make([]func(), 3)
	for i := range errs {
		wg.Go(func() { ends[i], errs[i] = w.Start(p, fmt.Sprintf("u%d", i), decide.Up{}) })
	}
	wg.Wait()
	w.write(open, "")
	began := 0
	for i, err := range errs {
		switch {
		case err == nil:
			began++
			w.Wait(fmt.Sprintf("u%d", i))
		case !errors.Is(err, runner.ErrSuperseded):
			w.t.Error(err)
		}
		ends[i]()
	}
	if began != 1 {
		w.t.Errorf("%d of 3 began", began)
	}
	w.running(p, "db", "web")
}

// The kernel's lock is gone with the processes that held it, and not before: the
// shell alone is killed, then what it had begun.
func lockGoesWithProcess(w *world) {
	p := w.Up("a", version(0))
	const stuck = `case " $* " in *" up "*) while :; do /bin/sleep 0.2; done ;; esac; exec /usr/bin/`
	restores := []func(){w.host.Shim("docker", stuck+`docker "$@"`), w.host.Shim("docker-compose", stuck+`docker-compose "$@"`)}
	end, err := w.Start(p, "stuck", decide.Up{})
	if err != nil {
		w.t.Fatal(err)
	}
	refused := func(op, what string) {
		w.t.Helper()
		if _, err := w.Start(p, op, decide.Stop{}); !errors.Is(err, runner.ErrSuperseded) {
			w.t.Errorf("beside %s: %v", what, err)
		}
		if pr, err := w.Runner.Poll(w.t.Context(), w.Conn(), "stuck"); err != nil || !pr.Running {
			w.t.Errorf("%s is %+v %v", what, pr, err)
		}
	}
	refused("second", "an operation at work")
	// The shell has its kind among its arguments, too, but no flag of Compose's.
	testkit.Eventually(w.t, 2*time.Minute, "Compose is at work", func() bool { return w.host.Processes("-d") > 0 })
	w.host.KillProcesses("run")
	refused("third", "what a killed operation began")
	w.host.KillProcesses("-d")
	end()
	for _, restore := range restores {
		restore()
	}
	if pr := w.Wait("stuck"); !pr.Lost {
		w.t.Errorf("%+v", pr)
	}
	end, err = w.Start(p, "fourth", decide.Up{})
	if err != nil {
		w.t.Errorf("after it was killed: %v", err)
	}
	w.Wait("fourth")
	end()
	w.running(p, "db", "web")
}

// Another reconciler has taken the lease: not one operation of the first is
// begun, whatever it had decided.
func leaseStolen(w *world) {
	p := w.Up("a", file("web"))
	w.hand(p, "rm", "-f", w.ids(p)[0])
	w.request("a", model.ActionStop)
	old := w.Decide(w.t.Context()) // made before the lease was lost
	rival := w.Rival()
	q := rival.Rows["a"]
	q.State, q.Intent = model.StatePending, model.IntentUp
	rival.Rows["a"] = q
	if failure := rival.Job("a"); failure != "" {
		w.t.Fatal(failure)
	}
	spans := len(w.Ledger.Spans())
	w.Act(old)
	for i, op := range []decide.Op{decide.Up{}, decide.Stop{}, decide.Down{}, decide.Files{}, decide.Destroy{Volumes: []string{p.Project.String() + "_web"}}} {
		end, err := w.Start(p, fmt.Sprintf("late%d", i), op)
		end()
		if !errors.Is(err, runner.ErrSuperseded) {
			w.t.Errorf("%T of an older epoch: %v", op, err)
		}
	}
	for _, s := range w.Ledger.Spans()[spans:] {
		pr, err := w.Runner.Poll(w.t.Context(), w.Conn(), s.Op)
		if err != nil || pr.Known {
			w.t.Errorf("%s left a trace on the host: %+v %v", s.Op, pr, err)
		}
	}
	w.running(p, "web")
	if steps := w.sees(); !ruled(steps, decide.RuleEpoch) {
		w.t.Errorf("it does not see that it is not the one: %v", steps)
	}
}

// Nothing but destroy takes a volume, and that takes the playground's own only.
func volumesStay(w *world) {
	p := w.Up("a", file("web"))
	w.hand(p, "exec", w.ids(p)[0], "touch", "/data/work")
	w.Ledger.ByHand(p.Project.String(), func() { // of the project's name and nobody's label
		if _, err := w.docker.Docker("volume", "create", p.Project.String()+"_kept"); err != nil {
			w.t.Fatal(err)
		}
	})
	w.rebase()
	for i, op := range []decide.Op{decide.Stop{}, decide.Up{}, decide.Down{}, decide.Files{}, decide.Up{}} {
		name := fmt.Sprintf("o%d", i)
		end, err := w.Start(p, name, op)
		if err != nil {
			w.t.Fatal(err)
		}
		w.Wait(name)
		end()
		w.volume(p, "web", true)
	}
	if _, err := w.docker.Docker("exec", w.ids(p)[0], "cat", "/data/work"); err != nil {
		w.t.Errorf("the work is gone: %v", err)
	}
	w.request("a", model.ActionDestroy)
	w.Passes(6)
	w.volume(p, "web", false)
	w.volume(p, "kept", true)
}

// A directory under our name whose marker is not ours, or that is a link, is
// not touched, whatever is asked for.
func othersDirectory(w *world) {
	p := w.Up("a", file("web"))
	dir := w.host.Dir(p.Project)
	marker := filepath.Join(dir, ".fuse", "owner.json")
	ours, err := os.ReadFile(marker)
	if err != nil {
		w.t.Fatal(err)
	}
	for what, text := range map[string]string{
		"another playground":   strings.Replace(string(ours), `"playground": "a"`, `"playground": "z"`, 1),
		"another installation": strings.Replace(string(ours), `"installation": "`, `"installation": "x`, 1),
		"half a marker":        string(ours[:len(ours)/2]),
		"no marker":            "",
	} {
		if err := os.WriteFile(marker, []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
		w.request("a", model.ActionDestroy)
		steps := w.sees()
		if !refusedBy(steps, "a", decide.GuardForeign) {
			w.t.Errorf("%s: %v", what, steps)
		}
		for _, op := range []decide.Op{decide.Up{}, decide.Stop{}, decide.Files{}, decide.Destroy{Volumes: []string{p.Project.String() + "_web"}}} {
			end, err := w.Start(p, strings.ReplaceAll(fmt.Sprintf("%T-%s", op, what), " ", ""), op)
			end()
			if !errors.Is(err, runner.ErrNotOurs) {
				w.t.Errorf("%s, %T: %v", what, op, err)
			}
		}
		r := w.Rows["a"]
		r.State, r.Intent = model.StateRunning, model.IntentUp
		w.Rows["a"] = r
	}
	if err := os.WriteFile(marker, ours, 0o600); err != nil {
		w.t.Fatal(err)
	}
	aside := dir + "-elsewhere"
	if err := errors.Join(os.Rename(dir, aside), os.Symlink(aside, dir)); err != nil {
		w.t.Fatal(err)
	}
	end, err := w.Start(p, "link", decide.Destroy{})
	end()
	if !errors.Is(err, runner.ErrNotOurs) {
		w.t.Errorf("a link: %v", err)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(aside, dir)); err != nil {
		w.t.Fatal(err)
	}
	w.running(p, "web")
}

// The records are older than the host: nothing is swept, nothing is done, and
// people are told.
func recordsRolledBack(w *world) {
	p := w.Up("a", file("web"))
	rival := w.Rival()
	rival.Up("b", file("web")) // what the older records do not know
	delete(w.Rows, "b")
	steps := w.sees()
	if !refusedBy(steps, "a", decide.GuardSuperseded) || !ruled(steps, decide.RuleEpoch) {
		w.t.Errorf("%v", steps)
	}
	for _, s := range steps {
		if s.Works() || s.Writes() {
			w.t.Errorf("%s", s)
		}
	}
	// An empty database with a lease of its own, as new as that of the host.
	w.Rows = map[model.PlaygroundID]model.Playground{}
	w.Epoch = w.Ledger.Take()
	for range 3 {
		for _, s := range w.sees() {
			if _, report := s.Act.(decide.Report); !report || s.Works() || s.Writes() {
				w.t.Errorf("%s", s)
			}
		}
		w.Later(w.Policy.Period)
	}
	w.running(p, "web")
}

// Each installation sees its own, and only that, though they share the place
// on the host and the daemon.
func twoInstallations(w *world) {
	other := w.bench.world(w.t)
	w.with = append(w.with, other)
	w.rebase()
	p, q := w.Up("a", file("web")), other.Up("b", file("web"))
	for range 3 {
		for _, me := range []*world{w, other} {
			if steps := me.sees(); len(steps) != 1 || !ruled(steps, decide.RuleConverged) {
				w.t.Errorf("%v", steps)
			}
			me.Later(w.Policy.Period)
		}
	}
	other.request("b", model.ActionDestroy)
	other.Passes(6)
	if have := w.host.Containers(q.Project); len(have) != 0 {
		w.t.Errorf("%q", have)
	}
	w.running(p, "web")
	w.volume(p, "web", true)
}

// A foreign project has our name: we keep away from it.
func foreignProject(w *world) {
	p := w.Define("a", file("web"))
	w.hand(p, "run", "-d", "--name", "stranger", "--network", "none", "--label", "com.docker.compose.project="+p.Project.String(),
		"--label", "com.docker.compose.service=web", dockertest.Image, "sleep", "3600")
	w.rebase()
	for range 3 {
		steps := w.sees()
		if !refusedBy(steps, "a", decide.GuardForeign) {
			w.t.Errorf("%v", steps)
		}
		for _, s := range steps {
			if s.Works() {
				w.t.Errorf("%s", s)
			}
		}
		w.Later(w.Policy.Period)
	}
	if w.Rows["a"].Attention != model.AttentionForeign {
		w.t.Errorf("%+v", w.Rows["a"].Attention)
	}
	if have := w.host.Containers(p.Project); !slices.Equal(have, []string{"web running"}) {
		w.t.Errorf("%q", have)
	}
	w.hand(p, "rm", "-f", "stranger")
	w.rebase()
}

// What cannot be made for want of room is an error that people see, and is not
// tried again and again. What runs goes on.
func diskFull(w *world) {
	p := w.Up("a", file("web"))
	fill := filepath.Join(w.docker.Data(), "filled")
	f, err := os.Create(fill)
	if err != nil {
		w.t.Fatal(err)
	}
	chunk := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(chunk)
	}
	size, serr := f.Seek(0, io.SeekEnd)
	if err := errors.Join(serr, f.Truncate(size-1<<20), f.Close()); err != nil { // the daemon itself needs some
		w.t.Fatal(err)
	}
	w.Define("b", file("web"))
	if failure := w.Job("b"); failure == "" {
		w.t.Error("an up without room succeeded")
	}
	if f := w.Rows["b"].Failure; f.Category != model.CategoryDiskFull || f.Temporary() {
		w.t.Errorf("%+v", f)
	}
	for range 5 {
		for _, s := range w.sees() {
			if s.Works() {
				w.t.Errorf("tried again: %s", s)
			}
		}
		w.Later(w.Policy.RepairWindow)
	}
	w.state("b", model.StateError)
	w.running(p, "web")
	if err := os.Remove(fill); err != nil {
		w.t.Fatal(err)
	}
	w.request("b", model.ActionRetryCompose)
	if failure := w.Job("b"); failure != "" {
		w.t.Error(failure)
	}
	w.Passes(3)
	w.state("b", model.StateRunning)
}

// checkouts are the ways in which a working copy holds somebody's work.
var checkouts = map[string]string{
	"clean":     ``,
	"modified":  `echo more >>file`,
	"untracked": `echo new >new`,
	"staged":    `echo more >>file; git add file`,
	"unpushed":  `git commit -q --allow-empty -m more`,
	"stash":     `echo more >>file; git stash -q`,
	"rebase":    `mkdir .git/rebase-merge`,
	"lock":      `: >.git/index.lock`,
	"unborn":    `rm -rf .git; git init -q`,
	"none":      `rm -rf .git`,
	"broken":    `echo nonsense >.git/HEAD`,
}

// Work that is in no other place vetoes a rollout, in whatever form it is
// there, and also if git cannot tell.
func dirtyCheckouts(w *world) {
	p := w.Up("a", file("web"))
	script := "set -e; cd \"$1\"; export HOME=$1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b\n" +
		"git init -q --bare origin; git clone -q origin seed 2>/dev/null; cd seed; echo text >file; git add file; git commit -q -m one; git push -q origin HEAD; cd ..\n"
	props := filepath.Join(w.host.Dir(p.Project), "props")
	for name, change := range checkouts {
		script += fmt.Sprintf("git clone -q origin %[1]s/%[2]s; (cd %[1]s/%[2]s; %[3]s)\n", props, name, change)
	}
	if out, err := exec.CommandContext(w.t.Context(), "sh", "-c", script, "sh", w.t.TempDir()).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	owed := w.Rows["a"]
	owed.Services = []model.Service{{Name: "web", Digest: "another"}} // a rollout that nobody asked for
	w.Rows["a"] = owed
	refused := func(what string) {
		w.t.Helper()
		steps := w.sees()
		if !refusedBy(steps, "a", decide.GuardDirty) && !refusedBy(steps, "a", decide.GuardDirt) {
			w.t.Errorf("%s: %v", what, steps)
		}
		w.Later(w.Policy.RolloutCooldown)
	}
	w.sees() // the first of two looks
	w.Later(w.Policy.StrikeGap + time.Second)
	refused("all of them")
	list, ok := w.Last.Project(p.Project).Checkouts()
	if !ok || len(list) != len(checkouts) {
		w.t.Errorf("%d checkouts are seen of %d", len(list), len(checkouts))
	}
	for _, c := range list {
		if (c.Dirt == observe.Clean) != (c.Name == "clean") {
			w.t.Errorf("%s is %v: %s", c.Name, c.Dirt, c.Why)
		}
	}
	for name := range checkouts {
		if name != "clean" {
			if err := os.RemoveAll(filepath.Join(props, name)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	restore := w.host.Shim("git", "exit 127")
	refused("without git")
	restore()
	w.running(p, "web")
}
