package runner_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

const (
	idles   = `trap "exit 0" TERM; sleep 100000 & wait`
	fails   = `sleep 0.2; exit 3`
	checked = "    healthcheck: {test: ['CMD', 'true'], interval: 200ms}\n"
)

// rolling gives a playground a version of its service web that is replaced
// without a gap; mark false leaves the mark out.
func (m *marquee) rolling(p play, version, command, more string, mark bool) play {
	p.compose = ""
	if mark {
		p.compose = "# fuse.roll web " + version + "\n"
	}
	p.compose += fmt.Sprintf(`version: '2.4'
services:
  web:
    image: %s
    command: [sh, -c, '%s']
    network_mode: none
    labels: {fuse.playguard.installation: inst1, fuse.playguard.playground: %s, fuse.playguard.digest: %s}
%s`, dockertest.Image, command, p.id, version, more)
	return p
}

// replicas are "id digest state" of the playground's containers, short ids.
func (m *marquee) replicas(p play) []string {
	m.t.Helper()
	out, err := m.docker.Docker("ps", "-a", "--filter", "label=fuse.playguard.playground="+string(p.id),
		"--format", `{{.ID}} {{.Label "fuse.playguard.digest"}} {{.State}}`)
	if err != nil {
		m.t.Fatal(err)
	}
	list := strings.Fields(strings.ReplaceAll(out, " ", "/"))
	slices.Sort(list)
	return list
}

// version fails unless there is one container, it runs and is of that version;
// it returns its id.
func (m *marquee) version(p play, want string) string {
	m.t.Helper()
	list := m.replicas(p)
	if len(list) != 1 || !strings.HasSuffix(list[0], "/"+want+"/running") {
		m.t.Fatalf("the host has %q, want one running container of %s", list, want)
	}
	return list[0]
}

// A service that is replaced without a gap: the old container goes when the new
// one is up, stays when it is not, and what was cut between is taken up.
func TestRoll(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	p := m.play("pg1")
	up := func(v play, id string) runner.Progress {
		t.Helper()
		m.ok(v, 1, "files-"+id, decide.Files{})
		return m.run(v, 1, "up-"+id, decide.Up{})
	}
	if pr := up(m.rolling(p, "v1", idles, checked, true), "1"); pr.Status != 0 {
		t.Fatalf("%+v", pr)
	}
	first := m.version(p, "v1")

	pr := up(m.rolling(p, "v2", fails, "", true), "2")
	if pr.Status == 0 || !strings.Contains(pr.ErrText, "exited with code 3") {
		t.Errorf("%+v", pr)
	}
	if now := m.version(p, "v1"); now != first {
		t.Errorf("a bad version took %s away: %s", first, now)
	}

	if testing.Short() { // each of the following takes Compose seconds
		return
	}

	// The operation dies while both are there; the definition of before brings
	// back the one that served, also if it knows nothing of rolling.
	bad := m.rolling(p, "v3", idles, "    healthcheck: {test: ['CMD', 'false'], interval: 10s}\n", true)
	m.ok(bad, 1, "files-3", decide.Files{})
	if err := m.start(bad, 1, "up-3", decide.Up{}); err != nil {
		t.Fatal(err)
	}
	m.both(p, "v1", "v3")
	if err := m.start(bad, 1, "up-4", decide.Up{}); !errors.Is(err, runner.ErrBusy) {
		t.Errorf("a second operation beside a roll: %v", err)
	}
	m.kill("up-3")
	if pr := m.end("up-3"); !pr.Lost {
		t.Errorf("%+v", pr)
	}
	if pr := up(m.rolling(p, "v1", idles, checked, false), "5"); pr.Status != 0 {
		t.Errorf("%+v", pr)
	}
	if now := m.version(p, "v1"); now != first {
		t.Errorf("healing replaced %s by %s", first, now)
	}

	if pr := up(m.rolling(p, "v4", idles, checked, true), "6"); pr.Status != 0 {
		t.Errorf("%+v", pr)
	}
	m.version(p, "v4")
}

// both waits until a container of each version runs.
func (m *marquee) both(p play, versions ...string) {
	m.t.Helper()
	testkit.Eventually(m.t, 3*time.Minute, "both versions run", func() bool {
		list := strings.Join(m.replicas(p), " ")
		return !slices.ContainsFunc(versions, func(v string) bool { return !strings.Contains(list, "/"+v+"/running") })
	})
}

// kill ends everything that an operation runs, as a host does.
func (m *marquee) kill(op string) {
	m.t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.host.Layout.Root(), "ops", string(m.host.Installation), op, "pid"))
	if err != nil {
		m.t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(raw), &pid); err != nil || pid < 2 {
		m.t.Fatalf("%q %v", raw, err)
	}
	// It is the leader of a session, and so of a group.
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
}
