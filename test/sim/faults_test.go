package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fusevm/fuse/test/history"
)

// mishap is one thing that goes wrong, for a while or at once.
type mishap struct {
	name   string
	weight int
	do     func(w *world, rnd *rand.Rand)
}

// mishaps are what may go wrong. Each undoes itself or is undone by heal.
var mishaps = []mishap{
	{"a host agent is killed", 6, func(w *world, rnd *rand.Rand) {
		h := w.anyHost(rnd)
		if err := h.crash(); err != nil {
			w.wrong("crash %s: %v", h.id, err)
		}
		w.after(rnd, 25*time.Second, func() {
			if err := h.start(); err != nil {
				w.wrong("start %s: %v", h.id, err)
			}
		})
	}},
	{"a host cannot be reached", 5, func(w *world, rnd *rand.Rand) {
		h := w.anyHost(rnd)
		w.net.set(func() { w.net.down[h.id] = true })
		w.after(rnd, 90*time.Second, func() { w.net.set(func() { w.net.down[h.id] = false }) })
	}},
	{"a host is slow", 4, func(w *world, rnd *rand.Rand) {
		h, d := w.anyHost(rnd), time.Duration(rnd.IntN(20))*time.Second
		w.net.set(func() { w.net.slow[h.id] = d })
		w.after(rnd, 90*time.Second, func() { w.net.set(func() { w.net.slow[h.id] = 0 }) })
	}},
	{"a machine dies", 4, func(w *world, rnd *rand.Rand) {
		h := w.anyHost(rnd)
		w.killMachine(h, rnd)
	}},
	{"a host lies once", 5, func(w *world, rnd *rand.Rand) {
		h := w.anyHost(rnd)
		if uid := w.anyMachine(h, rnd); uid.UID != "" {
			h.mu.Lock()
			if _, known := h.lie[uid.UID]; !known {
				h.lie[uid.UID] = false
			}
			h.mu.Unlock()
		}
	}},
	{"the network is bad", 6, func(w *world, rnd *rand.Rand) {
		bad := weather{
			loseCall: rnd.Float64() * 0.15, loseAnswer: rnd.Float64() * 0.15, repeat: rnd.Float64() * 0.4,
			slow: time.Duration(rnd.IntN(1500)) * time.Millisecond,
		}
		w.net.set(func() { w.net.weather = bad })
		w.after(rnd, 60*time.Second, func() { w.net.set(func() { w.net.weather = weather{} }) })
	}},
	{"a server is killed", 5, func(w *world, rnd *rand.Rand) {
		s := w.anyServer(rnd)
		s.now().die("by chance")
		w.after(rnd, 20*time.Second, s.start)
	}},
	{"the leader is killed at a commit", 6, func(w *world, rnd *rand.Rand) {
		w.db.set(func() { w.db.crashIn, w.db.crashAfter = 1+rnd.IntN(12), rnd.IntN(2) == 0 })
		// Whoever was killed is started again.
		w.after(rnd, 40*time.Second, func() {
			for _, s := range w.servers {
				s.start()
			}
		})
	}},
	{"a server stops and goes on", 7, func(w *world, rnd *rand.Rand) {
		p := w.anyServer(rnd).now()
		p.freeze()
		w.after(rnd, 50*time.Second, p.thaw)
	}},
	{"a server loses the database", 5, func(w *world, rnd *rand.Rand) {
		p := w.anyServer(rnd).now()
		p.setCuts(linkDatabase)
		w.after(rnd, 40*time.Second, func() { p.setCuts() })
	}},
	{"a server loses some hosts", 5, func(w *world, rnd *rand.Rand) {
		p := w.anyServer(rnd).now()
		var cut []string
		for _, id := range w.ids {
			if rnd.IntN(2) == 0 {
				cut = append(cut, id)
			}
		}
		p.setCuts(cut...)
		w.after(rnd, 60*time.Second, func() { p.setCuts() })
	}},
	{"the database is down", 3, func(w *world, rnd *rand.Rand) {
		w.db.set(func() { w.db.down = true })
		w.after(rnd, 40*time.Second, func() { w.db.set(func() { w.db.down = false }) })
	}},
	{"a commit goes wrong", 8, func(w *world, rnd *rand.Rand) {
		w.db.set(func() { w.db.next = fault(1 + rnd.IntN(int(faults)-1)) })
	}},
	{"a server is started on a copy of the database", 2, func(w *world, rnd *rand.Rand) {
		if len(w.rogues) > 1 || !w.everyHostIsClaimed() {
			return
		}
		db, err := w.db.copy(w.ctx, fmt.Sprint("elsewhere ", rnd.IntN(1000)))
		if err != nil {
			w.wrong("copy the database: %v", err)
			return
		}
		s := &server{w: w, name: fmt.Sprint(roguePrefix, len(w.rogues)+1), db: db}
		w.rogues = append(w.rogues, s)
		s.start()
	}},
	{"the clock of the servers jumps", 2, func(w *world, rnd *rand.Rand) {
		jump := time.Duration(rnd.IntN(80)-40) * time.Minute
		w.mu.Lock()
		w.shift += jump
		w.mu.Unlock()
		// Seen by that clock, what has a limit may be old from now on. What has
		// none may not: the ceiling of two hours is further away.
		for _, task := range slices.Repeat([]string{agesTask, idlesTask}, 5) { // one life after the other
			w.wit.clients.Add(history.Op{
				Verb: history.Died, ID: vmID(task), Call: w.wit.clients.Clock.Now(), Return: history.Never, Outcome: history.Done, Note: "the clock jumps",
			})
		}
		w.after(rnd, 90*time.Second, func() {
			w.mu.Lock()
			w.shift -= jump
			w.mu.Unlock()
		})
	}},
	{"a server stops in order", 3, func(w *world, rnd *rand.Rand) {
		s := w.anyServer(rnd)
		w.net.late.Go(func() {
			s.stop()
			s.start()
		})
	}},
}

// roguePrefix begins the names of servers on a copy.
const roguePrefix = "copy"

// everyHostIsClaimed reports whether each host has taken a leader's mark: one
// that has never heard of the fleet cannot tell a copy from the original.
func (w *world) everyHostIsClaimed() bool {
	claimed := map[string]bool{}
	for _, e := range w.wit.hosts.all() {
		if e.Deed == deedClaim && e.To != 0 && e.Refused == "" {
			claimed[e.Host] = true
		}
	}
	return len(claimed) == len(w.ids)
}

// trouble lets things go wrong until the time is over.
func (w *world) trouble(ctx context.Context) {
	rnd, end := rndFor(w.seed, 4), time.Now().Add(length)
	total := 0
	for _, m := range mishaps {
		total += m.weight
	}
	for time.Now().Before(end) {
		_ = pause(ctx, ctx, time.Duration(rnd.ExpFloat64()*float64(8*time.Second)))
		n := rnd.IntN(total)
		for _, m := range mishaps {
			if n -= m.weight; n < 0 {
				w.log.Info("mishap", "what", m.name)
				m.do(w, rnd)
				break
			}
		}
	}
}

// after undoes a mishap later.
func (w *world) after(rnd *rand.Rand, most time.Duration, undo func()) {
	d := time.Duration(rnd.Int64N(int64(most)))
	w.net.late.Go(func() {
		_ = pause(w.ctx, w.ctx, d)
		undo()
	})
}

// heal makes everything well that may still be wrong.
func (w *world) heal() {
	w.net.set(func() {
		w.net.weather = weather{}
		clear(w.net.slow)
		clear(w.net.down)
	})
	w.db.set(func() { w.db.down, w.db.crashIn, w.db.next = false, 0, noFault })
	for _, s := range w.servers {
		if p := s.now(); p != nil {
			p.setCuts()
			p.thaw()
		}
		s.start()
	}
	for _, h := range w.hosts {
		if err := h.start(); err != nil {
			w.wrong("start %s: %v", h.id, err)
		}
		h.calm()
	}
}

func (n *network) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (db *database) set(change func()) {
	db.mu.Lock()
	defer db.mu.Unlock()
	change()
}

func (w *world) anyHost(rnd *rand.Rand) *host     { return w.hosts[w.ids[rnd.IntN(len(w.ids))]] }
func (w *world) anyServer(rnd *rand.Rand) *server { return w.servers[rnd.IntN(len(w.servers))] }
