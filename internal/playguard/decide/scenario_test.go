package decide_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

var update = flag.Bool("update", false, "write the steps into the want sections")

// TestScenarios runs testdata/*.txtar; testdata/README says how they read.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			h := newHost()
			s := &scenario{t: t, host: h, marquee: marquee(h), rows: map[string]model.Playground{}, now: noon, epoch: 7}
			for i := range a.Files {
				f := &a.Files[i]
				if f.Name != "want" {
					s.section(f.Name, string(f.Data))
				} else if *update {
					f.Data = []byte(s.got)
				} else if diff := cmp.Diff(string(f.Data), s.got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

type scenario struct {
	t       *testing.T
	host    *modelHost
	marquee model.Marquee
	rows    map[string]model.Playground
	now     time.Time
	epoch   uint64
	got     string
}

func (s *scenario) section(name, data string) {
	var words [][]string
	for line := range strings.Lines(data) {
		words = append(words, strings.Fields(line))
	}
	switch name {
	case "records":
		for _, w := range words {
			s.rows[w[0]] = s.record(s.rows, w)
		}
	case "host":
		for line := range strings.Lines(data) {
			s.change(strings.TrimSpace(line))
		}
	case "ask":
		for _, w := range words {
			p, err := s.rows[w[0]].Request(model.Action(w[1]), s.now)
			if err != nil {
				s.t.Fatal(err)
			}
			s.rows[w[0]] = p
		}
	case "pass":
		s.pass(words)
	default:
		s.t.Fatalf("unknown section %q", name)
	}
}

func (s *scenario) record(rows map[string]model.Playground, w []string) model.Playground {
	p, ok := rows[w[0]]
	if !ok {
		p = playground(w[0], w[0])
	}
	p.State = model.State(w[1])
	for _, word := range w[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "intent":
			p.Intent = model.Intent(value)
		case "failure":
			class, category, _ := strings.Cut(value, "/")
			p.Failure = model.Failure{Class: model.Class(class), Category: model.Category(category)}
		case "owed":
			p.Owed = model.Action(value)
		case "desired":
			p.Desired = value
		case "keep-volumes":
			p.KeepVolumes = true
		case "since":
			p.StateSince = s.now.Add(-s.duration(value))
		case "applied":
			p.AppliedAt = s.now.Add(-s.duration(value))
		case "op":
			p.Op = model.Op{ID: value, Kind: model.OpUp, Started: s.now, Epoch: 7}
		case "revision":
			p.Revision = uint64(s.number(value))
		default:
			s.ending(&p, key, value)
		}
	}
	return p
}

func (s *scenario) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *scenario) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// change reads a line of a host section.
func (s *scenario) change(line string) {
	w := strings.Fields(line)
	h := s.host
	switch w[0] {
	case "booted":
		h.boot, h.booted, h.daemon = "boot after "+h.boot, s.now, s.now
	case "daemon-started":
		h.daemon = s.now
	case "unseen":
		h.ending = observe.Ending(strings.Join(w[1:], " "))
	case "cut":
		h.cut = s.number(w[1])
	case "fails":
		h.failed = strings.TrimPrefix(line, "fails ")
	case "seen":
		h.ending, h.cut, h.failed, h.identity = observe.EndedExit, 0, "", h.pin
	case "data-root":
		h.identity.DataRoot, h.identity.Witness = w[1], ""
	case "epoch":
		h.epoch = uint64(s.number(w[1]))
	default:
		s.changeStack(s.stack(w[0]), w[1:])
	}
}

func (s *scenario) stack(name string) *stack {
	project, err := model.NewProject(name, model.PlaygroundID(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.host.stack(project)
}

func (s *scenario) changeStack(st *stack, w []string) {
	switch w[0] {
	case "runs":
		st.place(services, "c1")
	case "stopped":
		st.end(0, s.now)
	case "killed":
		st.end(137, s.now)
	case "removed":
		st.containers = nil
	case "renewed": // other containers, which began just now
		st.life++
		for i := range st.containers {
			st.containers[i].started = s.now
		}
	case "gone":
		*st = stack{id: st.id}
	case "git":
		st.git = map[string]string{"web": map[string]string{"clean": gitClean, "dirty": gitDirty, "unread": "unread", "unpushed": strings.Replace(gitClean, "unpushed=0", "unpushed=1", 1)}[w[1]]}
	case "compose":
		st.compose = strings.TrimPrefix(w[1], "missing")
	case "marker":
		st.marker = w[1]
	case "marker-epoch":
		st.epoch = uint64(s.number(w[1]))
	case "foreign":
		st.foreign = s.number(w[1])
	case "path":
		st.path = w[1]
	case "unread":
		st.dirUnread = true
	case "op":
		st.ops = []string{fmt.Sprintf("%s %s--%s %s", w[1], st.id, st.id, strings.Join(w[2:], " "))}
	case "no-op":
		st.ops = nil
	case "volume":
		st.volumes = append(st.volumes, w[1])
	case "cut-recreate":
		// Compose was killed in mid force-recreate: the old one has ended, its
		// replacement was created under a temporary name.
		old := &st.containers[0]
		old.state, old.exit, old.finished = "exited", 137, s.now
		fresh := container{name: "0123456789ab_" + old.name, service: old.service, digest: old.digest, state: "created", restart: "no", replaces: old.name}
		st.containers = append(st.containers, fresh)
	case "one-shot":
		st.containers = append(st.containers, container{name: "init", service: w[1], digest: "d1", state: "exited", exit: s.number(w[2]), restart: "no"})
	default:
		s.changeService(st, w)
	}
}

func (s *scenario) changeService(st *stack, w []string) {
	i := slices.IndexFunc(st.containers, func(c container) bool { return c.service == w[0] })
	if i < 0 {
		s.t.Fatalf("no service or word %q", w[0])
	}
	c := &st.containers[i]
	switch w[1] {
	case "removed":
		st.containers = slices.Delete(st.containers, i, i+1)
	case "exited":
		c.state, c.exit, c.health, c.finished = "exited", s.number(w[2]), "", s.now
	case "older":
		c.digest = "d0"
	case "restart":
		c.restart = w[2]
	case "running":
		c.state, c.health = "running", ""
	case "restarting", "paused":
		c.state = w[1]
	case "created":
		c.state, c.health, c.finished = "created", "", time.Time{}
	case "healthy", "unhealthy", "starting":
		c.state, c.health = "running", w[1]
	default:
		s.t.Fatalf("unknown change %v", w)
	}
}

// pass makes one pass and carries its steps out: operations end at once.
func (s *scenario) pass(words [][]string) {
	in := decide.Input{Policy: model.DefaultPolicy(), Jobs: map[model.PlaygroundID]decide.Job{}, Epoch: s.epoch, Sent: 10, Heard: 10, Rows: 10}
	wait := time.Minute
	for id := range s.rows {
		in.Jobs[model.PlaygroundID(id)] = decide.JobNone
	}
	for _, w := range words {
		switch w[0] {
		case "after":
			wait = s.duration(w[1])
		case "job":
			in.Jobs[model.PlaygroundID(w[1])] = map[string]decide.Job{"alive": decide.JobAlive, "unknown": decide.JobUnknown, "none": decide.JobNone}[w[2]]
		case "rows":
			in.Rows = uint64(s.number(w[1]))
		case "epoch":
			s.epoch = uint64(s.number(w[1]))
			in.Epoch = s.epoch
		default:
			s.t.Fatalf("unknown word %v", w)
		}
	}
	s.now = s.now.Add(wait)
	in.Now, in.Marquee, in.Look = s.now, s.marquee, s.host.look(s.now)
	for _, id := range slices.Sorted(maps.Keys(s.rows)) {
		in.Playgrounds = append(in.Playgrounds, s.rows[id])
	}
	var got strings.Builder
	for _, step := range decide.Decide(in) {
		got.WriteString(step.String() + "\n")
		s.marquee = decide.ApplyMarquee(s.marquee, step, s.now)
		if p, ok := s.rows[string(step.Playground)]; ok {
			s.carryOut(p, step)
		}
	}
	s.got = got.String()
}

func (s *scenario) carryOut(p model.Playground, step decide.Step) {
	id := string(p.ID)
	q, there := decide.Apply(p, step, model.DefaultPolicy(), decide.Stamp{At: s.now, OpID: "op", Epoch: s.epoch})
	if !there {
		delete(s.rows, id)
		return
	}
	if r, ok := step.Act.(decide.Remote); ok {
		q = settled(q, s.host.run(p, decide.VerbOf(r.Op), s.now), s.now)
	}
	s.rows[id] = q
}
