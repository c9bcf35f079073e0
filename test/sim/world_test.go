package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/test/history"
)

// broken are parts of the server replaced by ones that keep a promise badly,
// to see whether the oracle notices.
type broken struct {
	looker   func(converge.Looker) converge.Looker
	provider func(provider.Provider) provider.Provider
	// obeysAll are hosts that take whoever calls for the one that leads.
	obeysAll bool
	// tellsOld are servers that answer without asking whether they still lead.
	tellsOld bool
	// forgets is how often the database says that it has written what it has not.
	forgets float64
}

// witnesses are the two witnesses.
type witnesses struct {
	hosts   *record
	clients *history.Log
}

// world is one run: machines, servers, users and what goes wrong.
type world struct {
	t      *testing.T
	seed   uint64
	log    *slog.Logger
	broken broken
	dir    string

	ctx     context.Context // ends when the run is over
	sealer  *secrets.Sealer
	net     *network
	db      *database
	hosts   map[string]*host
	ids     []string // of hosts
	servers []*server
	rogues  []*server // on copies of the database; users do not know them
	wit     witnesses
	faulty  context.Context // ends when things go wrong no more, in runs that end it
	// captures says that the run has snapshots, forks and pauses.
	captures bool
	snaps    *history.Log // of snapshots, by their ids
	// declared are slots that hosts are registered with, whatever they have.
	declared map[string]int

	mu       sync.Mutex
	problems []string
	shift    time.Duration // of the servers' wall clock
}

// wrong writes down what is wrong with the run.
func (w *world) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// wall is the wall clock of the servers.
func (w *world) wall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.shift)
}

// rndFor makes the random numbers of one part of the world: each part draws
// its own, so that what one does shifts no other.
func rndFor(seed, part uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, part)) }

func newWorld(t *testing.T, seed uint64, dir string, log *slog.Logger, b broken) *world {
	clock := &history.Clock{}
	w := &world{t: t, seed: seed, log: log, dir: dir, hosts: map[string]*host{}, broken: b}
	w.wit = witnesses{hosts: &record{clock: clock}, clients: history.New(clock)}
	w.snaps = history.New(clock)
	w.net = &network{rnd: rndFor(seed, 1), slow: map[string]time.Duration{}, down: map[string]bool{}}
	w.db = &database{rows: memory.New(memory.Options{}), fingerprint: "here", rnd: rndFor(seed, 2), forgets: b.forgets}
	key, err := secrets.ParseKey(strings.Repeat("5e", 32))
	if err != nil {
		t.Fatal(err)
	}
	w.sealer = secrets.NewSealer(key)
	rnd := rndFor(seed, 3)
	for n := range 2 + rnd.IntN(3) {
		id := fmt.Sprint("h", n+1)
		w.ids = append(w.ids, id)
		w.hosts[id] = &host{
			id: id, rec: w.wit.hosts, log: log.With("host", id), dir: filepath.Join(dir, id), lie: map[string]bool{},
			opts: sim.Options{
				Seed: seed + uint64(n)<<32 + 1,
				Delay: map[string]sim.Range{
					"create": {Max: 50 * time.Millisecond}, "boot": {Min: 200 * time.Millisecond, Max: 4 * time.Second},
					"remove": {Max: 2 * time.Second}, "adopt": {Max: time.Second}, "drain": {Max: 3 * time.Second},
				},
				Fail: map[string]sim.Failure{"create": {Rate: 0.02}, "boot": {Rate: 0.03}, "remove": {Rate: 0.05}},
			},
		}
	}
	for n := range 2 {
		w.servers = append(w.servers, &server{w: w, name: fmt.Sprint("s", n+1), db: w.db})
	}
	return w
}

// length is how long things go wrong in one run, and calm how long they then
// have to get in order again.
const (
	length = 5 * time.Minute
	calm   = 15 * time.Minute
)

// run is one run, inside a bubble: what act does, then calm, then judgement.
func (w *world) run(act func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	w.ctx = ctx
	defer func() {
		for _, s := range slices.Concat(w.servers, w.rogues) {
			s.stop()
			s.wg.Wait()
		}
		cancel()
		w.net.late.Wait()
		for _, h := range w.hosts {
			if err := h.stop(); err != nil {
				w.wrong("host %s: %v", h.id, err)
			}
			h.wg.Wait()
		}
	}()
	for _, h := range w.hosts {
		if err := h.start(); err != nil {
			w.wrong("host %s: %v", h.id, err)
			return
		}
	}
	for _, s := range w.servers {
		s.start()
	}
	if !w.register() {
		return
	}
	act(ctx)
	w.heal()
	_ = pause(ctx, ctx, calm)
	w.judge()
}

// badDay is what run does by chance: users come and go while things go wrong.
func (w *world) badDay(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var actors sync.WaitGroup
	actors.Go(func() {
		for pause(ctx, ctx, 19*time.Second) == nil {
			w.checkBooks(false)
		}
	})
	for n := range 3 {
		actors.Go(func() { w.newUser(n).run(ctx) })
	}
	w.trouble(ctx)
	stop()
	actors.Wait()
}

// register tells the fleet of its hosts, once somebody leads it.
func (w *world) register() bool {
	u := w.newUser(9)
	for _, id := range w.ids {
		var err error
		for range 60 {
			if _, err = u.api.RegisterHost(w.ctx, gen.RegisterHost{
				ID: id, URL: "unix:///" + id, Token: hostToken, Capacity: gen.Capacity{VMCount: w.declared[id]},
			}); err == nil {
				break
			}
			_ = pause(w.ctx, w.ctx, time.Second)
		}
		if err != nil {
			w.wrong("register %s: %v", id, err)
			return false
		}
	}
	return true
}
