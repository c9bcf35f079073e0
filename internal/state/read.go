package state

import (
	"iter"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state/memtable"
)

// ReadTx is a consistent snapshot of the state. It may be used by one
// goroutine at a time; its rows stay valid after it, and must not be changed.
type ReadTx struct {
	txn  *memdb.Txn
	head head
}

func newReadTx(txn *memdb.Txn) ReadTx {
	return ReadTx{txn: txn, head: *memtable.First[head](txn, Table(tableHead), byID, Key{tableHead}.bytes())}
}

// live returns the transaction while its closure runs. Keeping one for later
// is a mistake in the program that would read half a batch.
func (t *ReadTx) live() *memdb.Txn {
	if t.txn == nil {
		panic("state: transaction used after its closure returned")
	}
	return t.txn
}

// Revision is the revision of the newest Update in the snapshot; within an
// Update, of the one before it.
func (t *ReadTx) Revision() uint64 { return t.head.revision }

// Seq is the sequence number of the newest event in the snapshot.
func (t *ReadTx) Seq() uint64 { return t.head.seq }

// At is when the newest Update in the snapshot happened.
func (t *ReadTx) At() time.Time { return t.head.at }

// VMs reads environments.
func (t *ReadTx) VMs() VMs { return VMs{t} }

// Hosts reads registered hosts.
func (t *ReadTx) Hosts() Hosts { return Hosts{t} }

// Tasks reads task assignments.
func (t *ReadTx) Tasks() Tasks { return Tasks{t} }

// Snapshots reads snapshot records.
func (t *ReadTx) Snapshots() Snapshots { return Snapshots{t} }

// DeadLetters reads failures that were given up on.
func (t *ReadTx) DeadLetters() DeadLetters { return DeadLetters{t} }

// Lives reads ended lives.
func (t *ReadTx) Lives() Lives { return Lives{t} }

// Idempotency returns the record of owner's key.
func (t *ReadTx) Idempotency(owner, key string) (*Idempotency, bool) {
	return get[Idempotency](t.live(), TableIdempotency, Key{owner, key})
}

// IdempotencyBefore lists records created before at, oldest first.
func (t *ReadTx) IdempotencyBefore(at time.Time) iter.Seq[*Idempotency] {
	return memtable.Until(memtable.All[Idempotency](t.live(), TableIdempotency, byCreated, nil), func(r *Idempotency) bool {
		return r.CreatedAt.Before(at)
	})
}

// VMs is the table of environments.
type VMs struct{ t *ReadTx }

// Get returns the environment of that id.
func (v VMs) Get(id string) (*fleet.VM, bool) { return get[fleet.VM](v.t.live(), TableVMs, Key{id}) }

// GetUID returns the environment whose current life is uid.
func (v VMs) GetUID(uid string) (*fleet.VM, bool) { return v.only(byUID, uid) }

// ByTask returns the environment that a task is assigned to.
func (v VMs) ByTask(taskID string) (*fleet.VM, bool) { return v.only(byTask, taskID) }

func (v VMs) only(index, value string) (*fleet.VM, bool) {
	if value == "" {
		return nil, false
	}
	row := memtable.First[fleet.VM](v.t.live(), TableVMs, index, memtable.Group(value))
	return row, row != nil
}

// ByHost lists the environments on a host by id; the empty id lists none.
func (v VMs) ByHost(hostID string) iter.Seq[*fleet.VM] { return v.group(byHost, hostID) }

// ByState lists the environments in a state by id. For running it looks at
// every row: most are, and an index of them would cost more than it saves.
func (v VMs) ByState(s fleet.VMState) iter.Seq[*fleet.VM] {
	if s != fleet.VMStateRunning {
		return v.group(byState, string(s))
	}
	return func(yield func(*fleet.VM) bool) {
		for vm := range v.All() {
			if vm.State == s && !yield(vm) {
				return
			}
		}
	}
}

func (v VMs) group(index, value string) iter.Seq[*fleet.VM] {
	if value == "" {
		return func(func(*fleet.VM) bool) {}
	}
	return memtable.All[fleet.VM](v.t.live(), TableVMs, index, memtable.Group(value))
}

// All lists the environments by id.
func (v VMs) All() iter.Seq[*fleet.VM] {
	return memtable.All[fleet.VM](v.t.live(), TableVMs, byID, nil)
}

// After lists the environments whose id is greater than id, by id.
func (v VMs) After(id string) iter.Seq[*fleet.VM] {
	return memtable.Rows[fleet.VM](func() (memdb.ResultIterator, error) {
		return v.t.live().LowerBound(string(TableVMs), byID, append([]byte(id), 0))
	})
}

// ByOwner lists an owner's environments whose id is greater than id, by id. For
// the master it looks at every row: where there are no keys all are its own.
func (v VMs) ByOwner(owner, id string) iter.Seq[*fleet.VM] {
	if owner == "" {
		return func(func(*fleet.VM) bool) {}
	}
	if owner == fleet.OwnerMaster {
		return func(yield func(*fleet.VM) bool) {
			for vm := range v.After(id) {
				if vm.Owner == owner && !yield(vm) {
					return
				}
			}
		}
	}
	return memtable.Until(memtable.Rows[fleet.VM](func() (memdb.ResultIterator, error) {
		return v.t.live().LowerBound(string(TableVMs), byOwner, append(append(memtable.Group(owner), id...), 0))
	}), func(vm *fleet.VM) bool { return vm.Owner == owner })
}

// Len is the number of environments.
func (v VMs) Len() int { return *v.t.head.counts.of(TableVMs) }

// Hosts is the table of registered hosts.
type Hosts struct{ t *ReadTx }

// Get returns the host of that id.
func (h Hosts) Get(id string) (*fleet.Host, bool) {
	return get[fleet.Host](h.t.live(), TableHosts, Key{id})
}

// All lists the hosts by id.
func (h Hosts) All() iter.Seq[*fleet.Host] {
	return memtable.All[fleet.Host](h.t.live(), TableHosts, byID, nil)
}

// Len is the number of hosts.
func (h Hosts) Len() int { return *h.t.head.counts.of(TableHosts) }

// Tasks is the table of task assignments.
type Tasks struct{ t *ReadTx }

// Get returns the task of that id.
func (k Tasks) Get(id string) (*fleet.Task, bool) {
	return get[fleet.Task](k.t.live(), TableTasks, Key{id})
}

// All lists the tasks by id.
func (k Tasks) All() iter.Seq[*fleet.Task] {
	return memtable.All[fleet.Task](k.t.live(), TableTasks, byID, nil)
}

// Len is the number of tasks.
func (k Tasks) Len() int { return *k.t.head.counts.of(TableTasks) }

// Snapshots is the table of snapshot records.
type Snapshots struct{ t *ReadTx }

// Get returns the snapshot of that id.
func (s Snapshots) Get(id string) (*fleet.Snapshot, bool) {
	return get[fleet.Snapshot](s.t.live(), TableSnapshots, Key{id})
}

// ByVM lists the snapshots of an environment id by snapshot id.
func (s Snapshots) ByVM(vmID string) iter.Seq[*fleet.Snapshot] {
	if vmID == "" {
		return func(func(*fleet.Snapshot) bool) {}
	}
	return memtable.All[fleet.Snapshot](s.t.live(), TableSnapshots, byVM, memtable.Group(vmID))
}

// All lists the snapshots by id.
func (s Snapshots) All() iter.Seq[*fleet.Snapshot] {
	return memtable.All[fleet.Snapshot](s.t.live(), TableSnapshots, byID, nil)
}

// DeadLetters is the table of failures that were given up on.
type DeadLetters struct{ t *ReadTx }

// Get returns the dead letter of that kind and entity.
func (d DeadLetters) Get(kind fleet.DeadLetterKind, entity string) (*fleet.DeadLetter, bool) {
	return get[fleet.DeadLetter](d.t.live(), TableDeadLetters, Key{string(kind), entity})
}

// All lists the dead letters by kind and entity.
func (d DeadLetters) All() iter.Seq[*fleet.DeadLetter] {
	return memtable.All[fleet.DeadLetter](d.t.live(), TableDeadLetters, byID, nil)
}

// Lives is the table of ended lives.
type Lives struct{ t *ReadTx }

// GetUID returns the ended life of that uid.
func (l Lives) GetUID(uid string) (*fleet.Life, bool) {
	return get[fleet.Life](l.t.live(), TableLives, Key{uid})
}

// Latest returns the life of an environment id that ended last.
func (l Lives) Latest(vmID string) (*fleet.Life, bool) {
	for life := range l.ByVM(vmID) {
		return life, true
	}
	return nil, false
}

// ByVM lists the ended lives of an environment id, newest end first.
func (l Lives) ByVM(vmID string) iter.Seq[*fleet.Life] {
	if vmID == "" {
		return func(func(*fleet.Life) bool) {}
	}
	return memtable.Rows[fleet.Life](func() (memdb.ResultIterator, error) {
		return l.t.live().GetReverse(string(TableLives), byVM, memtable.Group(vmID))
	})
}

// All lists the ended lives, newest end first.
func (l Lives) All() iter.Seq[*fleet.Life] {
	return memtable.Rows[fleet.Life](func() (memdb.ResultIterator, error) {
		return l.t.live().GetReverse(string(TableLives), byEnd)
	})
}

// Oldest lists the ended lives, oldest end first, for a purge.
func (l Lives) Oldest() iter.Seq[*fleet.Life] {
	return memtable.All[fleet.Life](l.t.live(), TableLives, byEnd, nil)
}

// Len is the number of ended lives.
func (l Lives) Len() int { return *l.t.head.counts.of(TableLives) }

func get[T any](txn *memdb.Txn, t Table, k Key) (*T, bool) {
	row := memtable.First[T](txn, t, byID, k.bytes())
	return row, row != nil
}
