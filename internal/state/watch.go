package state

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// ChangeSet is what one Update changed. VMs and Hosts are ids of rows that
// were written or deleted, or whose totals moved, Documents those of every
// collection. It is shared: do not change it.
type ChangeSet struct {
	Revision  uint64
	At        time.Time
	Events    []fleet.Event
	VMs       []string
	Hosts     []string
	Documents []DocumentID
}

func (c *ChangeSet) note(t Table, k Key) {
	switch t {
	case TableVMs:
		c.VMs = addID(c.VMs, k[0])
	case TableHosts:
		c.Hosts = addID(c.Hosts, k[0])
	default:
		if slices.Contains(Collections, t) {
			c.addDocument(t, k[0])
		}
	}
}

func addID(ids []string, id string) []string {
	if slices.Contains(ids, id) {
		return ids
	}
	return append(ids, id)
}

// about lists the environments that a change set concerns.
func (c *ChangeSet) about() []string {
	ids := slices.Clone(c.VMs)
	for _, e := range c.Events {
		if e.EntityType == EntityVM {
			ids = addID(ids, e.EntityID)
		}
	}
	return ids
}

// Errors of Subscription.Next.
var (
	// ErrLagged means that the subscriber was too far behind and has missed
	// change sets: read the state again and subscribe anew.
	ErrLagged = errors.New("subscriber fell behind and must read the state again")
	// ErrSubscriptionClosed follows Subscription.Close and Store.Close.
	ErrSubscriptionClosed = errors.New("subscription closed")
)

// hub holds the newest events and hands change sets to subscribers. Its lock
// is held for memory work only; making a batch visible happens under it, so
// that a snapshot and a subscription can begin at one point.
type hub struct {
	buffer int

	mu      sync.Mutex
	now     head
	ring    []fleet.Event // the newest, oldest first from start
	start   int
	maxRing int
	all     map[*Subscription]struct{}
	byVM    map[string]map[*Subscription]struct{}
	closed  bool
}

func newHub(cfg Config, l *Loaded) *hub {
	events := l.Events[max(0, len(l.Events)-cfg.MaxEventsInMemory):]
	return &hub{
		buffer:  cfg.WatchBuffer,
		now:     head{revision: l.Revision, seq: l.Seq, at: l.At},
		ring:    slices.Clone(events),
		maxRing: cfg.MaxEventsInMemory,
		all:     map[*Subscription]struct{}{},
		byVM:    map[string]map[*Subscription]struct{}{},
	}
}

func (h *hub) head() (revision, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now.revision, h.now.seq
}

func (h *hub) committedAt() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now.at
}

// publish makes a durable batch visible and queues its change sets.
func (h *hub) publish(now head, sets []ChangeSet, show func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	show()
	h.now = now
	for i := range sets {
		set := &sets[i]
		for _, e := range set.Events {
			h.remember(e)
		}
		for sub := range h.all {
			sub.push(set)
		}
		if len(h.byVM) == 0 {
			continue
		}
		for _, id := range set.about() {
			for sub := range h.byVM[id] {
				sub.push(set)
			}
		}
	}
}

func (h *hub) remember(e fleet.Event) {
	if len(h.ring) < h.maxRing {
		h.ring = append(h.ring, e)
		return
	}
	h.ring[h.start] = e
	h.start = (h.start + 1) % len(h.ring)
}

func (h *hub) at(i int) *fleet.Event { return &h.ring[(h.start+i)%len(h.ring)] }

// recent answers q from memory if memory holds all of the answer, else it
// returns the bound up to which events are visible.
func (h *hub) recent(q EventQuery) (events []fleet.Event, upTo uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	upTo = h.now.seq
	if q.UpTo != 0 {
		upTo = min(upTo, q.UpTo)
	}
	if q.After >= upTo {
		return nil, upTo, true
	}
	if len(h.ring) == 0 || h.at(0).Seq > q.After+1 {
		return nil, upTo, false
	}
	from := sort.Search(len(h.ring), func(i int) bool { return h.at(i).Seq > q.After })
	for i := from; i < len(h.ring) && len(events) < q.Limit; i++ {
		if e := h.at(i); q.Match(e) {
			events = append(events, *e)
		}
	}
	return events, upTo, true
}

func (h *hub) subscribe(ctx context.Context, vmID string) *Subscription {
	return h.subscribeWith(ctx, vmID, func() {})
}

func (h *hub) subscribeWith(ctx context.Context, vmID string, at func()) *Subscription {
	sub := &Subscription{hub: h, vmID: vmID, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	at()
	switch {
	case h.closed:
		sub.end(ErrSubscriptionClosed)
	case vmID == "":
		h.all[sub] = struct{}{}
	default:
		if h.byVM[vmID] == nil {
			h.byVM[vmID] = map[*Subscription]struct{}{}
		}
		h.byVM[vmID][sub] = struct{}{}
	}
	h.mu.Unlock()
	sub.stop = context.AfterFunc(ctx, func() { sub.drop(ctx.Err()) })
	return sub
}

// forget needs the lock.
func (h *hub) forget(sub *Subscription) {
	delete(h.all, sub)
	if subs := h.byVM[sub.vmID]; subs != nil {
		delete(subs, sub)
		if len(subs) == 0 {
			delete(h.byVM, sub.vmID)
		}
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for sub := range h.all {
		sub.end(ErrSubscriptionClosed)
	}
	for _, subs := range h.byVM {
		for sub := range subs {
			sub.end(ErrSubscriptionClosed)
		}
	}
	clear(h.all)
	clear(h.byVM)
}

// Subscription is an ordered feed of change sets. Next is for one goroutine;
// Close may be called from any.
type Subscription struct {
	hub  *hub
	vmID string
	wake chan struct{}
	stop func() bool

	// Under the hub's lock.
	queue []*ChangeSet
	err   error
}

// Next returns the next change set, waiting for it. It returns ErrLagged once
// more than the buffer had gathered, ErrSubscriptionClosed after a close, or
// the error of the ended ctx; change sets that were queued before a close are
// still delivered.
func (s *Subscription) Next(ctx context.Context) (ChangeSet, error) {
	for {
		set, err := s.take()
		if set != nil {
			return *set, nil
		}
		if err != nil {
			return ChangeSet{}, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return ChangeSet{}, ctx.Err()
		}
	}
}

func (s *Subscription) take() (*ChangeSet, error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if len(s.queue) == 0 {
		return nil, s.err
	}
	set := s.queue[0]
	s.queue[0] = nil
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	return set, nil
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.stop()
	s.drop(ErrSubscriptionClosed)
}

func (s *Subscription) drop(err error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.forget(s)
	s.end(err)
}

// push and end need the hub's lock.

func (s *Subscription) push(set *ChangeSet) {
	if len(s.queue) >= s.hub.buffer {
		s.queue = nil
		s.hub.forget(s)
		s.end(ErrLagged)
		return
	}
	s.queue = append(s.queue, set)
	s.signal()
}

func (s *Subscription) end(err error) {
	if s.err == nil {
		s.err = err
	}
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
