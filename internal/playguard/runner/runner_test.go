package runner_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// marquee is a real sshd in front of a real dockerd.
type marquee struct {
	t      *testing.T
	docker *dockertest.Daemon
	conn   *sshx.Conn
	host   runner.Host
	ssh    *sshdtest.Server
}

func newMarquee(t *testing.T) *marquee {
	t.Helper()
	return marqueeOf(t, dockertest.Start(t), "")
}

func marqueeOf(t *testing.T, d *dockertest.Daemon, shell string) *marquee {
	t.Helper()
	root := filepath.Join(d.Dir, "opt", "fuse"+filepath.Base(shell))
	s := sshdtest.Start(t, sshdtest.Options{Shell: shell, Config: []string{"SetEnv DOCKER_HOST=" + d.Host + " DOCKER_PIDFILE=" + d.PIDFile}})
	layout, err := model.NewLayout(root)
	if err != nil {
		t.Fatal(err)
	}
	c, err := sshx.Dial(t.Context(), sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Keys: [][]byte{s.Key}}, sshx.Timeouts{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &marquee{t: t, docker: d, conn: c, ssh: s, host: runner.Host{Layout: layout, Installation: "inst1"}}
}

// play is one playground.
type play struct {
	id      model.PlaygroundID
	project model.Project
	marker  []byte
	compose string
}

func (m *marquee) play(id model.PlaygroundID, services ...string) play {
	m.t.Helper()
	project, err := model.NewProject("my app", id)
	if err != nil {
		m.t.Fatal(err)
	}
	marker, err := model.Marker{Kind: model.KindPlayground, Installation: m.host.Installation, Marquee: "mq1", Playground: id, Project: project, Epoch: 1}.Encode()
	if err != nil {
		m.t.Fatal(err)
	}
	text := "version: '2.4'\nservices:\n"
	for _, s := range services {
		text += fmt.Sprintf("  %s:\n    image: %s\n    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 100000 & wait']\n    network_mode: none\n    volumes: ['data:/tmp']\n    labels: &l\n      fuse.playguard.installation: inst1\n      fuse.playguard.playground: %s\n", s, dockertest.Image, id)
	}
	text += fmt.Sprintf("volumes:\n  data:\n    labels:\n      fuse.playguard.installation: inst1\n      fuse.playguard.playground: %s\n", id)
	return play{id, project, marker, strings.Replace(text, "&l", "", -1)}
}

func (p play) payload(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct{ name, data string }{{"compose.yml", p.compose}, {".fuse/owner.json", string(p.marker)}} {
		if strings.HasPrefix(f.name, ".fuse/") {
			if err := w.WriteHeader(&tar.Header{Name: ".fuse/", Typeflag: tar.TypeDir, Mode: 0o700}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o600, Size: int64(len(f.data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (m *marquee) start(p play, epoch uint64, id string, op decide.Op) error {
	r := runner.Request{Op: id, Epoch: epoch, Project: p.project, Playground: p.id, Verb: decide.VerbOf(op), Limit: 5 * time.Minute}
	if _, ok := op.(decide.Files); ok {
		r.Payload = p.payload(m.t)
	}
	return m.host.Start(m.t.Context(), m.conn, r)
}

// run starts an operation and waits for its end.
func (m *marquee) run(p play, epoch uint64, id string, op decide.Op) runner.Progress {
	m.t.Helper()
	if err := m.start(p, epoch, id, op); err != nil {
		m.t.Fatal(err)
	}
	return m.end(id)
}

func (m *marquee) end(id string) (pr runner.Progress) {
	m.t.Helper()
	testkit.Eventually(m.t, 5*time.Minute, "operation "+id+" ends", func() bool {
		var err error
		if pr, err = m.host.Poll(m.t.Context(), m.conn, id); err != nil {
			m.t.Fatal(err)
		}
		return !pr.Running
	})
	return pr
}

// ok runs an operation that has to succeed.
func (m *marquee) ok(p play, epoch uint64, id string, op decide.Op) {
	m.t.Helper()
	if pr := m.run(p, epoch, id, op); !pr.Known || pr.Lost || pr.Status != 0 {
		m.t.Fatalf("%s: %+v", id, pr)
	}
}

// look is a look with the identity that the host claims as the pin. One that its time
// ended is made again, as a whole or for one of the projects.
func (m *marquee) look() (look observe.Look) {
	m.t.Helper()
	for n := 5; ; n-- {
		trip := m.host.Observe(m.t.Context(), m.conn)
		claimed, _ := observe.Conclude(trip, model.Identity{}).Claimed()
		look = observe.Conclude(trip, claimed)
		all, seen := look.Projects()
		if seen && !slices.ContainsFunc(all, func(p model.Project) bool { return late(look.Project(p)) }) {
			return look
		}
		if n == 0 {
			m.t.Fatalf("%s: %s %s; %s, status %d\n%s\n%s", look.Verdict(), look.Reason(), look.Detail(), trip.Ending, trip.Status, trip.Stdout, trip.Stderr)
		}
	}
}

// late reports whether the time of a project was over before all of it was seen.
func late(l observe.ProjectLook) bool {
	list, ok := l.Checkouts()
	return l.Verdict() != observe.Seen || !ok || slices.ContainsFunc(list, func(c observe.Checkout) bool {
		return strings.Contains(c.Why, "could not be looked at in time")
	})
}

// The whole way of a playground, by real compose, beside things that are
// nobody's business of ours.
func TestOperations(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	bystanders := func() string {
		out, err := m.docker.Docker("ps", "-a", "--no-trunc", "--filter", "name=bystander", "--format", "{{.ID}} {{.State}}")
		vols, err2 := m.docker.Docker("volume", "ls", "-q", "--filter", "name=bystander")
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return out + vols
	}
	if _, err := m.docker.Docker("run", "-d", "--name", "bystander", "--network", "none", "-v", "bystander:/tmp", "--label", "com.docker.compose.project=my-app--other",
		dockertest.Image, "sleep", "600"); err != nil {
		t.Fatal(err)
	}
	before := bystanders()

	p := m.play("pg1", "web", "db")
	m.ok(p, 1, "op-files", decide.Files{})
	m.ok(p, 1, "op-up", decide.Up{})
	look := m.look()
	seen := look.Project(p.project)
	containers, ok := seen.Containers()
	if !ok || len(containers) != 2 {
		t.Fatalf("containers %+v %v", containers, ok)
	}
	for _, c := range containers {
		if c.State != "running" {
			t.Errorf("%+v", c)
		}
	}
	volumes, ok := seen.Volumes()
	if !ok || len(volumes) != 1 {
		t.Fatalf("volumes %+v %v", volumes, ok)
	}
	if err := m.start(p, 1, "op-up", decide.Up{}); err != nil { // again, under its id
		t.Fatal(err)
	}
	m.ok(p, 1, "op-stop", decide.Stop{})
	m.ok(p, 1, "op-down", decide.Down{})
	seen = m.look().Project(p.project)
	if containers, ok := seen.Containers(); !ok || len(containers) != 0 {
		t.Errorf("after down: %+v", containers)
	}
	if volumes, ok := seen.Volumes(); !ok || len(volumes) != 1 {
		t.Errorf("down took a volume: %+v", volumes)
	}
	m.ok(p, 1, "op-up2", decide.Up{})
	m.ok(p, 1, "op-destroy", decide.Destroy{Volumes: []string{p.project.String() + "_data", "bystander"}})
	if _, err := os.Stat(filepath.Join(m.host.Layout.Root(), "playgrounds", p.project.String())); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	seen = m.look().Project(p.project)
	containers, _ = seen.Containers()
	volumes, _ = seen.Volumes()
	if dir, ok := seen.Directory(); !ok || dir != (observe.Directory{}) || len(containers)+len(volumes) != 0 {
		t.Errorf("left: %+v %+v %+v", dir, containers, volumes)
	}
	if after := bystanders(); after != before {
		t.Errorf("bystanders %s\nwere %s", after, before)
	}
}

// The host refuses an older epoch and a second operation at a time, and what
// it has no proof for.
func TestFence(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	p, other := m.play("pg1", "web"), m.play("pg2", "web")
	m.ok(p, 5, "op1", decide.Files{})
	if err := m.start(p, 4, "op2", decide.Up{}); !errors.Is(err, runner.ErrSuperseded) {
		t.Errorf("an older epoch: %v", err)
	}
	if pr, err := m.host.Poll(t.Context(), m.conn, "op2"); err != nil || pr.Known {
		t.Errorf("a refused operation left a record: %+v %v", pr, err)
	}
	if epoch := hostEpoch(t, m); epoch != 5 {
		t.Errorf("epoch %d", epoch)
	}
	// A directory whose marker names another playground is not touched.
	theirs := other
	theirs.project = p.project
	if err := m.start(theirs, 6, "op3", decide.Up{}); !errors.Is(err, runner.ErrNotOurs) {
		t.Errorf("another's directory: %v", err)
	}
	if err := m.start(other, 6, "op4", decide.Up{}); !errors.Is(err, runner.ErrNotOurs) {
		t.Errorf("no directory: %v", err)
	}
	m.ok(p, 7, "op5", decide.Up{})
	if err := m.host.Cancel(t.Context(), m.conn, 6, "op5"); !errors.Is(err, runner.ErrSuperseded) {
		t.Errorf("cancel under an older epoch: %v", err)
	}
	if err := m.start(p, 7, "../op", decide.Up{}); err == nil {
		t.Error("an id that leaves its directory was taken")
	}
}

func hostEpoch(t *testing.T, m *marquee) uint64 {
	t.Helper()
	host, ok := m.look().Host()
	if !ok {
		t.Fatal("not seen")
	}
	return host.Epoch
}

// An operation outlives the connection that started it, and nothing else of
// its installation starts while it is at work.
func TestCutInOperation(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	p := m.play("pg1", "web")
	// Compose waits for a frozen daemon.
	m.ok(p, 1, "op1", decide.Files{})
	m.docker.Freeze()
	if err := m.start(p, 1, "op2", decide.Up{}); err != nil {
		t.Fatal(err)
	}
	m.conn.Close()
	c, err := sshx.Dial(t.Context(), sshx.Target{Address: m.ssh.Address, User: m.ssh.User, HostKey: m.ssh.HostKey, Keys: [][]byte{m.ssh.Key}}, sshx.Timeouts{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	m.conn = c
	if pr, err := m.host.Poll(t.Context(), m.conn, "op2"); err != nil || !pr.Running {
		t.Errorf("%+v %v", pr, err)
	}
	err = m.start(p, 1, "op3", decide.Stop{})
	if !errors.Is(err, runner.ErrBusy) || !regexp.MustCompile(`: up of `+p.project.String()+` under epoch 1, for \d+ s$`).MatchString(err.Error()) {
		t.Errorf("a second operation at a time: %v", err)
	}
	m.docker.Thaw()
	if pr := m.end("op2"); pr.Status != 0 {
		t.Errorf("%+v", pr)
	}
	if containers, ok := m.look().Project(p.project).Containers(); !ok || len(containers) != 1 || containers[0].State != "running" {
		t.Errorf("%+v %v", containers, ok)
	}
}

// The shell of an operation is killed alone: Compose works on, so the operation
// is at work, and nothing else begins until Compose has ended too.
func TestComposeOutlivesItsShell(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	p := m.play("pg1", "web")
	m.ok(p, 1, "op1", decide.Files{})
	for _, cancelled := range []bool{false, true} {
		op, next := fmt.Sprint("up", cancelled), fmt.Sprint("down", cancelled)
		m.docker.Freeze() // Compose waits for the daemon
		if err := m.start(p, 1, op, decide.Up{}); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(m.host.Layout.Root(), "ops", string(m.host.Installation), op, "pid"))
		var pid int
		if _, serr := fmt.Sscan(string(raw), &pid); err != nil || serr != nil || pid < 2 {
			t.Fatalf("%q %v %v", raw, err, serr)
		}
		testkit.Eventually(t, 3*time.Minute, "Compose runs", func() bool {
			raw, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid)) // it may be between two
			line, _ := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(raw)), "cmdline"))
			return strings.HasPrefix(string(line), "timeout\x00") && strings.Contains(string(line), "\x00up\x00") // the probe before it has a limit too
		})
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if pr, err := m.host.Poll(t.Context(), m.conn, op); err != nil || !pr.Running {
			t.Errorf("with its shell gone: %+v %v", pr, err)
		}
		if err := m.start(p, 1, next, decide.Down{}); !errors.Is(err, runner.ErrBusy) {
			t.Errorf("another one began beside it: %v", err)
		}
		if cancelled {
			if err := m.host.Cancel(t.Context(), m.conn, 1, op); err != nil {
				t.Fatal(err)
			}
		} else {
			m.docker.Thaw()
		}
		if pr := m.end(op); !pr.Lost {
			t.Errorf("nobody wrote its end down: %+v", pr)
		}
		m.docker.Thaw()
		m.ok(p, 1, next, decide.Down{})
	}
}

// An answer that is cut anywhere is no whole look, and no list comes of it.
func TestObservationCutAnywhere(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	p := m.play("pg1", "web")
	m.ok(p, 1, "op1", decide.Files{})
	m.ok(p, 1, "op2", decide.Up{})
	m.look()
	var trip observe.Trip
	testkit.Eventually(t, 3*time.Minute, "a look comes to its end", func() bool {
		trip = m.host.Observe(t.Context(), m.conn)
		return trip.Ending == observe.EndedExit && trip.Status == 0
	})
	pin, _ := observe.Conclude(trip, model.Identity{}).Claimed()
	whole := trip.Stdout
	trip.Ending, trip.Status = observe.EndedWithout, 0
	for n := range len(whole) - 1 {
		trip.Stdout = whole[:n]
		if look := observe.Conclude(trip, pin); look.Verdict() == observe.Seen {
			t.Fatalf("cut at byte %d of %d: seen", n, len(whole))
		}
	}
}

// The script does the same under every shell that a host may have as sh.
func TestShells(t *testing.T) {
	t.Parallel()
	d := dockertest.Start(t)
	for _, shell := range []string{"/bin/dash", "/bin/bash", "/bin/busybox"} {
		t.Run(filepath.Base(shell), func(t *testing.T) {
			m := marqueeOf(t, d, shell)
			m.host.Installation = model.InstallationID("i" + filepath.Base(shell))
			if err := m.host.Enroll(t.Context(), m.conn); err != nil {
				t.Fatal(err)
			}
			p := m.play("pg1")
			m.ok(p, 1, "op1", decide.Files{})
			m.ok(p, 2, "op2", decide.Destroy{})
			m.ok(p, 2, "op3", decide.Files{})
			if err := m.start(p, 1, "op4", decide.Down{}); !errors.Is(err, runner.ErrSuperseded) {
				t.Error(err)
			}
			seen := m.look().Project(p.project)
			ops, _ := seen.Ops()
			if dir, ok := seen.Directory(); !ok || !dir.Marker.Owns(m.host.Installation, p.id, p.project) || len(ops) != 3 {
				t.Errorf("%+v %+v", dir, ops)
			}
			if err := m.host.Reap(t.Context(), m.conn, 1); err != nil {
				t.Error(err)
			}
		})
	}
}
