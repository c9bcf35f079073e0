package decide_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

const (
	installation = "inst1"
	root         = "/opt/fuse"
	nonce        = "00112233445566778899aabbccddeeff"
)

// noon is when every scenario begins, by our clock and the host's.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var services = []model.Service{{Name: "web", Digest: "d1"}, {Name: "db", Digest: "d1"}}

// container is a container of the model host.
type container struct {
	name, service, digest, state, health, restart, replaces string
	exit                                                    int
	started, finished                                       time.Time
	oneOff                                                  bool
}

// stack is all that a model host has of one project.
type stack struct {
	id         model.PlaygroundID
	containers []container
	volumes    []string
	dir        bool
	marker     string // replaces the proper marker if set; "none" is no marker
	compose    string // digest of the compose file; empty if it is missing
	path       string // where the directory resolves to, if not where it should
	dirUnread  bool
	git        map[string]string // checkout to what git says; "unread" if it failed
	foreign    int
	ops        []string // lines of the look
	epoch      uint64   // of the marker
	life       int      // of its containers: other ids in each
}

// modelHost is a marquee as a pure simulator: it applies operations the way
// Compose would and answers a look with a frame.
type modelHost struct {
	pin      model.Identity
	identity model.Identity
	boot     string
	booted   time.Time
	daemon   time.Time
	epoch    uint64
	stacks   map[model.Project]*stack
	removed  []string // volumes that were removed, ever
	ending   observe.Ending
	cut      int // bytes that arrive; all if 0
	failed   string
	off      time.Duration // of its clock
	same     string        // if set, names this state of the host: its looks are remembered
}

// remembered are the looks at hosts in a named state: enumerations look at the
// same few hosts again and again.
var remembered = map[string]observe.Look{}

func newHost() *modelHost {
	id := model.Identity{Installation: installation, MachineID: "m1", DaemonID: "dd", DataRoot: "/var/lib/docker", Witness: "w1"}
	return &modelHost{
		pin: id, identity: id, boot: "boot1", booted: noon.Add(-time.Hour), daemon: noon.Add(-time.Hour),
		epoch: 7, stacks: map[model.Project]*stack{}, ending: observe.EndedExit,
	}
}

func (h *modelHost) stack(p model.Project) *stack {
	if h.stacks[p] == nil {
		h.stacks[p] = &stack{id: p.ID(), epoch: 7}
	}
	return h.stacks[p]
}

// place sets a stack up as a finished "up" leaves it.
func (s *stack) place(services []model.Service, digest string) {
	s.dir, s.compose, s.epoch = true, digest, 7
	s.volumes = []string{string(s.id) + "_data"}
	s.containers = nil
	for _, svc := range services {
		s.containers = append(s.containers, container{name: string(s.id) + "-" + svc.Name + "-1", service: svc.Name, digest: svc.Digest, state: "running", restart: "no", started: noon.Add(-30 * time.Minute)})
	}
}

// end stops every container with one exit status.
func (s *stack) end(exit int, at time.Time) {
	for i := range s.containers {
		c := &s.containers[i]
		c.state, c.exit, c.finished, c.health = "exited", exit, at, ""
	}
}

// run carries out an operation as the runner would.
func (h *modelHost) run(p model.Playground, verb decide.Verb, now time.Time) (exit int) {
	s := h.stack(p.Project)
	h.same = ""
	if verb.Kind() == model.OpReclaim && s.holds() {
		return decide.ExitHolds
	}
	switch verb.Kind() {
	case model.OpUp:
		if s.compose != "" {
			old := s.volumes
			s.place(p.Services, s.compose)
			s.volumes = union(old, s.volumes)
		}
	case model.OpStop:
		s.end(0, now)
	case model.OpDown:
		s.containers = nil
	case model.OpFiles:
		s.dir, s.compose = true, p.Desired
	case model.OpDestroy, model.OpReclaim:
		s.containers, s.dir, s.compose, s.git = nil, false, "", nil
		h.removed = append(h.removed, verb.Volumes()...)
		s.volumes = slices.DeleteFunc(s.volumes, func(v string) bool { return slices.Contains(verb.Volumes(), v) })
	}
	return 0
}

func union(a, b []string) []string {
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// look answers one look.
func (h *modelHost) look(now time.Time) observe.Look {
	if h.same == "" {
		return h.conclude(now)
	}
	key := h.same + now.String()
	l, ok := remembered[key]
	if !ok {
		l = h.conclude(now)
		remembered[key] = l
	}
	return l
}

func (h *modelHost) conclude(now time.Time) observe.Look {
	frame, err := observe.Encode(nonce, h.parts(now))
	if err != nil {
		panic(err)
	}
	t := observe.Trip{Nonce: nonce, Ending: h.ending, Stdout: frame, From: now.Add(-time.Second), To: now}
	switch {
	case h.ending != observe.EndedExit && h.cut == 0:
		t.Stdout = nil
	case h.cut > 0:
		t.Stdout, t.Ending = frame[:min(h.cut, len(frame)-1)], observe.EndedWithout
	}
	return observe.Conclude(t, h.pin)
}

func (h *modelHost) parts(now time.Time) []observe.Part {
	var daemon, containers, foreign, volumes, ops, projects strings.Builder
	fmt.Fprintf(&daemon, "id=%s\nroot=%s\nwitness=%s\nversion=28.2.2\nstorage=overlay2\nstarted=%d\n",
		h.identity.DaemonID, h.identity.DataRoot, h.identity.Witness, h.daemon.Unix())
	var perProject []observe.Part
	for _, p := range h.projects() {
		s := h.stacks[p]
		for i, c := range s.containers {
			containers.WriteString(c.line(fmt.Sprintf("%s%d%s", s.id, i, strings.Repeat("x", s.life)), p, s.id))
		}
		for i := range s.foreign {
			fmt.Fprintf(&foreign, "f%d %s\n", i, p)
		}
		for _, v := range s.volumes {
			line, _ := json.Marshal(map[string]any{"name": v, "labels": labels(p, s.id)})
			volumes.Write(append(line, '\n'))
		}
		for _, op := range s.ops {
			ops.WriteString(op + "\n")
		}
		if s.dir {
			projects.WriteString(p.String() + "\n")
			perProject = append(perProject, s.parts(p)...)
		}
	}
	host := fmt.Sprintf("installation=%s\nmachine_id=%s\nboot_id=%s\nclock=%d\nuptime=%d\nepoch=%d\ndisk_free=1000\nodd_dirs=0\n",
		h.identity.Installation, h.identity.MachineID, h.boot, now.Add(h.off).Unix(), int(now.Sub(h.booted).Seconds()), h.epoch)
	parts := append([]observe.Part{
		{Name: "host", Out: []byte(host)}, {Name: "daemon", Out: []byte(daemon.String())},
		{Name: "compose", Out: []byte("flavour=v2\nversion=2.40.3\n")},
		{Name: "containers", Out: []byte(containers.String())}, {Name: "foreign", Out: []byte(foreign.String())},
		{Name: "volumes", Out: []byte(volumes.String())}, {Name: "ops", Out: []byte(ops.String())},
		{Name: "projects", Out: []byte(projects.String())},
	}, perProject...)
	if name, text, ok := strings.Cut(h.failed, ": "); ok {
		for i := range parts {
			if parts[i].Name == name {
				parts[i] = observe.Part{Name: name, Status: 1, Err: []byte(text)}
			}
		}
	}
	return parts
}

func (h *modelHost) projects() []model.Project {
	var list []model.Project
	for p := range h.stacks {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b model.Project) int { return strings.Compare(a.String(), b.String()) })
	return list
}

func labels(p model.Project, id model.PlaygroundID) map[string]string {
	return map[string]string{
		model.LabelInstallation: installation, model.LabelPlayground: string(id), "com.docker.compose.project": p.String(),
	}
}

func (c container) line(id string, p model.Project, owner model.PlaygroundID) string {
	l := labels(p, owner)
	l["com.docker.compose.service"], l[model.LabelDigest] = c.service, c.digest
	if c.replaces != "" {
		l["com.docker.compose.replace"] = c.replaces
	}
	if c.oneOff {
		l["com.docker.compose.oneoff"] = "True"
	}
	line, err := json.Marshal(map[string]any{
		"id": id, "name": "/" + c.name, "state": c.state, "exit": c.exit, "health": c.health, "restart": c.restart,
		"started": c.started, "finished": c.finished, "labels": l,
	})
	if err != nil {
		panic(err)
	}
	return string(line) + "\n"
}

func (s *stack) parts(p model.Project) []observe.Part {
	marker, _ := model.Marker{
		Kind: model.KindPlayground, Installation: installation, Marquee: "m1", Playground: s.id, Project: p, Epoch: s.epoch, CreatedAt: noon,
	}.Encode()
	switch s.marker {
	case "":
	case "none":
		marker = nil
	default:
		marker = []byte(strings.ReplaceAll(string(marker), installation, s.marker))
	}
	path := s.path
	if path == "" {
		path = root + "/playgrounds/" + p.String()
	}
	files := observe.Part{Name: "files:" + p.String(), Out: fmt.Appendf(nil, "path=%s\ncompose=%s\n", path, s.compose)}
	if s.dirUnread {
		files = observe.Part{Name: files.Name, Status: 1, Err: []byte("Permission denied")}
	}
	parts := []observe.Part{{Name: "marker:" + p.String(), Out: marker}, files}
	var names strings.Builder
	for _, name := range sortedKeys(s.git) {
		names.WriteString(name + "\n")
		part := observe.Part{Name: "git:" + p.String() + ":" + name, Out: []byte(s.git[name])}
		if s.git[name] == "unread" {
			part.Out, part.Status = nil, 124
		}
		parts = append(parts, part)
	}
	return append(parts, observe.Part{Name: "checkouts:" + p.String(), Out: []byte(names.String())})
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// What git says of a checkout.
const (
	gitClean = "repository=yes\nhead=yes\nchanged=0\nunpushed=0\nstashes=0\n"
	gitDirty = "repository=yes\nhead=yes\nchanged=2\nunpushed=0\nstashes=0\n"
)

func marquee(h *modelHost) model.Marquee {
	return model.Marquee{ID: "m1", Root: root, Admin: model.AdminActive, Reach: model.ReachOK, Identity: h.pin}
}

// playground makes a record as it is some time after a successful up.
func playground(name, id string) model.Playground {
	project, err := model.NewProject(name, model.PlaygroundID(id))
	if err != nil {
		panic(err)
	}
	return model.Playground{
		ID: model.PlaygroundID(id), Marquee: "m1", Project: project,
		Intent: model.IntentUp, State: model.StateRunning, StateSince: noon.Add(-time.Hour),
		Services: services, Desired: "c1", Applied: "c1",
		AppliedAt: noon.Add(-time.Hour), LastUp: model.Boot{BootID: "boot1", DaemonStart: noon.Add(-time.Hour)},
	}
}
