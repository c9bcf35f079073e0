package lost

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/test/cluster"
	"github.com/fusevm/fuse/test/playguard/rig"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// marquee is a host, and the key that lets one in.
type marquee struct {
	*rig.Host
	t         *testing.T
	key, port string
	docker    *dockertest.Daemon
}

func newMarquee(t *testing.T) *marquee {
	t.Helper()
	d := dockertest.Start(t)
	rig.Guard(t, d, rig.Root(d, "marquee"))
	h := rig.NewHost(t, d, rig.V2, "marquee")
	m := &marquee{Host: h, t: t, key: filepath.Join(t.TempDir(), "key"), docker: d}
	if err := os.WriteFile(m.key, h.SSH.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	m.port = h.SSH.Address[strings.LastIndexByte(h.SSH.Address, ':')+1:]
	return m
}

func (m *marquee) add(s *cluster.Server) {
	m.t.Helper()
	fuse(m.t, s, 0, "marquee", "add", "root@127.0.0.1:"+m.port, "--name", "box", "-i", m.key, "--accept-new", "--root", m.Root)
}

// fuse runs a command of a person.
func fuse(t *testing.T, s *cluster.Server, want int, args ...string) string {
	t.Helper()
	out, code := cluster.Run(t, append(args, "--url", s.URL)...)
	if code != want {
		t.Fatalf("fuse %s: exit status %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// up brings a playground of one service with a volume up.
func up(t *testing.T, s *cluster.Server, name string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	text := fmt.Sprintf("services:\n  web:\n    image: %s\n    network_mode: none\n    volumes: ['data:/data']\n"+
		"    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 100000 & wait']\nvolumes: {data: {}}\n", dockertest.Image)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fuse(t, s, 0, "playground", "up", dir, "--yes")
}

type playground struct {
	Name, State, Project, Owner string
	ExpiresAt                   time.Time `json:"expires_at"`
	Branch                      struct{ Repository, Branch, Commit, Checkout, Problem string }
}

func playgrounds(t *testing.T, s *cluster.Server) map[string]playground {
	t.Helper()
	var list struct{ Playgrounds []playground }
	decode(t, fuse(t, s, 0, "playground", "ls", "--json"), &list)
	out := map[string]playground{}
	for _, p := range list.Playgrounds {
		out[p.Name] = p
	}
	return out
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// follow makes a playground of a branch.
func follow(t *testing.T, s *cluster.Server, g *gittest.Server) *gittest.Repo {
	t.Helper()
	repo := g.Repo("front", map[string]string{"site": "one", "compose.yaml": "services:\n  web:\n    image: " + dockertest.Image + "\n    network_mode: none\n" +
		"    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 100000 & wait']\n"})
	fuse(t, s, 0, "playground", "follow", repo.URL, "--name", "front")
	s.Eventually(4*time.Minute, "the branch to be up", func() bool { return playgrounds(t, s)["front"].State == "running" })
	return repo
}

// marked waits until the owner marker of a playground says when it ends.
func (m *marquee) marked(s *cluster.Server, name, at string) {
	m.t.Helper()
	file := filepath.Join(m.Root, "playgrounds", playgrounds(m.t, s)[name].Project, ".fuse", "owner.json")
	s.Eventually(3*time.Minute, "the marker tells the end", func() bool {
		cluster.Run(m.t, "marquee", "check", "box", "--url", s.URL)
		raw, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(raw), at)
	})
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		m.t.Errorf("the marker: %v %v", info, err)
	}
}

// everything is what runs and what is kept on the host, down to ids and starts.
func (m *marquee) everything() string {
	m.t.Helper()
	ids, err := m.docker.Docker("ps", "-aq", "--no-trunc")
	if err != nil {
		m.t.Fatal(err)
	}
	list := strings.Fields(ids)
	slices.Sort(list)
	state, err := m.docker.Docker(append([]string{"inspect", "--format", "{{.ID}} {{.Name}} {{.State.Status}} {{.State.StartedAt}}"}, list...)...)
	if err != nil {
		m.t.Fatal(err)
	}
	return state
}

func stop(s *cluster.Server) {
	s.Signal(syscall.SIGTERM)
	s.Wait(2 * time.Minute)
}

// After the database is wiped, the playgrounds are back by one command: those
// that ran run, and those that were stopped are stopped, and nothing on the host
// was touched for it.
func TestDatabaseWiped(t *testing.T) {
	m := newMarquee(t)
	data := t.TempDir()
	s := cluster.StartServer(t, cluster.ServerOptions{DataDir: data})
	s.WaitReady()
	m.add(s)
	for _, name := range []string{"shop", "blog"} {
		up(t, s, name)
	}
	fuse(t, s, 0, "playground", "stop", "blog")
	front := follow(t, s, gittest.Start(t))
	// An end is on the host too, and follows what is said of it later.
	end := time.Now().Add(1000 * time.Hour).UTC().Format(time.RFC3339)
	fuse(t, s, 0, "playground", "extend", "shop", end)
	m.marked(s, "shop", end)
	before, had := m.everything(), playgrounds(t, s)
	stop(s)
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}

	s = cluster.StartServer(t, cluster.ServerOptions{DataDir: data})
	s.WaitReady()
	m.add(s)
	var r struct {
		Installation  string
		Installations []string
		Projects      []struct{ Project, Name string }
	}
	decode(t, fuse(t, s, 0, "marquee", "rescan", "box", "--json"), &r)
	if len(r.Projects) != 0 || len(r.Installations) != 2 {
		t.Fatalf("a new installation is shown what is another's: %+v", r)
	}
	old := slices.DeleteFunc(r.Installations, func(i string) bool { return i == r.Installation })[0]
	out := fuse(t, s, 3, "marquee", "rescan", "box", "--adopt-all", "--take-over-installation", "nobody")
	if !strings.Contains(out, old) {
		t.Errorf("it is not said which installations there are:\n%s", out)
	}
	// Nobody is taken over without a word.
	fuse(t, s, 0, "marquee", "rescan", "box", "--adopt-all")
	if have := playgrounds(t, s); len(have) != 0 {
		t.Fatalf("taken over unasked: %+v", have)
	}
	said, code := "", 0
	s.Eventually(3*time.Minute, "what the old server had begun to end, and the host to be taken over", func() bool {
		said, code = cluster.Run(t, "marquee", "rescan", "box", "--adopt-all", "--yes", "--url", s.URL)
		return code == 0
	})
	if !strings.Contains(said, "give them again") {
		t.Errorf("it is not said what does not come back:\n%s", said)
	}

	if now := m.everything(); now != before {
		t.Errorf("a container was touched:\n%s\nwas\n%s", now, before)
	}
	// Nobody is told to take over the one that was left behind.
	decode(t, fuse(t, s, 0, "marquee", "rescan", "box", "--json"), &r)
	if len(r.Installations) != 1 || r.Installations[0] != old {
		t.Errorf("after the takeover %v have playgrounds there, want %s", r.Installations, old)
	}
	have := playgrounds(t, s)
	if len(have) != 3 || have["shop"].State != "running" || have["blog"].State != "stopped" || have["front"].State != "running" {
		t.Fatalf("back are %+v", have)
	}
	for name, p := range had {
		if have[name].Project != p.Project || have[name].Owner != p.Owner || !have[name].ExpiresAt.Equal(p.ExpiresAt) {
			t.Errorf("%s was %+v and is %+v", name, p, have[name])
		}
	}
	if is, was := have["front"].Branch, had["front"].Branch; is.Repository == "" || is.Repository != was.Repository || is.Branch != was.Branch || is.Checkout != was.Checkout {
		t.Errorf("its branch was %+v and is %+v", was, is)
	}
	// They are worked on as before, and the branch is followed.
	front.Commit("main", map[string]string{"site": "two"})
	fuse(t, s, 0, "playground", "check", "front")
	fuse(t, s, 0, "playground", "start", "blog")
	up(t, s, "shop")
	shop, err := model.ParseProject(have["shop"].Project)
	if err != nil {
		t.Fatal(err)
	}
	s.Eventually(3*time.Minute, "both to run", func() bool {
		now := playgrounds(t, s)
		return now["shop"].State == "running" && now["blog"].State == "running"
	})
	if c := m.Containers(shop); !slices.Equal(c, []string{"web running"}) {
		t.Errorf("%q", c)
	}
	s.Eventually(4*time.Minute, "the branch to go on", func() bool {
		raw, err := os.ReadFile(filepath.Join(m.Root, "playgrounds", have["front"].Project, "props", have["front"].Branch.Checkout, "site"))
		return err == nil && string(raw) == "two"
	})
	fuse(t, s, 0, "playground", "destroy", "shop", "--yes")
	if c := m.Containers(shop); len(c) != 0 {
		t.Errorf("left: %q", c)
	}
}

// A database that was restored from a copy does not know what was made since.
// The sweep stops everywhere, although it is armed, lists what can be adopted,
// and goes on only when a person says so. The records' epoch is not behind the
// host's here: that alone would not tell.
func TestDatabaseOfADayAgo(t *testing.T) {
	m := newMarquee(t)
	data, saved := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	s := cluster.StartServer(t, cluster.ServerOptions{DataDir: data})
	s.WaitReady()
	m.add(s)
	up(t, s, "shop")
	fuse(t, s, 0, "marquee", "sweep", "box", "--arm", "--why", "test", "--max-share", "100")
	stop(s)
	copyOf(t, data, saved)
	s = s.Again()
	s.WaitReady()
	up(t, s, "shop2")
	later := playgrounds(t, s)["shop2"].Project
	before := m.everything()
	stop(s)
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	copyOf(t, saved, data)

	s = s.Again()
	s.WaitReady()
	s.Eventually(4*time.Minute, "the sweep to stop", func() bool {
		cluster.Run(t, "marquee", "check", "box", "--url", s.URL)
		return strings.Contains(status(t, s).Halted, later)
	})
	st := status(t, s)
	if len(st.Findings) != 1 || st.Findings[0].Project != later || !st.Findings[0].Adoptable || st.Findings[0].Guard != "unknown_history" || !st.Armed {
		t.Errorf("%+v", st)
	}
	if out := fuse(t, s, 0, "events", "--type", "marquee.sweep_halted"); !strings.Contains(out, "stopped on every marquee") {
		t.Errorf("nobody is told:\n%s", out)
	}
	fuse(t, s, 0, "marquee", "rescan", "box", "--adopt-all")
	if have := playgrounds(t, s); have["shop2"].State != "running" || have["shop"].State != "running" {
		t.Errorf("%+v", have)
	}
	if now := m.everything(); now != before {
		t.Errorf("a container was touched:\n%s\nwas\n%s", now, before)
	}
	if st := status(t, s); st.Halted == "" {
		t.Error("it goes on by itself")
	}
	fuse(t, s, 0, "marquee", "sweep", "box", "--arm", "--why", "all is adopted")
	s.Eventually(3*time.Minute, "the sweep to go on", func() bool {
		cluster.Run(t, "marquee", "check", "box", "--url", s.URL)
		st := status(t, s)
		return st.Halted == "" && len(st.Findings) == 0
	})
}

type sweepStatus struct {
	Armed    bool
	Halted   string
	Findings []struct {
		Project, Guard, Why string
		Adoptable           bool
	}
}

func status(t *testing.T, s *cluster.Server) (out sweepStatus) {
	t.Helper()
	decode(t, fuse(t, s, 0, "marquee", "sweep", "status", "box", "--json"), &out)
	return out
}

func copyOf(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
