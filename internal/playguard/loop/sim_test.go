package loop_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

const (
	root  = "/opt/fuse"
	nonce = "00112233445566778899aabbccddeeff"
)

// box is one container of a simulated host.
type box struct {
	service, digest, state, health string
	exit                           int
	finished                       time.Time
}

// project is what a simulated host has of one project.
type project struct {
	id      model.PlaygroundID
	boxes   []box
	volumes []string
	compose []byte // nil: no compose file; without marker too, no directory
	marker  []byte
	work    *checkout
	aside   *project // what the sweep set aside
}

// there reports whether it has a directory.
func (p *project) there() bool { return p.compose != nil || p.marker != nil }

// checkout is a working copy.
type checkout struct {
	name, commit string
	dirty        bool
}

type simOp struct {
	req  runner.Request
	ends time.Time
	done bool
	exit int
	text string
}

// sim is a marquee that holds everything in memory and applies operations as
// Compose does. It is safe for concurrent use.
type sim struct {
	inst   model.InstallationID
	id     model.Identity
	look   time.Duration // that a look takes
	opTime time.Duration // that an operation takes
	// begun is told of each operation that the host is asked for, before it
	// answers.
	begun func(runner.Request)

	mu       sync.Mutex
	epoch    uint64
	boot     string
	daemon   time.Time
	projects map[string]*project
	ops      map[string]*simOp
	order    []string
	dead     bool // nothing listens
	hangs    bool // nothing ever comes back
	deaf     bool // what is asked arrives, and no answer to a Start comes back
	looks    []time.Time
	started  []string // "kind epoch" of what began
	refused  int
	reaped   int
	stuck    bool                        // a destroy fails
	removed  []string                    // volumes
	reached  int                         // how often anybody came
	git      *repositories               // may be nil
	deadGit  map[string]bool             // addresses of repositories whose servers never answer
	bad      map[string]bool             // services whose program fails
	noImage  map[string]bool             // compose digests whose up fails at once
	closed   map[model.PlaygroundID]bool // their markers cannot be written, nor their checkouts read
	marked   map[model.PlaygroundID]int  // how often that was tried
}

func newSim(inst model.InstallationID) *sim {
	return &sim{
		closed: map[model.PlaygroundID]bool{}, marked: map[model.PlaygroundID]int{},
		inst: inst, look: 100 * time.Millisecond, opTime: 3 * time.Second, boot: "boot1", daemon: time.Now().Add(-time.Hour),
		id:       model.Identity{Installation: inst, MachineID: "m", DaemonID: "d", DataRoot: "/var/lib/docker", Witness: string(inst)},
		projects: map[string]*project{}, ops: map[string]*simOp{}, begun: func(runner.Request) {}, bad: map[string]bool{}, noImage: map[string]bool{},
	}
}

// reach waits as a network does.
func (s *sim) reach(ctx context.Context, d time.Duration) error {
	s.mu.Lock()
	dead, hangs := s.dead, s.hangs
	s.reached++
	s.mu.Unlock()
	switch {
	case dead:
		return &sshx.Error{Ending: observe.EndedDial, Op: "connect", Err: errors.New("refused")}
	case hangs:
		ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
		defer cancel()
		<-ctx.Done()
		return &sshx.Error{Ending: observe.EndedDeadline, Op: "run", Err: ctx.Err()}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return &sshx.Error{Ending: observe.EndedDeadline, Op: "run", Err: ctx.Err()}
	}
}

func (s *sim) Claim(ctx context.Context, epoch uint64) error {
	if err := s.reach(ctx, s.look); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raised(epoch)
}

// fence is what the runner does first. The lock is held.
func (s *sim) fence(epoch uint64) error {
	s.settle()
	for _, op := range s.ops {
		if !op.done {
			return runner.ErrBusy
		}
	}
	return s.raised(epoch)
}

// raised lets no older epoch start anything. The lock is held.
func (s *sim) raised(epoch uint64) error {
	if epoch < s.epoch {
		s.refused++
		return fmt.Errorf("epoch %d after %d: %w", epoch, s.epoch, runner.ErrSuperseded)
	}
	s.epoch = epoch
	return nil
}

func (s *sim) Start(ctx context.Context, r runner.Request) error {
	if err := s.reach(ctx, s.look); err != nil {
		return err
	}
	s.begun(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ops[r.Op] == nil {
		if err := s.fence(r.Epoch); err != nil {
			return err
		}
		s.ops[r.Op] = &simOp{req: r, ends: time.Now().Add(s.opTime)}
		s.order = append(s.order, r.Op)
		s.started = append(s.started, fmt.Sprintf("%s %d", r.Verb.Kind(), r.Epoch))
	}
	if s.deaf {
		return &sshx.Error{Ending: observe.EndedWithout, Op: "run", Err: io.ErrUnexpectedEOF}
	}
	return nil
}

func (s *sim) Poll(ctx context.Context, id string) (runner.Progress, error) {
	if err := s.reach(ctx, s.look); err != nil {
		return runner.Progress{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	op := s.ops[id]
	if op == nil {
		return runner.Progress{}, nil
	}
	return runner.Progress{Known: true, Running: !op.done, Status: op.exit, ErrText: op.text}, nil
}

func (s *sim) Cancel(ctx context.Context, epoch uint64, id string) error {
	if err := s.reach(ctx, s.look); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch < s.epoch {
		return runner.ErrSuperseded
	}
	s.settle()
	if op := s.ops[id]; op != nil && !op.done { // half of what it was to do
		op.done, op.exit, op.text = true, 143, "runner: told to end"
		if p := s.at(op.req); op.req.Verb.Kind() == model.OpUp && p.compose != nil {
			s.up(p)
			p.boxes = p.boxes[:len(p.boxes)/2]
		}
	}
	return nil
}

func (s *sim) Reap(ctx context.Context, _ int) error {
	if err := s.reach(ctx, s.look); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reaped++
	return nil
}

// settle ends operations whose time has come. The lock is held.
func (s *sim) settle() {
	for _, id := range s.order {
		if op := s.ops[id]; !op.done && !time.Now().Before(op.ends) {
			op.done = true
			op.exit, op.text = s.apply(op.req)
		}
	}
}

func (s *sim) at(r runner.Request) *project {
	p := s.projects[r.Project.String()]
	if p == nil {
		p = &project{id: r.Playground}
		s.projects[r.Project.String()] = p
	}
	return p
}

// apply is what an operation leaves behind.
func (s *sim) apply(r runner.Request) (int, string) {
	p := s.at(r)
	switch r.Verb.Kind() {
	case model.OpFiles:
		files := unpack(r.Payload)
		p.compose, p.marker = files["compose.yml"], files[".fuse/owner.json"]
	case model.OpUp:
		if p.compose == nil {
			return 1, "no compose file"
		}
		if s.noImage[digest(p.compose)] {
			return 1, "Error response from daemon: manifest for x:1 not found: manifest unknown"
		}
		s.up(p)
	case model.OpStop:
		s.end(p, 0)
	case model.OpDown:
		p.boxes = nil
	case model.OpDestroy:
		if s.stuck {
			return 1, "Error response from daemon: driver failed to remove root filesystem: device or resource busy"
		}
		s.destroy(p, r)
	default:
		return s.applyMore(p, r)
	}
	return 0, ""
}

func (s *sim) destroy(p *project, r runner.Request) {
	s.removed = append(s.removed, r.Verb.Volumes()...)
	p.volumes = slices.DeleteFunc(p.volumes, func(v string) bool { return slices.Contains(r.Verb.Volumes(), v) })
	p.boxes, p.compose, p.marker, p.work = nil, nil, nil, nil
}

// applyMore is what operations do that know of checkouts.
func (s *sim) applyMore(p *project, r runner.Request) (int, string) {
	dirty := func(p *project) bool { return p.work != nil && p.work.dirty }
	switch r.Verb.Kind() {
	case model.OpReclaim:
		if dirty(p) {
			return decide.ExitHolds, "runner: a checkout holds work"
		}
		s.destroy(p, r)
	case model.OpSweep:
		if dirty(p) {
			return decide.ExitHolds, "runner: a checkout holds work"
		}
		p.aside = &project{id: p.id, compose: p.compose, marker: p.marker, work: p.work}
		p.boxes, p.compose, p.marker, p.work = nil, nil, nil, nil
	case model.OpRestore:
		if p.aside != nil {
			p.compose, p.marker, p.work, p.aside = p.aside.compose, p.aside.marker, p.aside.work, nil
		}
	case model.OpPurge:
		if p.aside != nil && dirty(p.aside) {
			return decide.ExitHolds, "runner: a checkout holds work"
		}
		p.aside = nil
	case model.OpBranch:
		return s.git.forward(p, unpack(r.Payload))
	case model.OpMark:
		s.marked[r.Playground]++
		if s.closed[r.Playground] {
			return 73, "runner: read-only file system"
		}
		p.marker = unpack(r.Payload)[".fuse/owner.json"]
	}
	return 0, ""
}

// up makes what the compose file says, and keeps what is as it should be.
func (s *sim) up(p *project) {
	var services []model.Service
	if err := json.Unmarshal(p.compose, &services); err != nil {
		services = rendered(p.compose)
	}
	var boxes []box
	for _, svc := range services {
		b := box{service: svc.Name, digest: svc.Digest, state: "running"}
		if s.bad[svc.Digest] || svc.Name == "web" && failing(p.compose) {
			b.state, b.exit, b.finished = "exited", 3, time.Now()
		}
		boxes = append(boxes, b)
	}
	p.boxes, p.volumes = boxes, []string{string(p.id) + "_data"}
}

func (s *sim) end(p *project, exit int) {
	for i := range p.boxes {
		p.boxes[i].state, p.boxes[i].exit, p.boxes[i].finished = "exited", exit, time.Now()
	}
}

// hurt changes what the host has of a project.
func (s *sim) hurt(name model.Project, fn func(p *project)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s.projects[name.String()])
}

// set changes the host itself.
func (s *sim) set(fn func(s *sim)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s)
}

// ran lists the operations that began.
func (s *sim) ran() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.started)
}

// lookTimes is when the host was looked at.
func (s *sim) lookTimes() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.looks)
}

// gone lists the volumes that were removed.
func (s *sim) gone() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.removed)
}

// forgot counts how often old operations were forgotten.
func (s *sim) forgot() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reaped
}

// running lists the services of a project that run, and their definitions.
func (s *sim) running(name model.Project) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	out := map[string]string{}
	if p := s.projects[name.String()]; p != nil {
		for _, b := range p.boxes {
			if b.state == "running" {
				out[b.service] = b.digest
			}
		}
	}
	return out
}

func (s *sim) Look(ctx context.Context) observe.Trip {
	t := observe.Trip{Nonce: nonce, From: time.Now(), Ending: observe.EndedExit}
	s.mu.Lock()
	s.looks = append(s.looks, t.From)
	s.mu.Unlock()
	err := s.reach(ctx, s.look)
	t.To = time.Now()
	if err != nil {
		t.Ending = sshx.EndingOf(err)
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	frame, err := observe.Encode(nonce, s.parts())
	if err != nil {
		panic(err)
	}
	t.Stdout = frame
	return t
}

func (s *sim) parts() []observe.Part {
	var containers, volumes, ops, names strings.Builder
	var each []observe.Part
	line := func(w *strings.Builder, v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		w.Write(append(raw, '\n'))
	}
	for _, name := range slices.Sorted(maps.Keys(s.projects)) {
		p := s.projects[name]
		labels := func(more ...string) map[string]string {
			l := map[string]string{model.LabelInstallation: string(s.inst), model.LabelPlayground: string(p.id), "com.docker.compose.project": name}
			for i := 0; i+1 < len(more); i += 2 {
				l[more[i]] = more[i+1]
			}
			return l
		}
		for i, b := range p.boxes {
			line(&containers, map[string]any{
				"id": fmt.Sprint(name, i), "name": "/" + name + "-" + b.service + "-1", "state": b.state, "exit": b.exit, "health": b.health, "restart": "no",
				"finished": b.finished, "labels": labels("com.docker.compose.service", b.service, model.LabelDigest, b.digest),
			})
		}
		for _, v := range p.volumes {
			line(&volumes, map[string]any{"name": v, "labels": labels()})
		}
		if p.there() {
			names.WriteString(name + "\n")
			sum := ""
			if p.compose != nil {
				sum = digest(p.compose)
			}
			each = append(each, observe.Part{Name: "marker:" + name, Out: p.marker},
				observe.Part{Name: "files:" + name, Out: fmt.Appendf(nil, "path=%s/playgrounds/%s\ncompose=%s\n", root, name, sum)})
			each = append(each, p.work.parts(name)...)
		}
	}
	for _, id := range s.order {
		op := s.ops[id]
		state := "running"
		if op.done {
			state = fmt.Sprint(op.exit)
		}
		fmt.Fprintf(&ops, "%s %s %s %d %s\n", id, op.req.Project, op.req.Verb.Kind(), op.req.Epoch, state)
	}
	return append([]observe.Part{
		{Name: "host", Out: fmt.Appendf(nil, "installation=%s\nmachine_id=%s\nboot_id=%s\nclock=%d\nuptime=%d\nepoch=%d\ndisk_free=1000\nodd_dirs=0\n",
			s.id.Installation, s.id.MachineID, s.boot, time.Now().Unix(), 3600, s.epoch)},
		{Name: "daemon", Out: fmt.Appendf(nil, "id=%s\nroot=%s\nwitness=%s\nversion=28.2.2\nstorage=overlay2\nstarted=%d\n", s.id.DaemonID, s.id.DataRoot, s.id.Witness, s.daemon.Unix())},
		{Name: "compose", Out: []byte("flavour=v2\nversion=2.40.3\n")},
		{Name: "containers", Out: []byte(containers.String())}, {Name: "foreign"}, {Name: "volumes", Out: []byte(volumes.String())},
		{Name: "ops", Out: []byte(ops.String())}, {Name: "projects", Out: []byte(names.String())},
	}, each...)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func unpack(archive []byte) map[string][]byte {
	out := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err != nil {
			return out
		}
		if out[h.Name], err = io.ReadAll(r); err != nil {
			panic(err)
		}
	}
}
