package failover

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/cluster"
)

// period of the lease: a busy machine may keep a process waiting for a second.
const period = 2 * time.Second

// takeover is how long the fleet may be without a leader that writes.
const takeover = 2*period + time.Second

func TestMain(m *testing.M) { cluster.Main(m) }

// bars hold what is measured to its bar, without the time in which nobody was given
// a processor. A machine that has other things to do may still be late, but not
// three times in a row.
type bars struct {
	t    *testing.T
	late int
}

// hold judges one round by all its bars; detail is for whoever reads the failure.
func (b *bars) hold(detail func() string, times ...timed) {
	b.t.Helper()
	late := false
	for _, x := range times {
		b.t.Logf("%s %v, %v of it without a processor, at most %v", x.what, x.took.Round(time.Millisecond), x.starved.Round(time.Millisecond), x.bar)
		late = late || x.took-x.starved > x.bar
	}
	if b.late++; !late {
		b.late = 0
	}
	if b.late == inARow {
		b.t.Errorf("too late %d times in a row\n%s", inARow, detail())
	}
}

const inARow = 3

// timed is what took how long, for how long of it nobody was given a processor, and
// how long it may take.
type timed struct {
	what               string
	took, starved, bar time.Duration
}

// starved counts for who is left to serve, its host and the test.
func (p *pair) starved() func() time.Duration {
	p.t.Helper()
	return testkit.Starved(p.t, p.other.PID(), p.host.PID())
}

// again is whether one more round has to show what the machine can do.
func (b *bars) again() bool { return b.late > 0 && b.late < inARow }

// pair is two servers on one store with one host behind a link.
type pair struct {
	t             testing.TB
	leader, other *cluster.Server
	host          *cluster.Host
	hostLink      *cluster.Link
}

// onPostgres starts a pair on a database of its own. The first server reaches it
// through a link.
func onPostgres(t *testing.T, sim string) (*pair, *cluster.Link, string) {
	t.Helper()
	c := pgtest.Shared(t)
	url := c.Database(t)
	link := cluster.NewLink(t, c.Addr())
	p := newPair(t, sim, cluster.ServerOptions{DatabaseURL: strings.Replace(url, c.Addr(), link.Addr(), 1)}, cluster.ServerOptions{DatabaseURL: url})
	return p, link, url
}

func newPair(t *testing.T, sim string, first, second cluster.ServerOptions) *pair {
	t.Helper()
	first.Lease, second.Lease = period, period
	p := &pair{t: t, host: cluster.StartHost(t, "h1", sim)}
	p.hostLink = cluster.NewLink(t, strings.TrimPrefix(p.host.URL, "http://"))
	p.leader = cluster.StartServer(t, first)
	p.leader.WaitReady()
	p.leader.Register("h1", "http://"+p.hostLink.Addr())
	p.other = cluster.StartServer(t, second)
	p.other.WaitStandby()
	return p
}

// load creates environments through a server until it is stopped, and keeps
// what was acknowledged.
type load struct {
	mu    sync.Mutex
	acked []string
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// startLoad runs workers that each make one environment after the other. Those
// that fail are not made again: what came of them is not known.
func startLoad(t *testing.T, name string, workers int, via ...*cluster.Server) *load {
	ctx, stop := context.WithCancel(t.Context())
	l := &load{stop: stop}
	for w := range workers {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				task := fmt.Sprintf("%s-%d-%d", name, w, i)
				if a, err := via[w%len(via)].Create(task, ""); err == nil && a.Status == http.StatusCreated {
					l.mu.Lock()
					l.acked = append(l.acked, task)
					l.mu.Unlock()
				} else {
					if err == nil && a.Status/100 != 5 { // a mistake of the test
						t.Errorf("create: %d %s", a.Status, a.Body)
						return
					}
					pause(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	return l
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (l *load) end() []string {
	l.stop()
	l.wg.Wait()
	return l.acked
}

// allRunning checks that the server knows every task as running.
func allRunning(t *testing.T, s *cluster.Server, tasks []string) {
	t.Helper()
	var have map[string]string
	s.Eventually(2*time.Minute, "the environments are listed", func() (ok bool) { // also while the lead changes
		var err error
		have, err = s.Environments()
		return err == nil
	})
	lost := 0
	for _, task := range tasks {
		if have[task] != "running" {
			if lost++; lost <= 5 {
				t.Errorf("%s was acknowledged and is %q now", task, have[task])
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged environments are lost", lost, len(tasks))
	}
}

// firstWrite waits for the first create that a server answers with 201 and
// returns how long that took.
func firstWrite(t *testing.T, s *cluster.Server, name string) time.Duration {
	t.Helper()
	began := time.Now()
	for n := 0; ; n++ {
		a, err := s.Create(fmt.Sprintf("%s-%d", name, n), "")
		if err == nil && a.Status == http.StatusCreated {
			return time.Since(began)
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("no write is served: %v %d %s", err, a.Status, a.Body)
		}
		pause(t.Context(), 5*time.Millisecond)
	}
}

// fill creates n environments and returns their tasks.
func fill(t *testing.T, s *cluster.Server, n int) []string {
	t.Helper()
	l := startLoad(t, "fill", 16, s)
	s.Eventually(3*time.Minute, fmt.Sprint(n, " environments"), func() bool { return l.count() >= n })
	return l.end()
}

// TestKill kills the leader under a create load, again and again; fleets grow
// with it, so there is a new one from time to time.
func TestKill(t *testing.T) {
	for fleet := range testkit.Count(1, 5) {
		t.Run(fmt.Sprint("fleet ", fleet), kill)
	}
}

func kill(t *testing.T) {
	p, _, _ := onPostgres(t, "boot=5ms..30ms,vms=20000")
	acked := fill(t, p.leader, testkit.Count(200, 1000))
	slow := &bars{t: t}
	for round := 0; round < testkit.Count(3, 20) || slow.again(); round++ {
		l := startLoad(t, fmt.Sprint("kill", round), 8, p.leader, p.other)
		p.leader.Eventually(2*time.Minute, "creates are answered", func() bool { return l.count() > 40 })
		killed, starved := time.Now(), p.starved()
		p.leader.Kill()
		took := firstWrite(t, p.other, fmt.Sprint("first", round))
		without := starved()
		acked = append(acked, l.end()...)
		t.Logf("round %d: %d acknowledged", round, len(acked))
		slow.hold(func() string {
			return fmt.Sprintf("killed at %v; what the next leader said:\n%s", killed.UTC().Format(time.StampMilli), p.other.Output())
		}, timed{"first write after the kill", took, without, takeover})
		allRunning(t, p.other, acked)
		p.leader, p.other = p.other, p.leader.Again()
		p.other.WaitStandby()
	}
}

// TestFreeze suspends the leader until another one has taken over. When it goes
// on it must not write nor call: not one request to the host, not one commit.
func TestFreeze(t *testing.T) {
	p, _, url := onPostgres(t, "boot=20ms..60ms,vms=4000")
	leads := func() int64 { return pgtest.Scalar[int64](t, url, "SELECT term FROM meta") }
	var acked []string
	for round, shown := 0, 0; shown < testkit.Count(2, 50); round++ {
		if round > 2*shown+10 {
			t.Fatalf("%d of %d rounds show nothing: this machine keeps processes waiting for longer than a lease of %v", round-shown, round, period)
		}
		l := startLoad(t, fmt.Sprint("freeze", round), 8, p.leader)
		p.leader.Eventually(2*time.Minute, "creates are answered", func() bool { return l.count() > 20 })
		term := leads()
		p.leader.Freeze()
		firstWrite(t, p.other, fmt.Sprint("first", round))
		next := leads()
		commits := func() int64 {
			return pgtest.Scalar[int64](t, url, "SELECT count(*) FROM commits WHERE term < $1", next)
		}
		before, sent := commits(), p.hostLink.Watch(t, p.leader.PID())
		p.leader.Thaw()
		p.leader.WaitStandby()
		acked = append(acked, l.end()...)
		frames := sent()
		switch {
		case next == term || leads() != next: // on a busy machine the lead may change by itself
			t.Logf("round %d shows nothing: term %d, then %d, then %d", round, term, next, leads())
		case frames != 0:
			t.Errorf("round %d: the frozen leader sent %d frames of requests to the host", round, frames)
		default:
			shown++
		}
		if t.Failed() {
			return
		}
		if n := commits() - before; n > 0 {
			t.Errorf("round %d: the frozen leader made %d commits", round, n)
		}
		allRunning(t, p.leader, acked) // through the one that was frozen
		p.leader, p.other = p.other, p.leader
	}
}

// TestCutFromTheDatabase takes the database away from the leader alone.
func TestCutFromTheDatabase(t *testing.T) {
	p, link, _ := onPostgres(t, "boot=5ms..30ms,vms=4000")
	slow := &bars{t: t}
	for round := 0; round < testkit.Count(1, 20) || slow.again(); round++ {
		l := startLoad(t, fmt.Sprint("cut", round), 4, p.leader)
		p.leader.Eventually(2*time.Minute, "creates are answered", func() bool { return l.count() > 20 })
		cut, starved := time.Now(), p.starved()
		link.Cut()
		p.leader.Eventually(time.Minute, "the leader gives up", func() bool { return !p.leader.Ready() })
		ended := timed{"leadership ended after the cut", time.Since(cut), starved(), period + time.Second/4}
		firstWrite(t, p.other, fmt.Sprint("first", round))
		slow.hold(p.other.Output, ended, timed{"first write after the cut", time.Since(cut), starved(), takeover})
		acked := l.end()
		link.Heal()
		p.leader.WaitStandby()
		allRunning(t, p.leader, acked)
		// Back to the server whose way to the database can be cut.
		p.other.Signal(syscall.SIGTERM)
		if code := p.other.Wait(2 * time.Minute); code != 0 {
			t.Errorf("exit code %d", code)
		}
		p.leader.WaitReady()
		p.other = p.other.Again()
		p.other.WaitStandby()
	}
}

// reader follows all events through whichever server answers, as a client does:
// it goes on after the last id that it has seen.
type reader struct {
	mu  sync.Mutex
	ids []uint64
}

func (r *reader) seen() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ids)
}

func (r *reader) read(ctx context.Context, via []*cluster.Server, n int) {
	last := "0"
	for try := n; ctx.Err() == nil; try++ {
		err := via[try%len(via)].Stream(ctx, "/v1/events", last, func(id, _ string) {
			seq, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			last, r.ids = id, append(r.ids, seq)
		})
		if err != nil {
			pause(ctx, 20*time.Millisecond)
		}
	}
}

// TestStop ends the leader with SIGTERM while clients follow its events.
func TestStop(t *testing.T) {
	p, _, url := onPostgres(t, "boot=5ms..30ms,vms=4000")
	handOver(t, p)
	last := pgtest.Scalar[int64](t, url, "SELECT max(seq) FROM events")
	t.Logf("%d events", last)
}

// TestStopOnSQLite is the same for two servers in one data directory.
func TestStopOnSQLite(t *testing.T) {
	dir := t.TempDir()
	p := newPair(t, "boot=5ms..30ms,vms=4000", cluster.ServerOptions{DataDir: dir}, cluster.ServerOptions{DataDir: dir})
	handOver(t, p)
}

// TestStopInTheMiddleOfLongWork: nobody waits for a create that takes longer than
// a handover may. The next leader undoes it, and it can be asked for again.
func TestStopInTheMiddleOfLongWork(t *testing.T) {
	p, _, url := onPostgres(t, "boot=6s")
	slow := &bars{t: t}
	for try := 0; try == 0 || slow.again(); try++ {
		if try > 0 {
			p.leader.Wait(time.Minute)
			p.leader, p.other = p.other, p.leader.Again()
			p.other.WaitStandby()
		}
		task := fmt.Sprint("slow", try)
		answer := make(chan string, 1)
		go func(s *cluster.Server) {
			a, err := s.Create(task, "key-of-"+task)
			answer <- fmt.Sprint(a.Status, " ", a.Body, " ", err)
		}(p.leader)
		p.leader.Eventually(time.Minute, "the create is under way", func() bool {
			return pgtest.Scalar[int64](t, url, "SELECT count(*) FROM vms WHERE state = 'provisioning'") == 1
		})
		began, starved := time.Now(), p.starved()
		p.leader.Signal(syscall.SIGTERM)
		p.other.WaitReady()
		slow.hold(p.other.Output, timed{"the handover took", time.Since(began), starved(), 2500 * time.Millisecond})
		if got := <-answer; !strings.HasPrefix(got, "503 ") {
			t.Errorf("the create was answered with %s", got)
		}
		p.other.Eventually(2*time.Minute, "the create is undone", func() bool {
			return pgtest.Scalar[int64](t, url, "SELECT count(*) FROM lives WHERE task_id = $1", task) == 1
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		a, err := p.other.CreateCtx(ctx, task, "key-of-"+task)
		if cancel(); err != nil || a.Status != http.StatusCreated {
			t.Errorf("once more: %d %s %v", a.Status, a.Body, err)
		}
		allRunning(t, p.other, []string{task})
	}
}

// TestStatus asks both servers who leads.
func TestStatus(t *testing.T) {
	dir := t.TempDir()
	p := newPair(t, "boot=5ms", cluster.ServerOptions{DataDir: dir}, cluster.ServerOptions{DataDir: dir})
	leader, other := fmt.Sprint("pid ", p.leader.PID()), fmt.Sprint("pid ", p.other.PID())
	p.leader.Eventually(time.Minute, "the leader knows its standby", func() bool {
		a, err := p.leader.Do(http.MethodGet, "/v1/server", "")
		return err == nil && strings.Contains(a.Body, other)
	})
	for _, s := range []*cluster.Server{p.leader, p.other} {
		out, code := cluster.Run(t, "server", "status", "--url", s.URL)
		for _, want := range []string{"leader ", leader, "standbys ", other, "until the process ends", "sqlite, revision "} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("exit code %d, no %q in\n%s", code, want, out)
			}
		}
		if asked := strings.Contains(out, "a standby;"); asked != (s == p.other) {
			t.Errorf("the answer of a standby: %v\n%s", asked, out)
		}
	}
	p.leader.Kill()
	p.other.WaitReady()
	if out, code := cluster.Run(t, "server", "status", "--json", "--url", p.other.URL); code != 0 || !strings.Contains(out, `"role":"leader"`) || !strings.Contains(out, other) {
		t.Errorf("after the takeover: %d %s", code, out)
	}
}

func handOver(t *testing.T, p *pair) {
	t.Helper()
	slow := &bars{t: t}
	for try := 0; try == 0 || slow.again(); try++ {
		if try > 0 {
			p.leader, p.other = p.other, p.leader.Again()
			p.other.WaitStandby()
		}
		handOverOnce(t, p, slow, fmt.Sprint("stop", try))
	}
}

func handOverOnce(t *testing.T, p *pair, slow *bars, name string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	both := []*cluster.Server{p.leader, p.other}
	var clients [20]reader
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { clients[i].read(ctx, both, i) })
	}
	l := startLoad(t, name, 8, both...)
	p.leader.Eventually(2*time.Minute, "creates are answered", func() bool { return l.count() > 40 })
	began, starved := time.Now(), p.starved()
	p.leader.Signal(syscall.SIGTERM)
	p.other.WaitReady()
	firstWrite(t, p.other, name+"-first")
	handed := timed{"the handover took", time.Since(began), starved(), 2 * time.Second}
	if code := p.leader.Wait(time.Minute); code != 0 {
		t.Errorf("the old leader ended with exit code %d", code)
	}
	slow.hold(p.other.Output, handed, timed{"the old leader ended after", time.Since(began), starved(), 3 * time.Second})
	acked := l.end()
	allRunning(t, p.other, acked)
	for line := range strings.Lines(p.leader.Output()) {
		if strings.Contains(line, "taken down") {
			t.Log(line)
		}
	}

	// Every client has every event once and in order.
	var head uint64
	p.other.Eventually(2*time.Minute, "the newest event", func() bool {
		var newest uint64
		short, end := context.WithTimeout(ctx, 2*time.Second)
		defer end()
		_ = p.other.Stream(short, "/v1/events", "0", func(id, _ string) {
			newest, _ = strconv.ParseUint(id, 10, 64)
		})
		done := newest > 0 && newest == head
		head = newest
		return done
	})
	for i := range clients {
		p.other.Eventually(time.Minute, fmt.Sprintf("client %d has %d events", i, head), func() bool { return uint64(len(clients[i].seen())) >= head })
	}
	pause(ctx, time.Second) // for what comes twice
	stop()
	wg.Wait()
	for i := range clients {
		for n, id := range clients[i].seen() {
			if id != uint64(n+1) {
				t.Fatalf("client %d: event %d is number %d", i, n+1, id)
			}
		}
	}
}

// TestDatabaseDownAtTheStart: the process lives and says why it is not ready.
func TestDatabaseDownAtTheStart(t *testing.T) {
	c := pgtest.New(t, pgtest.Options{})
	url := c.Database(t)
	c.Stop(t)
	s := cluster.StartServer(t, cluster.ServerOptions{DatabaseURL: url})
	s.Eventually(2*time.Minute, "it says why it is not ready", func() bool {
		a, err := s.Do(http.MethodGet, "/readyz", "")
		return err == nil && a.Status == http.StatusServiceUnavailable && strings.Contains(a.Body, "cannot be reached")
	})
	if a, err := s.Do(http.MethodGet, "/livez", ""); err != nil || a.Status != http.StatusOK {
		t.Errorf("livez: %d %v", a.Status, err)
	}
	if a, err := s.Do(http.MethodGet, "/v1/hosts", ""); err != nil || a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("API: %d %v %v", a.Status, a.Header, err)
	}
	c.Start(t)
	s.WaitReady()

	never := cluster.Start(t, "server", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--auth-token", cluster.Token,
		"--database-url-file", writeFile(t, strings.Replace(url, c.Addr(), testkit.Addr(t), 1)), "--store-timeout", "1s", "--lease", "1s")
	if code := never.Wait(2 * time.Minute); code == 0 || !strings.Contains(never.Output(), "out of reach for 1s") {
		t.Errorf("a store that never answers: exit code %d\n%s", code, never.Output())
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := t.TempDir() + "/url"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
