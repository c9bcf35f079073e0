package failover

import (
	"context"
	"fmt"
	"net/http"
	"os"
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

const period = time.Second // of the lease

// takeover is how long the fleet may be without a leader that writes.
const takeover = 2*period + time.Second

func TestMain(m *testing.M) { cluster.Main(m) }

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
	have, err := s.Environments()
	if err != nil {
		t.Fatal(err)
	}
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
		if time.Since(began) > 30*time.Second {
			t.Fatalf("no write is served: %v %d %s", err, a.Status, a.Body)
		}
		pause(t.Context(), 5*time.Millisecond)
	}
}

// fill creates n environments and returns their tasks.
func fill(t *testing.T, s *cluster.Server, n int) []string {
	t.Helper()
	l := startLoad(t, "fill", 16, s)
	s.Eventually(time.Minute, fmt.Sprint(n, " environments"), func() bool { return l.count() >= n })
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
	for round := range testkit.Count(3, 20) {
		l := startLoad(t, fmt.Sprint("kill", round), 8, p.leader, p.other)
		p.leader.Eventually(20*time.Second, "creates are answered", func() bool { return l.count() > 40 })
		killed := time.Now()
		p.leader.Kill()
		took := firstWrite(t, p.other, fmt.Sprint("first", round))
		acked = append(acked, l.end()...)
		t.Logf("round %d: first write %v after the kill, %d acknowledged", round, took.Round(time.Millisecond), len(acked))
		if took > takeover {
			t.Errorf("the first write came %v after the kill at %v, want at most %v; what the next leader said:\n%s",
				took, killed.UTC().Format(time.StampMilli), takeover, p.other.Output())
		}
		allRunning(t, p.other, acked)
		p.leader, p.other = p.other, p.leader.Again()
		p.other.WaitStandby()
	}
}

// TestFreeze suspends the leader until another one has taken over. When it goes
// on it must not write nor call: not one request to the host, not one commit.
func TestFreeze(t *testing.T) {
	p, _, url := onPostgres(t, "boot=20ms..60ms,vms=4000")
	var acked []string
	for round := range testkit.Count(2, 50) {
		l := startLoad(t, fmt.Sprint("freeze", round), 8, p.leader)
		p.leader.Eventually(20*time.Second, "creates are answered", func() bool { return l.count() > 20 })
		term := pgtest.Scalar[int64](t, url, "SELECT term FROM meta")
		p.leader.Freeze()
		firstWrite(t, p.other, fmt.Sprint("first", round))
		commits := func() int64 {
			return pgtest.Scalar[int64](t, url, "SELECT count(*) FROM commits WHERE term = $1", term)
		}
		before, sent := commits(), p.hostLink.Watch(t, p.leader.PID())
		p.leader.Thaw()
		p.leader.WaitStandby()
		acked = append(acked, l.end()...)
		if n := sent(); n != 0 {
			t.Errorf("round %d: the frozen leader sent %d frames of requests to the host", round, n)
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
	for round := range testkit.Count(1, 20) {
		l := startLoad(t, fmt.Sprint("cut", round), 4, p.leader)
		p.leader.Eventually(20*time.Second, "creates are answered", func() bool { return l.count() > 20 })
		cut := time.Now()
		link.Cut()
		p.leader.Eventually(10*time.Second, "the leader gives up", func() bool { return !p.leader.Ready() })
		if took := time.Since(cut); took > period+time.Second/4 {
			t.Errorf("leadership ended %v after the cut", took)
		}
		if took := firstWrite(t, p.other, fmt.Sprint("first", round)); time.Since(cut) > takeover {
			t.Errorf("the first write came %v after the cut (%v after it was wanted)", time.Since(cut), took)
		}
		acked := l.end()
		link.Heal()
		p.leader.WaitStandby()
		allRunning(t, p.leader, acked)
		// Back to the server whose way to the database can be cut.
		p.other.Signal(syscall.SIGTERM)
		if code := p.other.Wait(20 * time.Second); code != 0 {
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
	ids []uint64
}

func (r *reader) read(ctx context.Context, via []*cluster.Server, n int) {
	last := "0"
	for try := n; ctx.Err() == nil; try++ {
		err := via[try%len(via)].Stream(ctx, "/v1/events", last, func(id, _ string) {
			seq, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				return
			}
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
	p, _, url := onPostgres(t, "boot=4s")
	answer := make(chan string, 1)
	go func() {
		a, err := p.leader.Create("slow", "key-of-slow")
		answer <- fmt.Sprint(a.Status, " ", a.Body, " ", err)
	}()
	p.leader.Eventually(10*time.Second, "the create is under way", func() bool {
		return pgtest.Scalar[int64](t, url, "SELECT count(*) FROM vms WHERE state = 'provisioning'") == 1
	})
	began := time.Now()
	p.leader.Signal(syscall.SIGTERM)
	p.other.WaitReady()
	if took := time.Since(began); took > 2500*time.Millisecond {
		t.Errorf("the handover took %v", took)
	}
	if got := <-answer; !strings.HasPrefix(got, "503 ") {
		t.Errorf("the create was answered with %s", got)
	}
	p.other.Eventually(20*time.Second, "the create is undone", func() bool {
		return pgtest.Scalar[int64](t, url, "SELECT count(*) FROM lives WHERE task_id = 'slow'") == 1
	})
	if a, err := p.other.Create("slow", "key-of-slow"); err != nil || a.Status != http.StatusCreated {
		t.Errorf("once more: %d %s %v", a.Status, a.Body, err)
	}
	allRunning(t, p.other, []string{"slow"})
}

// TestStatus asks both servers who leads.
func TestStatus(t *testing.T) {
	dir := t.TempDir()
	p := newPair(t, "boot=5ms", cluster.ServerOptions{DataDir: dir}, cluster.ServerOptions{DataDir: dir})
	leader, other := fmt.Sprint("pid ", p.leader.PID()), fmt.Sprint("pid ", p.other.PID())
	p.leader.Eventually(5*time.Second, "the leader knows its standby", func() bool {
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
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	both := []*cluster.Server{p.leader, p.other}
	var clients [20]reader
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { clients[i].read(ctx, both, i) })
	}
	l := startLoad(t, "stop", 8, both...)
	p.leader.Eventually(20*time.Second, "creates are answered", func() bool { return l.count() > 40 })
	began := time.Now()
	p.leader.Signal(syscall.SIGTERM)
	p.other.WaitReady()
	firstWrite(t, p.other, "first")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the handover took %v", took)
	} else {
		t.Logf("the handover took %v", took.Round(time.Millisecond))
	}
	if code := p.leader.Wait(5 * time.Second); code != 0 {
		t.Errorf("the old leader ended with exit code %d", code)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the old leader ended after %v", took)
	}
	acked := l.end()
	allRunning(t, p.other, acked)
	for line := range strings.Lines(p.leader.Output()) {
		if strings.Contains(line, "taken down") {
			t.Log(line)
		}
	}

	// Every client has every event once and in order.
	var head uint64
	p.other.Eventually(10*time.Second, "the newest event", func() bool {
		var newest uint64
		short, end := context.WithTimeout(ctx, time.Second)
		defer end()
		_ = p.other.Stream(short, "/v1/events", "0", func(id, _ string) {
			newest, _ = strconv.ParseUint(id, 10, 64)
		})
		done := newest > 0 && newest == head
		head = newest
		return done
	})
	pause(ctx, time.Second)
	stop()
	wg.Wait()
	for i, c := range clients {
		for n, id := range c.ids {
			if id != uint64(n+1) {
				t.Fatalf("client %d: event %d is number %d", i, n+1, id)
			}
		}
		if uint64(len(c.ids)) < head {
			t.Errorf("client %d has %d of %d events", i, len(c.ids), head)
		}
	}
}

// TestDatabaseDownAtTheStart: the process lives and says why it is not ready.
func TestDatabaseDownAtTheStart(t *testing.T) {
	c := pgtest.New(t, pgtest.Options{})
	url := c.Database(t)
	c.Stop(t)
	s := cluster.StartServer(t, cluster.ServerOptions{DatabaseURL: url})
	s.Eventually(20*time.Second, "it says why it is not ready", func() bool {
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
		"--database-url-file", writeFile(t, strings.Replace(url, c.Addr(), cluster.FreeAddr(t), 1)), "--store-timeout", "1s", "--lease", "1s")
	if code := never.Wait(20 * time.Second); code == 0 || !strings.Contains(never.Output(), "out of reach for 1s") {
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
