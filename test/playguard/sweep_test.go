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
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/sweep"
)

var sweepRows = []row{
	{name: "T36 an orphan is set aside, comes back, and goes", run: orphanSwept, quick: true},
	{name: "T37 work that appears in an orphan after the look", run: orphanGetsDirty},
}

// broom is the sweep of a row: its records, and what it decides from the row's
// looks.
type broom struct {
	*world
	sweep model.Sweep
}

func newBroom(w *world) *broom {
	return &broom{w, model.Sweep{Arming: model.Arming{By: "t", Why: "t", At: w.Now, Until: w.Now.Add(100 * time.Hour), Share: 100}}}
}

// decide looks and decides.
func (b *broom) decide() sweep.Plan {
	b.t.Helper()
	b.sees()
	known := map[model.Project]bool{}
	for _, p := range b.Rows {
		known[p.Project] = true
	}
	return sweep.Decide(sweep.Input{
		Now: b.Now, Policy: sweep.DefaultPolicy(), Look: b.Last, Marquee: b.Marquee, Known: known, Sweep: b.sweep,
		History: []model.Span{{Epoch: b.Epoch, Lineage: "rig", From: 1}}, Epoch: b.Epoch, Rows: 10,
	})
}

// start carries an order out and returns the exit status.
func (b *broom) start(plan sweep.Plan) int {
	b.t.Helper()
	if plan.Order == nil {
		b.t.Fatalf("nothing is ordered: %+v", plan)
	}
	id := fmt.Sprintf("sweep-%d", time.Now().UnixNano())
	b.sweep = plan.Sweep
	b.sweep.Op.ID = id
	end, err := b.Start(model.Playground{ID: plan.Order.Playground, Project: plan.Order.Project}, id, plan.Order.Op)
	defer end()
	if err != nil {
		b.t.Fatal(err)
	}
	return b.Wait(id).Status
}

// orphan is a playground that runs and whose record is gone, and that two looks
// an hour apart have shown.
func (b *broom) orphan() model.Playground {
	b.t.Helper()
	p := b.Up("a", file("web"))
	delete(b.Rows, p.ID)
	b.sweep = b.decide().Sweep
	b.Later(time.Hour)
	return p
}

func (b *broom) volumes(p model.Playground) []string {
	b.t.Helper()
	out, err := b.docker.Docker("volume", "ls", "-q", "--filter", "label="+model.LabelPlayground+"="+string(p.ID), "--filter", "label="+model.LabelInstallation+"="+string(b.Runner.Installation))
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.Fields(out)
}

// swept is where the sweep sets a project aside.
func (b *broom) swept(p model.Playground) string {
	b.t.Helper()
	at, err := b.Runner.Layout.Path(model.PlaceSwept, string(b.Runner.Installation), p.Project.String())
	if err != nil {
		b.t.Fatal(err)
	}
	return at
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// orphanSwept: its containers go and its volume stays, its directory is kept for
// a day and can be brought back; who uses the same names without our labels is
// not touched, which the bystanders tell.
func orphanSwept(w *world) {
	b := newBroom(w)
	p := b.orphan()
	had := b.volumes(p)
	dir := filepath.Join(w.host.Root, "playgrounds", p.Project.String())
	if status := b.start(b.decide()); status != 0 {
		w.t.Fatalf("exit status %d", status)
	}
	if ids := w.ids(p); len(ids) != 0 || there(dir) || !there(b.swept(p)) || len(had) != 1 || !slices.Equal(b.volumes(p), had) {
		w.t.Fatalf("after the sweep: containers %v, volumes %v (had %v)", ids, b.volumes(p), had)
	}
	b.sweep = b.decide().Sweep
	if len(b.sweep.Aside) != 1 || !b.sweep.Aside[0].Ran {
		w.t.Fatalf("%+v", b.sweep)
	}

	b.sweep.Aside[0].Restore = true
	if status := b.start(b.decide()); status != 0 || there(b.swept(p)) {
		w.t.Fatalf("restore: exit status %d", status)
	}
	w.Rows[p.ID] = p
	b.sweep = b.decide().Sweep
	if w.operate(p, decide.Up{}); len(b.sweep.Aside) != 0 {
		w.t.Errorf("%+v", b.sweep)
	}
	w.running(p, "web")
	if v := b.volumes(p); !slices.Equal(v, had) {
		w.t.Errorf("its volumes are %v, and were %v", v, had)
	}

	delete(w.Rows, p.ID)
	w.Later(time.Hour)
	b.sweep = b.decide().Sweep
	w.Later(time.Hour)
	b.start(b.decide())
	b.sweep = b.decide().Sweep
	w.Later(23*time.Hour + 59*time.Minute)
	if plan := b.decide(); plan.Order != nil {
		w.t.Fatalf("within the day: %+v", plan.Order)
	}
	w.Later(time.Minute)
	if status := b.start(b.decide()); status != 0 || there(b.swept(p)) || there(dir) || !slices.Equal(b.volumes(p), had) {
		w.t.Errorf("purge: exit status %d, volumes %v", status, b.volumes(p))
	}
}

// operate runs an operation of a playground to its end.
func (w *world) operate(p model.Playground, op decide.Op) {
	w.t.Helper()
	id := fmt.Sprintf("row-%d", time.Now().UnixNano())
	end, err := w.Start(p, id, op)
	defer end()
	if err != nil {
		w.t.Fatal(err)
	}
	if pr := w.Wait(id); pr.Status != 0 {
		w.t.Fatalf("%s: %+v", decide.VerbOf(op), pr)
	}
}

// orphanGetsDirty: the look saw a clean checkout; before the host is asked,
// somebody writes a file. The host looks again, under its lock, and does nothing.
func orphanGetsDirty(w *world) {
	b := newBroom(w)
	p := b.orphan()
	work := filepath.Join(w.host.Root, "playgrounds", p.Project.String(), "props", "src")
	git := func(args ...string) {
		w.t.Helper()
		cmd := exec.CommandContext(w.t.Context(), "git", append([]string{"-C", work, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	if err := os.MkdirAll(work, 0o700); err != nil {
		w.t.Fatal(err)
	}
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "one")
	git("update-ref", "refs/remotes/origin/main", "HEAD") // as if it had been pushed
	plan := b.decide()
	if dirt, why := w.Last.Project(p.Project).Dirt(); dirt != observe.Clean {
		w.t.Fatalf("the checkout is %s: %s", dirt, why)
	}
	if err := os.WriteFile(filepath.Join(work, "new"), []byte("work"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	ids := w.ids(p)
	if status := b.start(plan); status != 76 {
		w.t.Errorf("exit status %d, want 76", status)
	}
	w.running(p, "web")
	if now := w.ids(p); !slices.Equal(now, ids) || !there(work) {
		w.t.Error("something of it was touched")
	}
	w.Later(time.Hour)
	next := b.decide()
	if len(next.Notes) != 1 || next.Notes[0].What != sweep.Failed || next.Order != nil || next.Findings[0].Guard != decide.GuardDirty {
		w.t.Errorf("%+v", next)
	}
}
