// Package scale runs Playguard's loop over many marquees.
package scale

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const inst = model.InstallationID("inst1")

// marquees is how many there are: their hosts are all this one machine, which
// has to look at itself that often in a period.
var marquees = testkit.Count(16, 100)

// fakeDocker stands for a hundred daemons: it says what one with a healthy
// playground of the marquee says. Everything else is real.
const fakeDocker = `case "$1" in
info) printf 'id=D\nroot=/var/lib/docker\nversion=20.10.24\nstorage=overlay2\n' ;;
compose) echo 2.40.3 ;;
volume) case "$*" in *witness*) echo witness ;; esac ;;
ps) case "$*" in *compose.project*) ;; *) echo c$MQ ;; esac ;;
inspect) echo '{"id":"c'$MQ'","name":"/app--p'$MQ'-web-1","state":"running","exit":0,"health":"","restart":"no","finished":"0001-01-01T00:00:00Z","labels":{"com.docker.compose.project":"app--p'$MQ'","com.docker.compose.service":"web","com.docker.compose.container-number":"1","fuse.playguard.installation":"inst1","fuse.playguard.playground":"p'$MQ'","fuse.playguard.digest":"d"}}' ;;
esac`

// fleetOf is many marquees behind one sshd, each with a link of its own.
type fleetOf struct {
	t     *testing.T
	links []*sshdtest.Link
	dir   string
	store *state.Store
	pool  *sshx.Pool

	mu     sync.Mutex
	passes [][]pass
	seen   []int // round trips that had been counted at the end of a marquee's last pass
}

// pass is one pass over a marquee.
type pass struct {
	took    time.Duration
	verdict string
	trips   int // on the wire, since the pass before
}

// trips counts the sessions that a marquee's sshd was asked for, and how many were
// open at once at most.
func (f *fleetOf) trips(i int) (all, most int) {
	raw, err := os.ReadFile(filepath.Join(f.dir, fmt.Sprintf("trips-%03d", i)))
	if err != nil {
		return 0, 0
	}
	open := 0
	for line := range strings.Lines(string(raw)) {
		if line == "end\n" {
			open--
			continue
		}
		all, open = all+1, open+1
		most = max(most, open)
	}
	return all, most
}

// newFleet registers the marquees. All of them are on this machine, so how long
// it takes to look at one says how often all can be looked at.
func newFleet(t *testing.T) (f *fleetOf, period time.Duration) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fuse-fleet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f = &fleetOf{t: t, dir: dir, passes: make([][]pass, marquees), seen: make([]int, marquees)}
	f.put("bin/docker", "#!/bin/sh\n"+fakeDocker+"\n", 0o755)
	f.put("pid", "1", 0o600)
	// Every session says for which marquee it is, and is counted.
	f.put("session", `MQ=${SSH_ORIGINAL_COMMAND#*/mq/}; MQ=${MQ%%/*}; export MQ
echo trip >>`+dir+`/trips-$MQ
trap 'echo end >>`+dir+`/trips-$MQ' EXIT
/bin/sh -c "$SSH_ORIGINAL_COMMAND"
`, 0o600)
	s := sshdtest.Start(t, sshdtest.Options{
		Mounts: map[string]string{"/usr/local/sbin": filepath.Join(dir, "bin")},
		Config: []string{"ForceCommand /bin/sh " + filepath.Join(dir, "session"), "SetEnv DOCKER_PIDFILE=" + filepath.Join(dir, "pid")},
	})
	sealer := secrets.NewClear()
	journal := memory.New(memory.Options{})
	f.store, err = state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	for i := range marquees {
		f.links = append(f.links, sshdtest.NewLink(t, s.Address))
		f.marquee(i, s, sealer)
	}
	period = max(8*time.Second, 2*time.Duration(marquees)*f.look(s))
	f.run(period, sealer)
	return f, period
}

// look is how long it takes to look at one of them.
func (f *fleetOf) look(s *sshdtest.Server) time.Duration {
	f.t.Helper()
	c, err := sshx.Dial(f.t.Context(), sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Keys: [][]byte{s.Key}}, sshx.Timeouts{})
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	layout, err := model.NewLayout(filepath.Join(f.dir, "mq", "000", "fuse"))
	if err != nil {
		f.t.Fatal(err)
	}
	host := runner.Host{Layout: layout, Installation: inst}
	const looks = 4
	host.Observe(f.t.Context(), c)
	from := time.Now()
	for range looks {
		host.Observe(f.t.Context(), c)
	}
	return time.Since(from) / looks
}

func (f *fleetOf) put(name, text string, mode os.FileMode) {
	f.t.Helper()
	at := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), mode); err != nil {
		f.t.Fatal(err)
	}
}

// marquee registers one, with one playground that is up and healthy.
func (f *fleetOf) marquee(i int, s *sshdtest.Server, sealer records.Sealer) {
	f.t.Helper()
	id, pid := model.MarqueeID(fmt.Sprintf("m%03d", i)), model.PlaygroundID(fmt.Sprintf("p%03d", i))
	root := filepath.Join("mq", fmt.Sprintf("%03d", i), "fuse")
	project, err := model.NewProject("app", pid)
	if err != nil {
		f.t.Fatal(err)
	}
	marker, err := model.Marker{Kind: model.KindPlayground, Installation: inst, Marquee: id, Playground: pid, Project: project, Epoch: 1}.Encode()
	if err != nil {
		f.t.Fatal(err)
	}
	file := "services: {web: {}}\n"
	f.put(filepath.Join(root, "playgrounds", project.String(), "compose.yml"), file, 0o600)
	f.put(filepath.Join(root, "playgrounds", project.String(), ".fuse", "owner.json"), string(marker), 0o600)
	f.put(filepath.Join(root, "installations", string(inst)), "", 0o600)
	key, err := sealer.Seal(records.SealKindKey, string(id), s.Key)
	if err != nil {
		f.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(file))
	digest := hex.EncodeToString(sum[:])
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = f.store.Update(f.t.Context(), func(tx *state.Tx) error {
		if err := records.PutMarquee(tx, records.Marquee{
			Marquee: model.Marquee{
				ID: id, Address: f.links[i].Address, User: s.User, HostKey: s.HostKey, Root: filepath.Join(f.dir, root), Admin: model.AdminActive, Reach: model.ReachOK,
				Identity: model.Identity{
					Installation: inst, MachineID: strings.TrimSpace(string(machine)), DaemonID: "D", DataRoot: "/var/lib/docker", Witness: string(inst),
				},
			},
			Name: string(id), KeySealed: key, CreatedAt: tx.Now(),
		}); err != nil {
			return err
		}
		return records.PutPlayground(tx, records.Playground{
			Playground: model.Playground{
				ID: pid, Marquee: id, Project: project, Intent: model.IntentUp, State: model.StateRunning, StateSince: tx.Now(),
				Services: []model.Service{{Name: "web", Digest: "d"}}, Desired: digest, Applied: digest, AppliedAt: tx.Now(),
			},
			Name: string(pid), Owner: "alice", CreatedAt: tx.Now(),
		})
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// run runs the loop until the test ends.
func (f *fleetOf) run(period time.Duration, sealer records.Sealer) {
	f.t.Helper()
	policy := model.DefaultPolicy()
	policy.Period = period
	log := slog.New(slog.DiscardHandler)
	f.pool = sshx.NewPool(sshx.Timeouts{})
	hosts := &reach.Hosts{Pool: f.pool, Sealer: sealer, Installation: inst}
	l := loop.New(loop.Config{
		Store: f.store, Policy: policy, Logger: log, Drop: hosts.Drop,
		Host: func(m records.Marquee) work.Host { return hosts.Host(m) },
		Worker: work.New(work.Config{
			Store: f.store, Sealer: sealer, Installation: inst, Policy: policy, Logger: log,
			Lease: func() (time.Duration, error) { return time.Hour, nil },
		}),
		Figures: f.pass,
	})
	ctx, stop := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Run(ctx); err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(func() {
		stop()
		for _, k := range f.links {
			k.Release()
		}
		wg.Wait()
		f.pool.Close()
	})
}

// pass is told of each pass.
func (f *fleetOf) pass(s loop.Summary) {
	var i int
	if _, err := fmt.Sscanf(string(s.Marquee), "m%d", &i); err != nil {
		f.t.Error(err)
		return
	}
	trips, _ := f.trips(i)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passes[i] = append(f.passes[i], pass{s.Took, s.Verdict, trips - f.seen[i]})
	f.seen[i] = trips
}

// since returns the passes of a marquee beyond the first n.
func (f *fleetOf) since(i, n int) []pass {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.passes[i][min(n, len(f.passes[i])):])
}

// counts is how many passes each marquee has had.
func (f *fleetOf) counts() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]int, marquees)
	for i := range f.passes {
		out[i] = len(f.passes[i])
	}
	return out
}

// warm reports whether the last pass of every marquee was a plain look: the
// first ones bring the runner and tell of the epoch.
func (f *fleetOf) warm() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(f.passes, func(all []pass) bool {
		return len(all) == 0 || all[len(all)-1].trips != 1 || all[len(all)-1].verdict != observe.Seen.String()
	})
}

// each waits until every marquee but these has had n more passes than before,
// and returns how long those took.
func (f *fleetOf) each(before []int, n int, within time.Duration, but ...int) (took []time.Duration) {
	f.t.Helper()
	testkit.Eventually(f.t, within, "every marquee is passed over", func() bool {
		for i, have := range f.counts() {
			if have < before[i]+n && !slices.Contains(but, i) {
				return false
			}
		}
		return true
	})
	for i := range marquees {
		if slices.Contains(but, i) {
			continue
		}
		for _, p := range f.since(i, before[i])[:n] {
			if p.verdict != observe.Seen.String() {
				f.t.Errorf("marquee %d: %+v", i, p)
			}
			if p.trips != 1 {
				f.t.Errorf("marquee %d: %d round trips in an idle pass", i, p.trips)
			}
			took = append(took, p.took)
		}
	}
	slices.Sort(took)
	return took
}

// tries is how often what a dead and a hanging marquee cost is measured before it is
// believed: what the machine does beside is over sooner or later.
const tries = 4

// dead and hanging are the marquees that are ill.
const dead, hanging = 5, 10

// costs says what the others pay for a dead and a hanging marquee; empty: nothing. Both
// were well before, and are ill afterwards, as counted from there.
func (f *fleetOf) costs(period time.Duration) (cost string, goroutines int, ill []int) {
	f.t.Helper()
	f.links[dead].Refuse(false)
	f.links[hanging].Release()
	testkit.Eventually(f.t, 8*period, "every marquee was looked at and is known", f.warm)
	began := time.Now()
	well := f.each(f.counts(), 1, 8*period)
	usual := max(time.Since(began), period)
	goroutines = runtime.NumGoroutine()

	f.links[dead].Refuse(true)
	f.links[dead].Cut()
	f.links[hanging].Hold()
	ill = f.counts()
	began = time.Now()
	beside := f.each(ill, 1, 8*period, dead, hanging)
	took := time.Since(began)
	f.t.Logf("passes: p50 %s, p99 %s; with one dead and one hanging p50 %s, p99 %s; one of each in %s of a period of %s",
		well[len(well)/2], well[len(well)*99/100], beside[len(beside)/2], beside[len(beside)*99/100], took, period)
	switch was, is := well[len(well)/2], beside[len(beside)/2]; {
	case is > 2*was+100*time.Millisecond:
		cost = fmt.Sprintf("half of the passes took %s, and %s beside a dead and a hanging marquee", was, is)
	case took > 2*usual:
		cost = fmt.Sprintf("a pass over each of the others took %s: they lost ticks", took)
	}
	return cost, goroutines, ill
}

// TestHundredMarquees holds (with a hundred in the long run, fewer in the short one) that a marquee costs one round trip a pass, and
// that one that is dead and one that hangs cost the others nothing.
func TestHundredMarquees(t *testing.T) {
	before := runtime.NumGoroutine()
	f, period := newFleet(t)
	t.Logf("the period is %s", period)
	cost, goroutines, counts := f.costs(period)
	for n := 1; n < tries && cost != ""; n++ {
		t.Log(cost)
		cost, goroutines, counts = f.costs(period)
	}
	if cost != "" {
		t.Error(cost)
	}
	for _, p := range f.since(dead, counts[dead]+1) { // the first may have had its answer before
		if p.verdict != observe.Unseen.String() {
			t.Errorf("the dead one: %+v", p)
		}
	}
	// What was given up on the hanging one's link is gone once that hears of it.
	f.links[hanging].Release()
	testkit.Eventually(t, 8*period, "no marquee has more than one connection", func() bool {
		return !slices.ContainsFunc(f.links, func(k *sshdtest.Link) bool { return k.Open() > 1 })
	})
	open := 0
	for i, k := range f.links {
		open += k.Open()
		if all, most := f.trips(i); all == 0 || most > sshx.MaxSessions {
			t.Errorf("marquee %d had %d sessions, %d at once; at most %d may be", i, all, most, sshx.MaxSessions)
		}
	}
	if live, draining := f.pool.Open(); live > marquees || draining > 1 {
		t.Errorf("%d connections and %d on their way out", live, draining)
	}
	// One for each marquee, what its connection and its link need, and what a
	// pass under way needs.
	if limit := before + marquees*14; goroutines > limit || runtime.NumGoroutine() > limit {
		t.Errorf("%d goroutines, then %d; at most %d are accounted for", goroutines, runtime.NumGoroutine(), limit)
	}
	t.Logf("%d connections, %d goroutines (%d before)", open, runtime.NumGoroutine(), before)
	for i := range marquees {
		row := records.Playground{}
		if err := f.store.View(func(tx *state.ReadTx) error {
			p, ok := records.Playgrounds.Get(tx, fmt.Sprintf("p%03d", i))
			if ok {
				row = *p
			}
			return nil
		}); err != nil || row.State != model.StateRunning {
			t.Errorf("playground %d is %q (%s): %v", i, row.State, row.Reason, err)
		}
	}
}
