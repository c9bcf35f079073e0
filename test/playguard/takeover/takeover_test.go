// Package takeover runs whole servers against a real marquee.
package takeover

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/cluster"
	"github.com/fusevm/fuse/test/playguard/rig"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// lease is how long a server may act without having renewed: an operation is
// begun only while two seconds are left.
const lease = 10 * time.Second

// marquee is a host, and the key that lets one in.
type marquee struct {
	*rig.Host
	t    *testing.T
	key  string
	port string
}

func newMarquee(t *testing.T, f rig.Flavour) *marquee {
	t.Helper()
	h := rig.NewHost(t, dockertest.Start(t), f, "marquee")
	m := &marquee{Host: h, t: t, key: filepath.Join(t.TempDir(), "key")}
	if err := os.WriteFile(m.key, h.SSH.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	m.port = h.SSH.Address[strings.LastIndexByte(h.SSH.Address, ':')+1:]
	return m
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

func (m *marquee) add(s *cluster.Server) {
	m.t.Helper()
	fuse(m.t, s, 0, "marquee", "add", "root@127.0.0.1:"+m.port, "--name", "box", "-i", m.key, "--accept-new", "--root", m.Root)
}

// directory is one with a compose file of services that run until they are
// stopped. n is in the environment of the first.
func directory(t *testing.T, image string, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shop")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text := "services:\n"
	for _, s := range []string{"web", "db"} {
		text += "  " + s + ":\n    image: " + image + "\n    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 100000 & wait']\n    volumes: ['" + s + ":/data']\n"
		if s == "web" {
			text += fmt.Sprintf("    environment: {N: '%d'}\n", n)
		}
		image = dockertest.Image
	}
	if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(text+"volumes: {web: {}, db: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

type playground struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Step    string `json:"step"`
	Project string `json:"project"`
	Reason  string `json:"reason"`
	Failure any    `json:"failure"`
	Desired string `json:"desired"`
	Rollout struct {
		Result string `json:"result"`
	} `json:"last_rollout"`
}

func get(t *testing.T, s *cluster.Server) (p playground) {
	t.Helper()
	var a cluster.Answer
	s.Eventually(2*time.Minute, "it tells of the playground", func() (came bool) {
		var err error
		a, err = s.Do(http.MethodGet, "/v1/playgrounds/shop", "")
		return err == nil
	})
	if a.Status != http.StatusOK {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	a.JSON(t, &p)
	return p
}

func (m *marquee) project(t *testing.T, s *cluster.Server) model.Project {
	t.Helper()
	p, err := model.ParseProject(get(t, s).Project)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (m *marquee) running(project model.Project) {
	m.t.Helper()
	if have := m.Containers(project); !slices.Equal(have, []string{"db running", "web running"}) {
		m.t.Errorf("the host has %q", have)
	}
}

// T22: two commands lead to a playground that runs, and a deploy that does not
// come up leaves the version before in place.
func TestNewUserAndBadDeploy(t *testing.T) {
	t.Parallel()
	m := newMarquee(t, rig.V2)
	s := cluster.StartServer(t, cluster.ServerOptions{})
	s.WaitReady()
	m.add(s)
	fuse(t, s, 0, "playground", "up", directory(t, dockertest.Image, 1), "--yes")
	project := m.project(t, s)
	m.running(project)
	web, db, before := m.ID(project, "web"), m.ID(project, "db"), get(t, s).Desired

	out := fuse(t, s, 1, "playground", "up", directory(t, "127.0.0.1:1/none:1", 2), "--yes")
	if !strings.Contains(out, "the version before is in place") {
		t.Errorf("a person does not learn it:\n%s", out)
	}
	m.running(project)
	if m.ID(project, "web") != web || m.ID(project, "db") != db {
		t.Error("the old containers are not the ones that run")
	}
	if p := get(t, s); p.State != "running" || p.Rollout.Result != "failed" || p.Desired != before {
		t.Errorf("%+v", p)
	}
	fuse(t, s, 0, "playground", "up", directory(t, dockertest.Image, 3), "--yes")
	m.running(project)
	if m.ID(project, "web") == web || m.ID(project, "db") != db {
		t.Error("a change of web alone did not replace web alone")
	}
	fuse(t, s, 0, "playground", "destroy", "shop", "--yes")
	if have := m.Containers(project); len(have) != 0 {
		t.Errorf("left: %q", have)
	}
}

// operation is a row of the table of operations.
type operation struct {
	ID      string   `json:"id"`
	Kind    string   `json:"kind"`
	Epoch   uint64   `json:"epoch"`
	Volumes []string `json:"volumes"`
	Refused bool     `json:"refused"`
	Lost    bool     `json:"lost"`
	Started time.Time
	Ended   time.Time
}

func (o *operation) UnmarshalJSON(b []byte) error {
	type plain operation
	var v struct {
		*plain
		Started time.Time `json:"started_at"`
		Ended   time.Time `json:"ended_at"`
	}
	v.plain = (*plain)(o)
	err := json.Unmarshal(b, &v)
	o.Started, o.Ended = v.Started, v.Ended
	return err
}

// operations reads the table.
func operations(t *testing.T, url string) (out []operation) {
	t.Helper()
	raw := pgtest.Scalar[string](t, url,
		`SELECT coalesce(json_agg(doc->'operation')::text, '[]') FROM playground_operations WHERE id LIKE '%/op/%'`)
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	slices.SortFunc(out, func(a, b operation) int { return a.Started.Compare(b.Started) })
	return out
}

// epochs are those that the marquee had: each from the beginning of the term that
// took it.
func epochs(t *testing.T, url string) (out rig.Epochs) {
	t.Helper()
	raw := pgtest.Scalar[string](t, url, `SELECT json_agg(json_build_object('Epoch', h->'epoch',
		'At', (SELECT begun_at FROM terms WHERE revision < (h->>'from')::bigint ORDER BY term DESC LIMIT 1)) ORDER BY (h->>'epoch')::bigint)::text
		FROM marquees, json_array_elements(doc->'history') h`)
	if err := json.Unmarshal([]byte(raw), &out); err != nil || len(out) < 2 {
		t.Fatalf("the marquee's epochs: %v: %s", err, raw)
	}
	return out
}

// onHost lists the operations that the host has records of: "id kind epoch".
func (m *marquee) onHost() map[string]string {
	m.t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob(filepath.Join(m.Root, "ops", "*", "*", "what"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			m.t.Fatal(err)
		}
		out[filepath.Base(filepath.Dir(f))] = strings.TrimSpace(string(text))
	}
	return out
}

// T26: the first server stands still for twice its lease in the middle of a
// rollout, while another takes over, and goes on. It changes nothing on the
// marquee any more.
func TestStandstillInARollout(t *testing.T) {
	t.Parallel()
	steps := []string{"up", "files", "health"}
	for _, step := range steps[:testkit.Count(1, len(steps))] {
		t.Run(step, func(t *testing.T) {
			standstill(t, step, func(s *cluster.Server, _ *cluster.Link) { s.Freeze() }, func(s *cluster.Server, _ *cluster.Link) { s.Thaw() })
		})
	}
}

// T24: the first server is cut from the store instead. It cannot know that it
// still holds the lease, which is the same as not holding it.
func TestStoreOutOfReachInARollout(t *testing.T) {
	t.Parallel()
	standstill(t, "up", func(_ *cluster.Server, k *cluster.Link) { k.Cut() }, func(_ *cluster.Server, k *cluster.Link) { k.Heal() })
}

func standstill(t *testing.T, step string, stop, resume func(first *cluster.Server, store *cluster.Link)) {
	m := newMarquee(t, rig.V2)
	watch := rig.NewWatch(t, m.Docker)
	around := rig.AddBystanders(t, m.Docker, m.Root)
	c := pgtest.Shared(t)
	url := c.Database(t)
	store := cluster.NewLink(t, c.Addr())
	first := cluster.StartServer(t, cluster.ServerOptions{DatabaseURL: strings.Replace(url, c.Addr(), store.Addr(), 1), Lease: lease})
	first.WaitReady()
	second := cluster.StartServer(t, cluster.ServerOptions{DatabaseURL: url, Lease: lease})
	second.WaitStandby()
	m.add(first)
	began := time.Now()
	fuse(t, first, 0, "playground", "up", directory(t, dockertest.Image, 1), "--yes")
	project := m.project(t, first)
	inst := m.installation()
	before := around.Inventory(inst)

	fuse(t, first, 0, "playground", "up", directory(t, dockertest.Image, 2), "--yes", "--detach")
	first.Eventually(3*time.Minute, "the rollout is at "+step, func() bool {
		p := get(t, first)
		return p.Step == step || p.Rollout.Result == "done"
	})
	stop(first, store)
	frozen := time.Now()
	second.Eventually(3*time.Minute, "the second leads", second.Ready)
	testkit.Eventually(t, time.Minute, "twice the lease has passed", func() bool { return time.Since(frozen) > 2*lease })
	known := m.onHost()
	resume(first, store)
	// As long as the first may need to notice, and what a pass over the marquee
	// and an operation would take it.
	thawed := time.Now()
	second.Eventually(5*time.Minute, "the second brings it to its end", func() bool {
		p := get(t, second)
		return p.State == "running" && p.Step == "" && time.Since(thawed) > 2*lease
	})
	m.running(project)

	ops := operations(t, url)
	current := uint64(0)
	for _, op := range ops {
		current = max(current, op.Epoch)
	}
	for id, what := range m.onHost() {
		i := slices.IndexFunc(ops, func(o operation) bool { return o.ID == id })
		if i < 0 {
			t.Errorf("operation %s (%s) of the host is in no record", id, what)
			continue
		}
		if _, old := known[id]; !old && ops[i].Epoch != current {
			t.Errorf("operation %s (%s) was begun after the first server went on, under epoch %d of %d", id, what, ops[i].Epoch, current)
		}
		if !strings.HasSuffix(what, " "+strconv.FormatUint(ops[i].Epoch, 10)) {
			t.Errorf("operation %s is of epoch %d on record, and on the host %q", id, ops[i].Epoch, what)
		}
	}
	var spans []rig.Span
	had := epochs(t, url)
	for _, op := range ops {
		if op.Refused {
			continue
		}
		end := op.Ended
		if end.IsZero() {
			end = time.Now()
		}
		spans = append(spans, rig.Span{
			Op: op.ID, Project: project.String(), Kind: model.OpKind(op.Kind), Volumes: op.Volumes, Epoch: op.Epoch, Current: had.At(op.Started), From: op.Started, To: end,
		})
	}
	for _, e := range rig.Unexplained(watch.Since(t, began), spans) {
		t.Errorf("without an operation: %s", e)
	}
	if diff := rig.Diff(before, around.Inventory(inst)); diff != "" {
		t.Errorf("a bystander changed:\n%s", diff)
	}
	t.Logf("%d operations, epoch %d", len(ops), current)
}

// installation is what the servers call themselves on the host.
func (m *marquee) installation() model.InstallationID {
	m.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(m.Root, "ops", "*"))
	if err != nil || len(dirs) != 1 {
		m.t.Fatalf("%v %v", dirs, err)
	}
	return model.InstallationID(filepath.Base(dirs[0]))
}
