package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/testkit"
)

// rush is many creates against a fleet that has room for fewer.
type rush struct {
	w      *world
	room   int // slots of all hosts together
	wanted int
	atOnce int

	mu       sync.Mutex
	admitted map[string]bool
	refused  map[string]int // by message
	failed   int            // for another reason than room
}

// fleetOf gives the world hosts with that many slots each, and one server.
func (w *world) fleetOf(slots ...int) {
	w.ids, w.hosts, w.servers = nil, map[string]*host{}, w.servers[:1]
	for n, vms := range slots {
		id := fmt.Sprint("h", n+1)
		w.ids = append(w.ids, id)
		w.hosts[id] = &host{
			id: id, rec: w.wit.hosts, log: w.log.With("host", id), dir: w.dir + "/" + id, lie: map[string]bool{},
			opts: sim.Options{
				Seed: w.seed + uint64(n)<<32 + 1, VMs: vms, OverheadMB: 96,
				Delay: map[string]sim.Range{"create": {Max: 50 * time.Millisecond}, "boot": {Min: 200 * time.Millisecond, Max: 2 * time.Second}, "remove": {Max: time.Second}},
			},
		}
	}
}

func (r *rush) create(ctx context.Context, u *user, n int) {
	env, err := u.api.Create(ctx, gen.CreateEnvironment{
		TaskID: fmt.Sprint("rush-", n), Spec: gen.Spec{RAMMB: 256, StorageGB: 1}, StartupScript: fmt.Sprint("true # ", n), // each its own: the oracle tells commands apart by their words
		Files: map[string][]byte{"/data": []byte("x")},
	}, client.CreateOptions{})
	var refusal *client.Error
	if err != nil && !errors.As(err, &refusal) {
		_ = pause(ctx, ctx, time.Second) // nobody serves just now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil && env.State == "running":
		r.admitted[env.ID] = true
	case errors.As(err, &refusal) && refusal.Status == http.StatusServiceUnavailable && refusal.Details["limit"] != "" && refusal.Details["remedy"] != "":
		r.refused[refusal.Message]++
	default:
		r.failed++
	}
}

// run makes the creates, looking at the books all the while.
func (r *rush) run(ctx context.Context) {
	r.admitted, r.refused = map[string]bool{}, map[string]int{}
	watched, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for watched.Err() == nil {
			r.w.checkBooks(false)
			_ = pause(watched, watched, 37*time.Millisecond)
		}
	})
	queue := make(chan int)
	var workers sync.WaitGroup
	for n := range r.atOnce {
		workers.Go(func() {
			u := r.w.newUser(20 + n)
			for task := range queue {
				r.create(ctx, u, task)
			}
		})
	}
	for n := range r.wanted {
		queue <- n
	}
	close(queue)
	workers.Wait()
	stop()
	watch.Wait()
}

// fillUp creates until there is no room, once nothing goes wrong any more, and
// says how many environments there are then.
func (r *rush) fillUp(ctx context.Context) int {
	_ = pause(ctx, ctx, 10*time.Minute) // what failed is cleared away meanwhile
	u := r.w.newUser(99)
	for n := range r.room + 1 {
		before := len(r.refused)
		r.create(ctx, u, r.wanted+n)
		if len(r.refused) > before || r.failed > r.wanted {
			break
		}
		clear(r.refused)
	}
	return r.w.checkBooks(true)
}

// checkBooks compares what the durable rows say is taken with what the hosts
// can hold and with what they really hold: every machine has a row on its host,
// and the rows of a host never need more than it has. In order nothing is
// under way, so that both sides are equal. It returns how many rows there are.
func (w *world) checkBooks(inOrder bool) int {
	before, err := w.db.rows.Reopen().Load(w.ctx, 1)
	if err != nil {
		w.wrong("read the rows: %v", err)
		return 0
	}
	held := map[string]string{} // uid to host
	for id, h := range w.hosts {
		l, ok := h.holds(before.FleetID)
		if !ok {
			continue
		}
		for _, vm := range l.VMs {
			if other, twice := held[vm.UID]; twice {
				w.wrong("%s is on host %s and on %s", vm.ID, id, other)
			}
			held[vm.UID] = id
		}
	}
	after, err := w.db.rows.Reopen().Load(w.ctx, 1)
	if err != nil {
		w.wrong("read the rows: %v", err)
		return 0
	}
	rows := map[string][]string{} // uid to the hosts that its rows named
	for _, vm := range slices.Concat(before.VMs, after.VMs) {
		rows[vm.UID] = append(rows[vm.UID], vm.HostID)
	}
	for uid, id := range held {
		if !slices.Contains(rows[uid], id) {
			w.wrong("host %s holds %s, for which nothing is reserved there: %v", id, uid, rows[uid])
		}
	}
	if inOrder {
		for uid, at := range rows {
			if held[uid] != at[0] {
				w.wrong("%s is reserved on host %s, and nothing is there", uid, at[0])
			}
		}
	}
	total := map[string]fleet.HostCapacity{}
	facts := map[string]*fleet.Host{}
	for _, h := range after.Hosts {
		facts[h.ID] = h
	}
	for _, vm := range after.VMs {
		if h := facts[vm.HostID]; h != nil {
			total[vm.HostID] = total[vm.HostID].Plus(fleet.Demand(vm.Spec, h.Facts))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(total)) {
		room := fleet.Room(facts[id])
		if sum := total[id]; sum.VMCount > room.VMCount || sum.RamMB > room.RamMB || sum.CPUs > room.CPUs || sum.StorageGB > room.StorageGB {
			w.wrong("host %s has %+v reserved of %+v", id, sum, room)
		}
	}
	return len(after.VMs)
}

// allocatedIs holds what the API says is taken to the number of environments.
func (w *world) allocatedIs(want int) {
	page, err := w.newUser(98).api.Hosts(w.ctx, gen.ListHostsParams{})
	if err != nil {
		w.wrong("list hosts: %v", err)
		return
	}
	got := gen.Capacity{}
	for _, h := range page.Hosts {
		got.VMCount += h.Allocated.VMCount
		got.CPUs += h.Allocated.CPUs
		got.RAMMB += h.Allocated.RAMMB
	}
	if got.VMCount != want || got.CPUs != want || got.RAMMB != want*(256+96) {
		w.wrong("hosts say that %+v is taken by %d environments", got, want)
	}
}

// 300 creates, ten at a time, against room for 100: exactly 100 are admitted,
// 200 are told why not, and nothing is reserved that nobody has.
func TestRushAgainstFewSlots(t *testing.T) {
	none(t, ownScene(t, 2, func(w *world) { w.fleetOf(25, 25, 25, 25) }, func(w *world) {
		r := &rush{w: w, room: 100, wanted: 300, atOnce: 10}
		r.run(w.ctx)
		if len(r.admitted) != 100 || r.failed != 0 {
			w.wrong("%d admitted, %d failed, refused %v", len(r.admitted), r.failed, r.refused)
		}
		n := 0
		for message, times := range r.refused {
			n += times
			if !strings.Contains(message, "another VM") {
				w.wrong("refused with %q", message)
			}
		}
		if n != 200 {
			w.wrong("%d refused", n)
		}
		if left := w.checkBooks(true); left != 100 {
			w.wrong("%d environments", left)
		}
		w.allocatedIs(100)
	}))
}

// ownScene is scene with hosts of the test's own.
func ownScene(t *testing.T, seed uint64, prepare, act func(w *world)) []string {
	t.Helper()
	return sceneWith(t, seed, broken{}, prepare, act)
}

// Hosts that have less than their registration says refuse, and the next is
// asked: as many are admitted as there is room for in truth.
func TestRushAgainstCapacityLies(t *testing.T) {
	none(t, ownScene(t, 3, func(w *world) {
		w.fleetOf(20, 7, 5)
		w.declared = map[string]int{"h2": 60, "h3": 60}
	}, func(w *world) {
		r := &rush{w: w, room: 32, wanted: 80, atOnce: 10}
		r.run(w.ctx)
		if len(r.admitted) != 32 || r.failed != 0 {
			w.wrong("%d admitted, %d failed, refused %v", len(r.admitted), r.failed, r.refused)
		}
		if left := w.checkBooks(true); left != 32 {
			w.wrong("%d environments", left)
		}
		w.allocatedIs(32)
	}))
}

// The same while each step of a create goes wrong again and again: when all is
// well again the room is all there.
func TestRushWithFaults(t *testing.T) {
	fail := func(step string) func(w *world) {
		return func(w *world) {
			for _, h := range w.hosts {
				h.opts.Fail = map[string]sim.Failure{step: {Rate: 0.3}}
			}
		}
	}
	bad := func(change func(*weather)) func(w *world) {
		return func(w *world) { w.net.set(func() { change(&w.net.weather) }) }
	}
	for name, fault := range map[string]struct{ before, during func(w *world) }{
		"the host makes no disk":      {before: fail("create")},
		"the guest does not boot":     {before: fail("boot")},
		"files do not arrive":         {before: fail("write")},
		"the startup script fails":    {before: fail("exec")},
		"a machine is not removed":    {before: func(w *world) { fail("boot")(w); w.hosts["h1"].opts.Fail["remove"] = sim.Failure{Rate: 0.5} }},
		"calls to hosts are lost":     {during: bad(func(n *weather) { n.loseCall = 0.1 })},
		"answers of hosts are lost":   {during: bad(func(n *weather) { n.loseAnswer = 0.1 })},
		"calls are repeated":          {during: bad(func(n *weather) { n.repeat = 0.3 })},
		"commits are refused or lost": {during: func(w *world) { w.spoilCommits() }},
		"the server dies at a commit": {during: func(w *world) { w.dieAtCommits() }},
		"host agents die":             {during: func(w *world) { w.crashHosts() }},
	} {
		t.Run(name, func(t *testing.T) {
			room := testkit.Count(24, 100)
			none(t, ownScene(t, 4, func(w *world) {
				w.fleetOf(room/4, room/4, room/4, room/4)
				if fault.before != nil {
					fault.before(w)
				}
			}, func(w *world) {
				troubled, end := context.WithCancel(w.ctx)
				w.faulty = troubled
				if fault.during != nil {
					fault.during(w)
				}
				r := &rush{w: w, room: room, wanted: 3 * room, atOnce: 10}
				r.run(w.ctx)
				end()
				_ = pause(w.ctx, w.ctx, 5*time.Second) // what goes wrong at this moment comes to its end
				w.heal()
				for _, h := range w.hosts {
					h.calm()
				}
				if got := r.fillUp(w.ctx); got != room {
					w.wrong("%d environments where there is room for %d", got, room)
				}
				w.allocatedIs(room)
			}))
		})
	}
}

// often does something again and again until the trouble is over.
func (w *world) often(every time.Duration, do func(n int)) {
	w.net.late.Go(func() {
		for n := 0; pause(w.faulty, w.faulty, every) == nil; n++ {
			do(n)
		}
	})
}

func (w *world) spoilCommits() {
	kinds := []fault{refused, lost, dropped}
	w.often(300*time.Millisecond, func(n int) { w.db.set(func() { w.db.next = kinds[n%len(kinds)] }) })
}

func (w *world) dieAtCommits() {
	w.often(3*time.Second, func(n int) {
		w.db.set(func() { w.db.crashIn, w.db.crashAfter = 1+n%7, n%2 == 0 })
		_ = pause(w.faulty, w.faulty, 2*time.Second)
		for _, s := range w.servers {
			s.start()
		}
	})
}

func (w *world) crashHosts() {
	w.often(time.Second, func(n int) {
		h := w.hosts[w.ids[n%len(w.ids)]]
		if err := h.crash(); err != nil {
			w.wrong("crash: %v", err)
		}
		_ = pause(w.ctx, w.ctx, 500*time.Millisecond)
		if err := h.start(); err != nil {
			w.wrong("start: %v", err)
		}
	})
}

// A burst of 100 creates on four hosts with realistic latencies: the slowest
// waits for others no longer than it takes itself.
func TestBurst(t *testing.T) {
	none(t, ownScene(t, 5, func(w *world) {
		w.fleetOf(100, 100, 100, 100)
		for _, h := range w.hosts {
			h.opts.Delay = map[string]sim.Range{
				"create": {Min: 20 * time.Millisecond, Max: 80 * time.Millisecond}, "boot": {Min: 400 * time.Millisecond, Max: 700 * time.Millisecond},
			}
		}
	}, func(w *world) {
		single := w.burst(0, 1)[0]
		took := w.burst(1, 100)
		p50, p99 := took[49], took[98]
		w.t.Logf("single %s, p50 %s, p99 %s", single, p50, p99)
		if p99 > 3*single {
			w.wrong("p99 of a burst of 100 is %s, a single create takes %s", p99, single)
		}
		if left := w.checkBooks(true); left != 101 {
			w.wrong("%d environments", left)
		}
	}))
}

// burst makes n creates at once and gives their times, the shortest first.
func (w *world) burst(series, n int) []time.Duration {
	took := make([]time.Duration, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			begun := time.Now()
			_, err := w.newUser(200+i).api.Create(w.ctx, gen.CreateEnvironment{TaskID: fmt.Sprint("burst-", series, "-", i)}, client.CreateOptions{})
			if err != nil {
				w.wrong("create: %v", err)
			}
			took[i] = time.Since(begun)
		})
	}
	all.Wait()
	slices.Sort(took)
	return took
}

// A create that is asked for again and again under one key pays once, over the
// death of the server too, and the next one hears what the limit is.
func TestRetriesPayOnce(t *testing.T) {
	none(t, ownScene(t, 6, func(w *world) { w.fleetOf(10) }, func(w *world) {
		u := w.newUser(0)
		placing := client.Placing{API: u.api}
		one := int64(1)
		if _, err := placing.SetQuota(w.ctx, "owner:master", map[string]*int64{"environments": &one}); err != nil {
			w.wrong("set the quota: %v", err)
			return
		}
		uids := map[string]bool{}
		for n := range 4 {
			env, err := u.api.Create(w.ctx, gen.CreateEnvironment{TaskID: "once"}, client.CreateOptions{IdempotencyKey: "the-key"})
			if err != nil {
				w.wrong("try %d: %v", n, err)
			}
			uids[env.UID] = true
			if n == 1 {
				w.servers[0].now().die("between two tries")
				_ = pause(w.ctx, w.ctx, time.Second)
				w.servers[0].start()
				w.leader()
			}
		}
		var refusal *client.Error
		_, err := u.api.Create(w.ctx, gen.CreateEnvironment{TaskID: "twice"}, client.CreateOptions{IdempotencyKey: "another"})
		if !errors.As(err, &refusal) || refusal.Status != http.StatusTooManyRequests || refusal.Code != string(fleet.CodeQuotaExceeded) || refusal.Details["usage"] != "1 environments" {
			w.wrong("the second environment got %v", err)
		}
		q, err := placing.Quota(w.ctx, "owner:master")
		if err != nil || len(uids) != 1 || q.Lines[0].Used != 1 || q.Lines[0].Limit != 1 {
			w.wrong("lives %v, quota %+v, %v", uids, q, err)
		}
	}))
}
