// Package health reads what the probes of guests say, for a listing. However
// many guests are asked about, a bounded number is read at a time, each for at
// most ReadTimeout, and a listing waits for all of them together no longer than
// Patience: what comes later is kept for the next listing.
package health

import (
	"context"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of reading.
const (
	// AtOnce is how many guests are read at a time.
	AtOnce = 32
	// ReadTimeout bounds the reading of one guest (seed: 5 s).
	ReadTimeout = 5 * time.Second
	// Patience is how long a listing waits. One sick guest costs it that much,
	// and so do a thousand.
	Patience = time.Second
)

// Guest is a guest agent; its Info brings the verdict along.
type Guest interface {
	Info(ctx context.Context) (fleet.GuestInfo, error)
}

// Reader reads verdicts. It keeps those that came after their listing had gone.
type Reader struct {
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	queue   []*reading
	workers int
	active  map[string]*reading // by uid; queued or being read
	late    map[string]fleet.HealthStatus
}

type reading struct {
	uid   string
	guest Guest
	done  chan struct{}
	got   *fleet.HealthStatus // once done
}

// New makes a reader.
func New() *Reader {
	r := &Reader{active: map[string]*reading{}, late: map[string]fleet.HealthStatus{}}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Close ends what is being read.
func (r *Reader) Close() {
	r.mu.Lock()
	r.stop()
	r.mu.Unlock()
	r.work.Wait()
}

// Read returns the verdicts of those guests, by uid, that could be had within
// Patience, and those that came since the last call. A guest that cannot be
// read, or has no verdict, is not in it.
func (r *Reader) Read(ctx context.Context, guests map[string]Guest) map[string]fleet.HealthStatus {
	if len(guests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	out := map[string]fleet.HealthStatus{}
	var awaited []*reading
	r.mu.Lock()
	for uid, guest := range guests {
		if h, ok := r.late[uid]; ok {
			out[uid] = h
		}
		reading := r.active[uid]
		if reading == nil {
			reading = r.startLocked(uid, guest)
		}
		awaited = append(awaited, reading)
	}
	clear(r.late) // what nobody asks about any more goes too
	r.mu.Unlock()
	for _, reading := range awaited {
		select {
		case <-reading.done:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reading := range awaited {
		select {
		case <-reading.done:
			delete(r.late, reading.uid)
			if reading.got != nil {
				out[reading.uid] = *reading.got
			}
		default: // its verdict comes along with the next listing
		}
	}
	return out
}

func (r *Reader) startLocked(uid string, guest Guest) *reading {
	reading := &reading{uid: uid, guest: guest, done: make(chan struct{})}
	r.active[uid] = reading
	r.queue = append(r.queue, reading)
	if r.workers < AtOnce && r.ctx.Err() == nil {
		r.workers++
		r.work.Go(r.run)
	}
	return reading
}

func (r *Reader) run() {
	for {
		r.mu.Lock()
		if len(r.queue) == 0 || r.ctx.Err() != nil {
			r.workers--
			r.mu.Unlock()
			return
		}
		next := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		got := r.one(next.guest)
		r.mu.Lock()
		delete(r.active, next.uid)
		if next.got = got; got != nil {
			r.late[next.uid] = *got
		}
		close(next.done)
		r.mu.Unlock()
	}
}

func (r *Reader) one(guest Guest) *fleet.HealthStatus {
	ctx, cancel := context.WithTimeout(r.ctx, ReadTimeout)
	defer cancel()
	info, err := guest.Info(ctx)
	if err != nil {
		return nil // no news: not a failing probe
	}
	return info.Health.Sound()
}
