package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

// swaps has its repository lead elsewhere for a moment, again and again.
const swaps = `while :; do for d in objects/pack refs/fuse logs/refs; do
	[ -d /site/.git/$d ] || continue
	mv /site/.git/$d /site/.git/aside && ln -s "$V" /site/.git/$d && sleep 0.02; rm -f /site/.git/$d; mv /site/.git/aside /site/.git/$d; sleep 0.3
done; sleep 0.3; done`

// A container that may write in a checkout puts links there at any moment, also
// after the look: nothing is written where they lead, and it goes on afterwards.
func TestALinkThatComesLate(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "0"})
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	project, err := model.NewProject("shop", "p1")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	goOn := func() runner.Progress {
		n++
		id := fmt.Sprint("op", n)
		r := runner.Request{Op: id, Epoch: 1, Project: project, Playground: "p1", Verb: decide.VerbOf(decide.Branch{}), Payload: branch(t, repo.URL, "main"), Limit: 2 * time.Minute}
		if err := m.host.Start(t.Context(), m.conn, r); err != nil {
			t.Fatal(err)
		}
		return m.end(id)
	}
	if pr := goOn(); pr.Status != 0 {
		t.Fatalf("%+v", pr)
	}
	dir, victim := filepath.Join(m.host.Layout.Root(), shopDir), t.TempDir()
	checkout := filepath.Join(dir, "props", "app")
	if err := os.WriteFile(filepath.Join(dir, "compose.yml"), []byte("# fuse.mount props/app\nservices: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := m.docker.Docker("run", "-d", "--network", "none", "-e", "V="+victim, "-v", checkout+":/site", "--label", model.LabelInstallation+"=inst1", "--label", model.LabelPlayground+"=p1",
		dockertest.Image, "sh", "-c", "ln -s busybox /bin/mv; ln -s busybox /bin/ln; "+swaps)
	if err != nil {
		t.Fatal(err)
	}
	state := func() string {
		out, err := m.docker.Docker("inspect", "--format", "{{.State.Status}}", id)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	went, tries := 0, testkit.Count(2, 60)
	for i := range tries {
		repo.Commit("main", map[string]string{"compose.yml": fmt.Sprint(i + 1)})
		pr := goOn()
		if pr.Status == 0 {
			went++
		}
		if got := list(t, victim); got != "" || state() != "running" {
			t.Fatalf("it is %s, and what was written elsewhere is %q: %+v", state(), got, pr)
		}
	}
	t.Logf("%d of %d times it went forward", went, tries)
	// Whoever held it was killed: the next operation lets it go on.
	if _, err := m.docker.Docker("pause", id); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(m.host.Layout.Root(), "ops", string(m.host.Installation), "cut")
	if err := os.MkdirAll(cut, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cut, "held"), []byte(id+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	goOn()
	if state() != "running" {
		t.Errorf("it is %s after who held it was cut", state())
	}
	if _, err := m.docker.Docker("rm", "-f", id); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "it goes forward when nobody is in the way", func() bool { return goOn().Status == 0 })
	if raw, err := os.ReadFile(filepath.Join(checkout, "compose.yml")); err != nil || strings.TrimSpace(string(raw)) != fmt.Sprint(tries) {
		t.Errorf("%q %v", raw, err)
	}
}

// The moment is chosen here: right before git writes, which it is told to wait for,
// a container that could still act would have its log lead elsewhere.
func TestNobodyActsWhileGitWrites(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one"})
	d := dockertest.Start(t)
	b := newBough(t)
	b.env = []string{"DOCKER_HOST=" + d.Host}
	b.want(branch(t, repo.URL, "main"), "0")
	trigger, victim := t.TempDir(), t.TempDir()
	const before = `$git read-tree -u -m "$have" refs/fuse/seen`
	script := strings.Replace(string(runner.Script), before, ": >"+trigger+"/go; sleep 2; "+before, 1)
	if script == string(runner.Script) {
		t.Fatal("git writes elsewhere by now")
	}
	if err := os.WriteFile(b.script, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path("compose.yml"), []byte("# fuse.mount props/app\nservices: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := d.Docker("run", "-d", "--network", "none", "-e", "V="+victim, "-v", b.path("props", "app")+":/site", "-v", trigger+":/trigger",
		"--label", model.LabelInstallation+"=inst1", "--label", model.LabelPlayground+"=p1", dockertest.Image, "sh", "-c",
		`while [ ! -e /trigger/go ]; do sleep 0.05; done; busybox mv /site/.git/logs /site/.git/was; busybox ln -s "$V" /site/.git/logs; touch /trigger/done; while :; do sleep 1; done`)
	if err != nil {
		t.Fatal(err)
	}
	repo.Commit("main", map[string]string{"compose.yml": "two"})
	b.want(branch(t, repo.URL, "main"), "0")
	if b.read("compose.yml") != "two" || list(t, victim) != "" {
		t.Errorf("%q, and elsewhere was written %q", b.read("compose.yml"), list(t, victim))
	}
	testkit.Eventually(t, time.Minute, "it goes on afterwards", func() bool {
		_, err := os.Stat(filepath.Join(trigger, "done"))
		return err == nil
	})
	if _, err := d.Docker("rm", "-f", id); err != nil {
		t.Error(err)
	}
}
