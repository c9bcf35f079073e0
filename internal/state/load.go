package state

import (
	"fmt"

	"github.com/hashicorp/go-memdb"

	"github.com/fusevm/fuse/internal/fleet"
)

// fill puts what a journal held into an empty database and counts what the
// hosts' environments hold, which is not stored.
func fill(db *memdb.MemDB, l *Loaded) error {
	txn := db.Txn(true)
	defer txn.Abort()
	hosts := make(map[string]*fleet.Host, len(l.Hosts))
	for _, stored := range l.Hosts {
		h := *stored
		h.Allocated = fleet.HostCapacity{}
		hosts[h.ID] = &h
	}
	for _, vm := range l.VMs {
		if h := hosts[vm.HostID]; h != nil {
			h.Allocated = h.Allocated.Plus(vm.Demand(h.Facts))
		}
	}
	first := &head{revision: l.Revision, seq: l.Seq, at: l.At}
	in := &filling{txn: txn, counts: &first.counts}
	for _, h := range hosts {
		in.insert(TableHosts, h)
	}
	insertAll(in, TableVMs, l.VMs)
	insertAll(in, TableTasks, l.Tasks)
	insertAll(in, TableSnapshots, l.Snapshots)
	insertAll(in, TableDeadLetters, l.DeadLetters)
	insertAll(in, TableLives, l.Lives)
	insertAll(in, TableIdempotency, l.Idempotency)
	for _, t := range Collections {
		insertAll(in, t, l.Documents[t])
	}
	if in.err == nil {
		in.err = txn.Insert(tableHead, first)
	}
	if in.err != nil {
		return in.err
	}
	txn.Commit()
	return nil
}

type filling struct {
	txn    *memdb.Txn
	counts *counts
	err    error
}

func (f *filling) insert(t Table, row any) {
	if f.err != nil {
		return
	}
	if err := f.txn.Insert(string(t), row); err != nil {
		f.err = fmt.Errorf("table %s: %w", t, err)
		return
	}
	*f.counts.of(t)++
}

func insertAll[T any](f *filling, t Table, rows []*T) {
	for _, row := range rows {
		f.insert(t, row)
	}
}
