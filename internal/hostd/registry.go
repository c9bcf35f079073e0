package hostd

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/entry"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/journal"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	"github.com/fusevm/fuse/internal/hostd/room"
)

// Ended lives are kept this long, and at most this many of them: a repeated
// operation gets its answer and a late create finds its life gone.
const (
	endedKeep = 24 * time.Hour
	endedMax  = 20000
)

// registry is what this host knows: marks, lives and ended lives. Every change
// is made under mu and queued for the log in the same step, so the log has
// them in the same order.
type registry struct {
	id  string
	log *journal.Journal

	marks   *fence.Marks
	refused Fence // of the claim that was refused last; guarded by mu

	mu    sync.Mutex
	lives map[string]*life    // by uid
	byVM  map[vmKey]*life     // the one life of a VM id of a fleet
	ended *ops.Recent[*ended] // by uid
	slots ops.SlotSet
	used  fleet.HostCapacity
	// unreadable are VM directories without a sound owner record, by uid:
	// foreign, and nobody's to touch.
	unreadable map[string]bool
	lent       map[string]driver.VM // machines of nobody, by uid
	// sweeping is open while a sweep compares the host with the registry: a
	// life registered meanwhile would look like one that has ended.
	sweeping chan struct{}
}

type vmKey struct{ fleetID, vmID string }

func (l *life) key() vmKey { return vmKey{l.owner.FleetID, l.owner.VM.ID} }

func newRegistry(id string) *registry {
	r := &registry{
		id: id, lives: map[string]*life{}, byVM: map[vmKey]*life{}, unreadable: map[string]bool{}, lent: map[string]driver.VM{},
		ended: ops.NewRecent[*ended](endedKeep, endedMax),
	}
	r.marks = fence.NewMarks(func(m fence.Mark) func() error {
		return r.log.Append(record{Mark: &m}, true).Wait
	})
	return r
}

// apply replays one record of the log. It runs before anything else does.
func (r *registry) apply(doc []byte) error {
	var rec record
	if err := json.Unmarshal(doc, &rec); err != nil {
		return err
	}
	switch {
	case rec.Mark != nil:
		r.marks.Restore(*rec.Mark)
	case rec.Owner != nil:
		_, over := r.ended.Get(rec.Owner.VM.UID)
		if rec.Owner.Sound() && r.lives[rec.Owner.VM.UID] == nil && !over {
			l := newLife(*rec.Owner, phaseUnadopted)
			r.supersedeLocked(l)
			r.addLocked(l)
		}
		if rec.Owner.Sound() {
			r.marks.Saw(rec.Owner.Mark)
		}
	case rec.Answer != nil:
		if l := r.lives[rec.Answer.UID]; l != nil {
			if _, dup := entry.Answered(l.answers, rec.Answer.Verb, rec.Answer.OpID); !dup {
				l.answers = append(l.answers, *rec.Answer)
			}
		}
	case rec.Exit != nil:
		if l := r.lives[rec.Exit.UID]; l != nil && l.phase != phaseCondemned {
			l.exit, l.phase = rec.Exit, phaseStopped
		}
	case rec.Condemned != "":
		if l := r.lives[rec.Condemned]; l != nil {
			l.phase = phaseCondemned
		}
	case rec.Ended != nil:
		if l := r.lives[rec.Ended.UID]; l != nil {
			r.dropLocked(l)
		}
		r.ended.Put(rec.Ended.UID, rec.Ended, rec.Ended.At)
	}
	return nil
}

// supersedeLocked ends lives whose slot or VM id a later record gives to
// another: they had ended, and the line that said so was damaged.
func (r *registry) supersedeLocked(next *life) {
	if r.byVM[next.key()] == nil && !r.slots.Taken(next.owner.VM.Slot) {
		return
	}
	for _, l := range r.lives {
		if l.owner.VM.Slot == next.owner.VM.Slot || l.key() == next.key() {
			r.dropLocked(l)
			e := l.endedLocked(next.owner.At)
			r.ended.Put(e.UID, e, e.At)
		}
	}
}

// snapshot returns the records that rebuild the registry as it is now, and
// takes over what is queued.
func (r *registry) snapshot() (out []any, queued []*journal.Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks.Locked(func(marks []fence.Mark) {
		for _, m := range marks {
			out = append(out, record{Mark: &m})
		}
		for _, l := range r.lives {
			out = append(out, l.recordsLocked()...)
		}
		r.ended.Each(func(e *ended) { out = append(out, record{Ended: e}) })
		queued = r.log.Take()
	})
	return out, queued
}

// recordsLocked are the records that rebuild a life. The owner is copied: it
// is encoded later, without the lock.
func (l *life) recordsLocked() []any {
	o := l.owner
	out := []any{record{Owner: &o}}
	for _, a := range l.answers {
		out = append(out, record{Answer: &a})
	}
	if l.exit != nil {
		out = append(out, record{Exit: l.exit})
	}
	if l.phase == phaseCondemned {
		out = append(out, record{Condemned: l.owner.VM.UID})
	}
	return out
}

func (r *registry) addLocked(l *life) {
	vm := l.owner.VM
	r.lives[vm.UID] = l
	r.byVM[l.key()] = l
	r.slots.Take(vm.Slot)
	r.used = r.used.Plus(room.Of(vm))
}

func (r *registry) dropLocked(l *life) {
	vm := l.owner.VM
	delete(r.lives, vm.UID)
	if r.byVM[l.key()] == l {
		delete(r.byVM, l.key())
	}
	r.slots.Free(vm.Slot)
	r.used = r.used.Minus(room.Of(vm))
	if l.rests {
		r.used = r.used.Plus(room.Resting(vm))
	}
}

// spareLocked keeps free what a VM may hold whose owner cannot be read: it may
// well run. Of its record only what makes sense counts, so that nothing new gets
// its slot or its room.
func (r *registry) spareLocked(vm driver.VM) {
	if vm.Slot > 0 && vm.Slot <= entry.MaxSlot {
		r.slots.Take(vm.Slot)
	}
	r.used = r.used.Plus(room.Of(vm))
}

// keptAnswers bounds the answers of one live VM. The first is its create's.
const keptAnswers = 32

// answer records the answer to an operation on a live VM.
func (r *registry) answer(l *life, a answer) *journal.Ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(l.answers) >= keptAnswers {
		l.answers = slices.Delete(l.answers, 1, 2)
	}
	l.answers = append(l.answers, a)
	return r.log.Append(record{Answer: &a}, a.Error != nil)
}

// started settles a create. ok is false if the life is to end meanwhile; the
// caller then undoes it.
func (r *registry) started(l *life, inst driver.Instance, a answer) (t *journal.Ticket, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.phase != phaseCreating || l.ctx.Err() != nil {
		return nil, false
	}
	l.phase, l.inst = phaseRunning, inst
	l.answers = append(l.answers, a)
	return r.log.Append(record{Answer: &a}, false), true
}

// unanswer takes the answer of started back, since it could not be kept; the
// caller then undoes the create.
func (r *registry) unanswer(l *life) {
	r.mu.Lock()
	l.answers = nil // a create's is the first
	r.mu.Unlock()
	r.hold(l)
}

// condemnLocked marks a life that is to be removed, so that the removal is
// finished even if this process dies in it.
func (r *registry) condemnLocked(l *life) *journal.Ticket {
	l.end(refusal.ErrDestroyed)
	if l.phase != phaseCreating {
		l.phase = phaseCondemned
	}
	return r.log.Append(record{Condemned: l.owner.VM.UID}, false)
}

// finish ends a life for good: everything of it has been cleared. A non-nil
// answer is its last one.
func (r *registry) finish(l *life, last *answer) *journal.Ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lives[l.owner.VM.UID] == l {
		r.dropLocked(l)
	}
	e := l.endedLocked(time.Now().UTC())
	if last != nil {
		e.Answers = append(slices.Clip(e.Answers), *last)
	}
	r.ended.Put(e.UID, e, e.At)
	return r.log.Append(record{Ended: e}, last != nil && last.Error != nil)
}

func (l *life) endedLocked(at time.Time) *ended {
	return &ended{UID: l.owner.VM.UID, VMID: l.owner.VM.ID, FleetID: l.owner.FleetID, At: at, Answers: l.answers}
}

// abandon forgets a life of which nothing was made, not even its record.
func (r *registry) abandon(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lives[l.owner.VM.UID] == l {
		r.dropLocked(l)
	}
}

// adopted settles a life that was taken hold of; false if it is to be removed
// by now, and the caller lets go of the instance.
func (r *registry) adopted(l *life, inst driver.Instance) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.phase != phaseUnadopted {
		return false
	}
	l.inst, l.phase = inst, phaseRunning
	return true
}

// foundGone records the end of a life that was to be taken hold of.
func (r *registry) foundGone(l *life, exit fleet.ExitRecord) *journal.Ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.phase != phaseUnadopted {
		return journal.Done()
	}
	return r.stoppedLocked(l, exit)
}

// trustLocked has every life count as acknowledged. It is for a log that has
// lost records: which of them were answers is not known, and what may be
// relied on is not undone.
func (r *registry) trustLocked() {
	for _, l := range r.lives {
		if _, ok := entry.Answered(l.answers, verbCreate, l.owner.OpID); !ok && l.phase == phaseUnadopted {
			r.acknowledgeLocked(l)
		}
	}
}

// acknowledgeLocked records a create's answer in place of the one that is
// lost.
func (r *registry) acknowledgeLocked(l *life) {
	a := answer{UID: l.owner.VM.UID, Verb: verbCreate, OpID: l.owner.OpID}
	l.answers = append([]answer{a}, l.answers...)
	r.log.Append(record{Answer: &a}, true)
}

func (r *registry) stoppedLocked(l *life, exit fleet.ExitRecord) *journal.Ticket {
	exit.UID, exit.VMID = l.owner.VM.UID, l.owner.VM.ID
	if exit.At.IsZero() {
		exit.At = time.Now().UTC()
	}
	l.exit, l.phase = &exit, phaseStopped
	l.end(refusal.ErrStopped)
	return r.log.Append(record{Exit: &exit}, true)
}

// stopped is a VM whose end was noticed; the caller closes the instance.
type stopped struct {
	exit   fleet.ExitRecord
	inst   driver.Instance
	record *journal.Ticket
}

// noteExits records the end of every running VM whose driver says that it has
// stopped.
func (r *registry) noteExits() (out []stopped) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lives {
		if l.phase != phaseRunning {
			continue
		}
		select {
		case <-l.inst.Done():
			t := r.stoppedLocked(l, l.inst.Exit())
			out = append(out, stopped{*l.exit, l.inst, t})
			l.inst = nil
		default:
		}
	}
	return out
}

// list returns the lives of a phase, or all of them for a nil filter.
func (r *registry) list(keep func(*life) bool) []*life {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*life
	for _, l := range r.lives {
		if keep == nil || keep(l) {
			out = append(out, l)
		}
	}
	return out
}

// phases counts the lives by phase.
func (r *registry) phases() map[string]int {
	counts := map[string]int{}
	for p := phaseCreating; p <= phaseCondemned; p++ {
		counts[p.String()] = 0
	}
	r.list(func(l *life) bool { counts[l.phase.String()]++; return false })
	return counts
}

// observe returns a fleet's VMs as a listing shows them, by id, and counts
// those of others by fleet.
func (r *registry) observe(fleetID string) (vms []fleet.ObservedVM, foreign map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	foreign = map[string]int{}
	if n := len(r.unreadable); n > 0 {
		foreign[""] = n
	}
	for _, l := range r.lives {
		if l.owner.FleetID != fleetID {
			foreign[l.owner.FleetID]++
			continue
		}
		vms = append(vms, l.observedLocked())
	}
	slices.SortFunc(vms, func(a, b fleet.ObservedVM) int { return cmp.Compare(a.ID, b.ID) })
	return vms, foreign
}

// observedLocked renders a life. One that is not known to have stopped counts
// as running: only evidence says otherwise.
func (l *life) observedLocked() fleet.ObservedVM {
	vm := l.owner.VM
	return fleet.ObservedVM{ID: vm.ID, UID: vm.UID, Generation: vm.Generation, Running: l.exit == nil, Paused: l.phase == phasePaused, Exit: l.exit}
}

// beginSweep holds up new lives and returns the VMs there are, those without a
// readable owner by their uid alone; endSweep lets new lives in again.
func (r *registry) beginSweep() []driver.VM {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweeping = make(chan struct{})
	live := make([]driver.VM, 0, len(r.lives))
	for _, l := range r.lives {
		live = append(live, l.owner.VM)
	}
	for uid := range r.unreadable {
		live = append(live, driver.VM{UID: uid})
	}
	for _, vm := range r.lent {
		live = append(live, vm)
	}
	return live
}

func (r *registry) endSweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.sweeping)
	r.sweeping = nil
}

// awaitSweepLock waits until no sweep runs and returns with the lock held.
func (r *registry) awaitSweepLock(ctx context.Context) error {
	for {
		r.mu.Lock()
		sweeping := r.sweeping
		if sweeping == nil {
			return nil
		}
		r.mu.Unlock()
		select {
		case <-sweeping:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
