package state

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fusevm/fuse/internal/fleet"
)

// Tx is the transaction of one Update. Reads see its own writes. It must not
// be used after the closure has returned.
type Tx struct {
	ReadTx
	now    time.Time
	writes []undo
	before map[rowID]any // each touched row as the Update found it, nil: none
	ended  map[string]bool
	events []fleet.Event
}

type rowID struct {
	table Table
	key   Key
}

// undo is one change as it went into memdb, in order.
type undo struct {
	rowID
	before, after any // typed pointers; nil for no row
	durable       bool
}

// Now is the time of this Update in UTC, to the microsecond; its rows and
// events carry it.
func (t *Tx) Now() time.Time { return t.now }

// Emit adds an event to this Update. Seq and At are set when it commits.
func (t *Tx) Emit(e fleet.Event) {
	e.At = t.now
	t.events = append(t.events, e)
}

// PutVM inserts or replaces an environment. Revision and UpdatedAt are set,
// CreatedAt if it is zero, and the host's Allocated follows at once.
func (t *Tx) PutVM(vm fleet.VM) error {
	if vm.UID == "" {
		return errKey(TableVMs, Key{vm.ID}, "it has no uid")
	}
	before, _ := t.VMs().Get(vm.ID)
	vm.Revision, vm.UpdatedAt = next(t), t.now
	if vm.CreatedAt.IsZero() {
		vm.CreatedAt = t.now
	}
	if vm.Placement != nil {
		// The caller's may lie within something larger, such as a whole
		// placement, which the row would keep alive.
		own := *vm.Placement
		vm.Placement = &own
	}
	if err := put(t, TableVMs, vmKey, &vm); err != nil {
		return err
	}
	return t.reallocate(before, &vm)
}

// DeleteVM removes an environment's row and frees what it holds of its host.
func (t *Tx) DeleteVM(id string) error {
	before, ok := t.VMs().Get(id)
	if !ok {
		return notFound(fleet.ErrVMNotFound, "environment", id)
	}
	if !fleet.CanTransition(before.State, "") {
		return transitionError(before, "")
	}
	if err := remove(t, TableVMs, Key{id}, before); err != nil {
		return err
	}
	if t.ended == nil {
		t.ended = map[string]bool{}
	}
	t.ended[id] = true
	return t.reallocate(before, nil)
}

// PutHost inserts or replaces a host. Allocated is the owner's and kept;
// Revision and UpdatedAt are set, CreatedAt if it is zero.
func (t *Tx) PutHost(h fleet.Host) error {
	h.Allocated = fleet.HostCapacity{}
	if before, ok := t.Hosts().Get(h.ID); ok && h.Facts.OverheadMB == before.Facts.OverheadMB {
		h.Allocated = before.Allocated
	} else {
		for vm := range t.VMs().ByHost(h.ID) { // some may be put by this very Update
			h.Allocated = h.Allocated.Plus(vm.Demand(h.Facts))
		}
	}
	h.Revision, h.UpdatedAt = next(t), t.now
	if h.CreatedAt.IsZero() {
		h.CreatedAt = t.now
	}
	return put(t, TableHosts, hostKey, &h)
}

// DeleteHost removes a host that no environment is on.
func (t *Tx) DeleteHost(id string) error {
	before, ok := t.Hosts().Get(id)
	if !ok {
		return notFound(fleet.ErrHostNotFound, "host", id)
	}
	return remove(t, TableHosts, Key{id}, before)
}

// PutTask inserts or replaces a task. UpdatedAt is set, AssignedAt if zero.
func (t *Tx) PutTask(k fleet.Task) error {
	k.UpdatedAt = t.now
	if k.AssignedAt.IsZero() {
		k.AssignedAt = t.now
	}
	return put(t, TableTasks, taskKey, &k)
}

// DeleteTask removes a task.
func (t *Tx) DeleteTask(id string) error {
	before, ok := t.Tasks().Get(id)
	if !ok {
		return notFound(fleet.ErrTaskNotFound, "task", id)
	}
	return remove(t, TableTasks, Key{id}, before)
}

// PutSnapshot inserts or replaces a snapshot record. Revision and UpdatedAt
// are set, CreatedAt if it is zero.
func (t *Tx) PutSnapshot(s fleet.Snapshot) error {
	s.Revision, s.UpdatedAt = next(t), t.now
	if s.CreatedAt.IsZero() {
		s.CreatedAt = t.now
	}
	return put(t, TableSnapshots, snapshotKey, &s)
}

// DeleteSnapshot removes a snapshot record.
func (t *Tx) DeleteSnapshot(id string) error {
	before, ok := t.Snapshots().Get(id)
	if !ok {
		return notFound(fleet.ErrSnapshotNotFound, "snapshot", id)
	}
	return remove(t, TableSnapshots, Key{id}, before)
}

// UpsertDeadLetter records a failure. A repeat keeps FirstSeenAt, sets
// LastSeenAt and raises RetryCount, to d's or by one, whichever is more.
func (t *Tx) UpsertDeadLetter(d fleet.DeadLetter) error {
	d.LastSeenAt = t.now
	if before, ok := t.DeadLetters().Get(d.Kind, d.EntityID); ok {
		d.FirstSeenAt = before.FirstSeenAt
		d.RetryCount = max(d.RetryCount, before.RetryCount+1)
	} else if d.FirstSeenAt.IsZero() {
		d.FirstSeenAt = t.now
	}
	return put(t, TableDeadLetters, deadLetterKey, &d)
}

// DeleteDeadLetter removes a dead letter; one that is not there is no error.
func (t *Tx) DeleteDeadLetter(kind fleet.DeadLetterKind, entity string) error {
	return drop[fleet.DeadLetter](t, TableDeadLetters, Key{string(kind), entity})
}

// PutLife keeps an ended life. EndedAt is set if zero; EndedSeq, if zero,
// becomes the Seq of this Update's last terminal event of that uid.
func (t *Tx) PutLife(l fleet.Life) error {
	if l.EndedAt.IsZero() {
		l.EndedAt = t.now
	}
	return put(t, TableLives, lifeKey, &l)
}

// DeleteLife forgets an ended life; one that is not there is no error.
func (t *Tx) DeleteLife(uid string) error { return drop[fleet.Life](t, TableLives, Key{uid}) }

// PutStartupLog keeps a startup script's output, at most the last
// fleet.MaxStartupLog bytes of it. It is durable but not kept in memory.
func (t *Tx) PutStartupLog(l fleet.StartupLog) error {
	if over := len(l.Output) - fleet.MaxStartupLog; over > 0 {
		l.Output, l.Truncated = slices.Clone(l.Output[over:]), true
	}
	return journal(t, TableStartupLogs, startupLogKey(&l), &l)
}

// DeleteStartupLog removes a life's startup log; one that is not there is no
// error.
func (t *Tx) DeleteStartupLog(uid string) error { return journal(t, TableStartupLogs, Key{uid}, nil) }

// PutIdempotency keeps a call's record. CreatedAt is set if zero.
func (t *Tx) PutIdempotency(r Idempotency) error {
	if r.CreatedAt.IsZero() {
		r.CreatedAt = t.now
	}
	return put(t, TableIdempotency, idempotencyKey, &r)
}

// DeleteIdempotency forgets a call's record; one that is not there is no
// error.
func (t *Tx) DeleteIdempotency(owner, key string) error {
	return drop[Idempotency](t, TableIdempotency, Key{owner, key})
}

// next is the revision that t's Update will have.
func next(t *Tx) uint64 { return t.head.revision + 1 }

// reallocate moves what a VM holds from one host's total to another's. The
// rows of hosts that are not there are left to the check at the end.
func (t *Tx) reallocate(before, after *fleet.VM) error {
	if before != nil && after != nil && before.HostID == after.HostID && before.SameDemand(after) {
		return nil
	}
	for _, side := range []struct {
		vm   *fleet.VM
		move func(total, d fleet.HostCapacity) fleet.HostCapacity
	}{{before, fleet.HostCapacity.Minus}, {after, fleet.HostCapacity.Plus}} {
		if side.vm == nil {
			continue
		}
		host, ok := t.Hosts().Get(side.vm.HostID)
		if !ok {
			continue
		}
		h := *host
		h.Allocated = side.move(h.Allocated, side.vm.Demand(h.Facts))
		if err := t.write(undo{rowID{TableHosts, hostKey(&h)}, host, &h, false}); err != nil {
			return err
		}
	}
	return nil
}

func put[T any](t *Tx, table Table, key func(*T) Key, row *T) error {
	k := key(row)
	if k[0] == "" {
		return errKey(table, k, "it has no id")
	}
	for _, part := range k {
		if strings.ContainsRune(part, 0) || !utf8.ValidString(part) {
			return errKey(table, k, "its id holds a NUL byte or is no UTF-8")
		}
	}
	var before any
	if old, ok := get[T](t.live(), table, k); ok {
		before = old
	}
	return t.write(undo{rowID{table, k}, before, row, true})
}

func drop[T any](t *Tx, table Table, k Key) error {
	if before, ok := get[T](t.live(), table, k); ok {
		return remove(t, table, k, before)
	}
	return nil
}

func remove(t *Tx, table Table, k Key, before any) error {
	return t.write(undo{rowID{table, k}, before, nil, true})
}

// journal records a write of a table that is not in memory.
func journal(t *Tx, table Table, k Key, row any) error {
	if k[0] == "" {
		return errKey(table, k, "it has no id")
	}
	t.writes = append(t.writes, undo{rowID{table, k}, nil, row, true})
	return nil
}

func (t *Tx) write(w undo) error {
	if err := t.apply(w.table, w.before, w.after); err != nil {
		return err
	}
	if _, ok := t.before[w.rowID]; !ok {
		if t.before == nil {
			t.before = map[rowID]any{}
		}
		t.before[w.rowID] = w.before
	}
	t.writes = append(t.writes, w)
	return nil
}

// apply puts after in the place of before, in memdb and in the counts.
func (t *Tx) apply(table Table, before, after any) error {
	var err error
	switch {
	case after != nil:
		err = t.live().Insert(string(table), after)
	case before != nil:
		err = t.live().Delete(string(table), before)
	}
	if err != nil {
		return fmt.Errorf("state table %s: %w", table, err)
	}
	n := t.head.counts.of(table)
	if before == nil && after != nil {
		*n++
	}
	if before != nil && after == nil {
		*n--
	}
	return nil
}

// rollback takes back what this Update did to memdb, newest first.
func (t *Tx) rollback() error {
	for _, w := range slices.Backward(t.writes) {
		if w.table == TableStartupLogs {
			continue
		}
		if err := t.apply(w.table, w.after, w.before); err != nil {
			return fmt.Errorf("undo: %w", err)
		}
	}
	return nil
}

// touched yields each row of a table that this Update changed, as it was at
// the beginning and as it is now; nil for none.
func touched[T any](t *Tx, table Table) iter.Seq2[*T, *T] {
	return func(yield func(before, after *T) bool) {
		for id, raw := range t.before {
			if id.table != table {
				continue
			}
			before, _ := raw.(*T)
			after, _ := get[T](t.live(), table, id.key)
			if !yield(before, after) {
				return
			}
		}
	}
}

func errKey(table Table, k Key, problem string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%s %.120q cannot be stored: %s", strings.ReplaceAll(string(table), "_", " "), k[0], problem)
}

func notFound(sentinel error, kind, id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "%s %.120q: %w", kind, id, sentinel)
}
