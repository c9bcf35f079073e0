package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/playguard/rig"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// What a soak is told by its environment.
const (
	seedEnv = "FUSE_SOAK_SEED"
	forEnv  = "FUSE_SOAK_FOR"
)

// room is how large the daemon's disk is, and names are the playgrounds.
const room = 256 << 20

var names = []string{"shop", "blog"}

// soak is one host that is broken, and Playguard in front of it.
type soak struct {
	t      *testing.T
	r      *rand.Rand
	docker *dockertest.Daemon
	host   *rig.Host
	store  *state.Store
	sealer *secrets.Sealer
	inst   model.InstallationID
	policy model.Policy
	lead   *leader
	term   int64
	epochs *epochs
	hands  []rig.Span // what the faults themselves may have done
	ops    map[string]rig.Span
	by     *rig.Bystanders
	before string // what they are to be
}

// leader is a process's worth of Playguard, on a store that takes nothing from
// who was overtaken.
type leader struct {
	*state.Store
	epochs *epochs
	term   int64
	holds  atomic.Bool
	svc    *service.Service
	end    func()
}

func (l *leader) Term() int64 { return l.term }

func (l *leader) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	if !l.holds.Load() {
		return state.Commit{}, fleet.ErrNotLeader
	}
	var seen []rig.Begun
	c, err := l.Store.Update(ctx, func(tx *state.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		seen = nil
		for _, m := range records.Marquees.All(tx) { // there is one
			seen = append(seen, rig.Begun{Epoch: m.Term.Epoch, At: tx.Now()})
		}
		return nil
	})
	if err == nil {
		l.epochs.saw(seen)
	}
	return c, err
}

// epochs are what the marquee had, by the commits that said so.
type epochs struct {
	mu  sync.Mutex
	all rig.Epochs
}

func (e *epochs) saw(list []rig.Begun) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range list {
		i := slices.IndexFunc(e.all, func(a rig.Begun) bool { return a.Epoch == b.Epoch })
		switch {
		case i < 0:
			e.all = append(e.all, b)
		case b.At.Before(e.all[i].At):
			e.all[i].At = b.At
		}
	}
	slices.SortFunc(e.all, func(a, b rig.Begun) int { return a.At.Compare(b.At) })
}

func (e *epochs) at(at time.Time) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all.At(at)
}

// TestSoak breaks daemon, link, disk and leader at random, then lets them be,
// and wants every playground to run what was asked last. Bystanders stay as
// they are, and nothing goes without an operation of the epoch it began in.
func TestSoak(t *testing.T) {
	length := time.Duration(testkit.Count(15, 3600)) * time.Second
	if text := os.Getenv(forEnv); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		length = d
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	flavour := rig.V2
	if testkit.Count(0, 1) == 1 && seed%2 == 0 { // a long run takes either
		flavour = rig.V1
	}
	t.Logf("%s=%d %s=%s, Compose %s", seedEnv, seed, forEnv, length, flavour)
	d := dockertest.StartSmall(t, room)
	h := rig.NewHost(t, d, flavour, "soak")
	watch := rig.NewWatch(t, d)
	s := newSoak(t, d, h, seed)
	s.by = rig.AddBystanders(t, d, h.Root)
	s.takeOver()
	defer func() { s.lead.end() }()
	s.add()
	began := time.Now()
	s.before = s.by.Inventory(s.inst)
	for n := range names {
		s.up(n)
	}
	s.settled()
	for end := began.Add(length); time.Now().Before(end); {
		heal := s.fault()
		s.people()
		<-time.After(time.Duration(200+s.r.IntN(3000)) * time.Millisecond) // how long a fault lasts is part of it
		heal()
		s.note()
	}
	s.settled()
	s.unharmed()
	for _, e := range rig.Unexplained(watch.Since(t, began), s.spans()) {
		t.Errorf("without an operation of ours: %s", e)
	}
	if rows := s.spans(); len(rows) < 3 {
		t.Errorf("hardly anything was done: %v", rows)
	}
}

// unharmed fails if a bystander is not what it was.
func (s *soak) unharmed() {
	s.t.Helper()
	if diff := rig.Diff(s.before, s.by.Inventory(s.inst)); diff != "" {
		s.t.Errorf("a bystander changed:\n%s", diff)
	}
}

func newSoak(t *testing.T, d *dockertest.Daemon, h *rig.Host, seed uint64) *soak {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	key, err := secrets.ParseKey(strings.Repeat("5a", 32))
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, r: rand.New(rand.NewPCG(seed, 3)), docker: d, host: h, store: store, sealer: secrets.NewSealer(key), inst: records.Installation(store.FleetID()), epochs: &epochs{}, ops: map[string]rig.Span{}}
	// Minutes of life in seconds, so that what waits is seen to end.
	s.policy = model.DefaultPolicy()
	s.policy.Period, s.policy.StrikeGap, s.policy.ApplyGrace, s.policy.RolloutCooldown = 2*time.Second, time.Second, 3*time.Second, 3*time.Second
	s.policy.RepairLease, s.policy.RepairTries, s.policy.RepairWindow = 3*time.Second, 10, time.Minute
	s.policy.ProbeMin, s.policy.ProbeMax, s.policy.RequeueMin, s.policy.RequeueMax = 2*time.Second, 4*time.Second, time.Second, 5*time.Second
	s.policy.StaleFast, s.policy.StaleSlow, s.policy.HealthTimeout, s.policy.HealthInterval = 10*time.Second, 30*time.Second, 30*time.Second, 500*time.Millisecond
	return s
}

// takeOver begins a term. The one before ends as a process that is killed: its
// lease is gone, its connections are cut, and it writes nothing more.
func (s *soak) takeOver() {
	s.t.Helper()
	if s.lead != nil {
		s.lead.holds.Store(false)
		s.host.Link.Cut()
		s.lead.end()
	}
	s.term++
	l := &leader{Store: s.store, epochs: s.epochs, term: s.term}
	l.holds.Store(true)
	hosts := &reach.Hosts{Pool: sshx.NewPool(sshx.Timeouts{}), Sealer: s.sealer, Installation: s.inst}
	log := slog.New(slog.DiscardHandler)
	lp := loop.New(loop.Config{
		Store: l, Policy: s.policy, Logger: log, Drop: hosts.Drop, Host: func(m records.Marquee) work.Host { return hosts.Host(m) },
		Worker: work.New(work.Config{Store: l, Sealer: s.sealer, Installation: s.inst, Policy: s.policy, Logger: log, Lease: func() (time.Duration, error) {
			if !l.holds.Load() {
				return 0, errors.New("another server leads")
			}
			return time.Minute, nil
		}}),
	})
	svc, err := service.New(service.Config{Store: l, Sealer: s.sealer, Loop: lp, Hosts: hosts, Installation: s.inst, Policy: s.policy, Logger: log})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- lp.Run(ctx) }()
	l.svc = svc
	l.end = func() {
		stop()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		hosts.Pool.Close()
	}
	s.lead = l
}

func (s *soak) add() {
	s.t.Helper()
	_, err := s.lead.svc.AddMarquee(s.t.Context(), service.NewMarquee{
		Name: "box", Hop: service.Hop{Address: s.host.Link.Address, User: s.host.SSH.User, HostKey: s.host.SSH.HostKey}, Key: s.host.SSH.Key, Root: s.host.Root,
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// up gives a playground a definition; one that cannot be had now is given later.
func (s *soak) up(n int) {
	s.t.Helper()
	file := fmt.Sprintf("services:\n  web:\n    image: %s\n    network_mode: none\n    environment: {N: '%d'}\n    volumes: ['data:/data']\n"+
		"    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 100000 & wait']\nvolumes: {data: {}}\n", dockertest.Image, s.r.IntN(1000))
	_, err := s.lead.svc.Up(s.t.Context(), service.UpRequest{Name: names[n], Files: []service.File{{Path: "compose.yaml", Data: []byte(file)}}})
	if err != nil && fleet.CodeOf(err) != fleet.CodeConflict {
		s.t.Error(err)
	}
}

// people ask for something.
func (s *soak) people() {
	n := s.r.IntN(len(names))
	if s.r.IntN(2) == 0 {
		s.up(n)
		return
	}
	actions := []model.Action{model.ActionStop, model.ActionStart, model.ActionRollout, model.ActionHardRestart}
	_, err := s.lead.svc.Act(s.t.Context(), names[n], service.ActionRequest{Action: actions[s.r.IntN(len(actions))]})
	if err != nil && fleet.CodeOf(err) != fleet.CodeConflict {
		s.t.Error(err)
	}
}

// fault breaks something and returns what mends it.
func (s *soak) fault() (heal func()) {
	switch s.r.IntN(7) {
	case 0:
		s.host.Link.Cut()
	case 1:
		s.host.Link.Hold()
		return s.host.Link.Release
	case 2:
		s.host.Link.Refuse(true)
		s.host.Link.Cut()
		return func() { s.host.Link.Refuse(false) }
	case 3:
		s.docker.Freeze()
		return s.docker.Thaw
	case 4: // the daemon's end takes everybody's containers with it
		s.unharmed() // its end is one of theirs too
		from := time.Now()
		s.docker.Kill()
		return func() {
			s.docker.Run(s.t)
			s.by.Revive()
			s.before = s.by.Inventory(s.inst)
			s.hands = append(s.hands, rig.Span{Op: "daemon killed", From: from, To: time.Now()})
		}
	case 5:
		full := filepath.Join(s.docker.Data(), "full")
		if f, err := os.Create(full); err == nil {
			for chunk := make([]byte, 1<<20); err == nil; {
				_, err = f.Write(chunk)
			}
			_ = f.Close() // it is full
		}
		return func() { _ = os.Remove(full) }
	case 6:
		s.takeOver()
	}
	return func() {}
}

// settled wants every playground to be what was asked of it: first by itself,
// and one that ended in an error for good, such as that of a full disk, when it
// is asked for again.
func (s *soak) settled() {
	s.t.Helper()
	bad := ""
	for end := time.Now().Add(8 * time.Minute); time.Now().Before(end); <-time.After(500 * time.Millisecond) {
		if bad = s.wrong(); bad == "" {
			return
		}
		for _, name := range names {
			p, err := s.lead.svc.Playground(s.t.Context(), name)
			if err == nil && p.State == model.StateError && p.Intent == model.IntentUp && p.Step == "" && !p.Failure.Temporary() {
				_, _ = s.lead.svc.Act(s.t.Context(), name, service.ActionRequest{Action: model.ActionRetryCompose}) // somebody may be first
			}
		}
	}
	s.t.Fatal(bad)
}

func (s *soak) wrong() string {
	for _, name := range names {
		p, err := s.lead.svc.Playground(s.t.Context(), name)
		if err != nil {
			return err.Error()
		}
		have := s.host.Containers(p.Project)
		runs := slices.Contains(have, "web running")
		ok := p.State == model.StateRunning && runs && len(have) == 1 && p.Applied == p.Desired || p.State == model.StateStopped && !runs
		if !ok || p.Step != "" {
			return fmt.Sprintf("%s is %s (%s, %s, %+v), the host has %q", name, p.State, p.Step, p.Reason, p.Failure, have)
		}
	}
	return ""
}

// spans are all operations so far, and what the faults may have done.
func (s *soak) spans() []rig.Span {
	s.t.Helper()
	s.note()
	out := slices.Clone(s.hands)
	for _, op := range s.ops {
		out = append(out, op)
	}
	return out
}

// note takes down the operations that are known: the records keep a few of each
// playground only.
func (s *soak) note() {
	s.t.Helper()
	if err := s.store.View(func(tx *state.ReadTx) error {
		for _, p := range records.Playgrounds.All(tx) {
			for _, op := range records.Operations(tx, p.ID) {
				to := op.EndedAt
				if to.IsZero() || op.Lost { // it may have gone on by itself
					to = time.Now().Add(s.policy.UpTimeout)
				}
				s.ops[op.ID] = rig.Span{Op: op.ID, Project: p.Project.String(), Kind: op.Kind, Volumes: op.Volumes, Epoch: op.Epoch, Current: s.epochs.at(op.StartedAt), From: op.StartedAt, To: to}
			}
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}
