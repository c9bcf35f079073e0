package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state/memtable"
)

// Indexes beside "id".
const (
	byID      = "id"
	byUID     = "uid"
	byTask    = "task"
	byHost    = "host"
	byState   = "state"
	byOwner   = "owner"
	byVM      = "vm"
	byEnd     = "end"
	byCreated = "created"
)

const tableHead = "head"

// head is the one row that moves with every Update: it gives each snapshot its
// own revision and row counts.
type head struct {
	revision uint64
	seq      uint64
	at       time.Time
	counts   counts
}

// counts holds the number of rows of each table, in the order of Tables; a test
// holds it to be long enough.
type counts [32]int

func (c *counts) of(t Table) *int { return &c[slices.Index(Tables, t)] }

func primary[T any](key func(*T) Key) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: byID, Unique: true, Indexer: memtable.Index[T]{Key: func(row *T) []byte {
		return key(row).bytes()
	}}}
}

func secondary[T any](name string, key func(*T) []byte) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, AllowMissing: true, Indexer: memtable.Index[T]{Key: key}}
}

func tableOf(t Table, indexes ...*memdb.IndexSchema) *memdb.TableSchema {
	schema := &memdb.TableSchema{Name: string(t), Indexes: map[string]*memdb.IndexSchema{}}
	for _, x := range indexes {
		schema.Indexes[x.Name] = x
	}
	return schema
}

func newDB() (*memdb.MemDB, error) {
	schema := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, t := range []*memdb.TableSchema{
		tableOf(TableVMs, primary(vmKey),
			secondary(byUID, func(v *fleet.VM) []byte { return memtable.Group(v.UID) }),
			secondary(byTask, func(v *fleet.VM) []byte { return memtable.Group(v.TaskID) }),
			secondary(byHost, func(v *fleet.VM) []byte { return memtable.Group(v.HostID) }),
			secondary(byOwner, func(v *fleet.VM) []byte {
				if v.Owner == fleet.OwnerMaster {
					return nil // ByOwner filters instead
				}
				return memtable.Group(v.Owner)
			}),
			secondary(byState, func(v *fleet.VM) []byte {
				if v.State == fleet.VMStateRunning {
					return nil // nearly all are: ByState filters instead
				}
				return memtable.Group(string(v.State))
			})),
		tableOf(TableHosts, primary(hostKey)),
		tableOf(TableTasks, primary(taskKey)),
		tableOf(TableSnapshots, primary(snapshotKey),
			secondary(byVM, func(s *fleet.Snapshot) []byte { return memtable.Group(s.VMID) })),
		tableOf(TableDeadLetters, primary(deadLetterKey)),
		tableOf(TableLives, primary(lifeKey),
			secondary(byVM, func(l *fleet.Life) []byte { return append(memtable.Group(l.VMID), memtable.Instant(l.EndedAt)...) }),
			secondary(byEnd, func(l *fleet.Life) []byte { return memtable.Instant(l.EndedAt) })),
		tableOf(TableIdempotency, primary(idempotencyKey),
			secondary(byCreated, func(r *Idempotency) []byte { return memtable.Instant(r.CreatedAt) })),
		tableOf(tableHead, primary(func(*head) Key { return Key{tableHead} })),
	} {
		schema.Tables[t.Name] = t
	}
	for _, t := range Collections {
		schema.Tables[string(t)] = tableOf(t, primary(documentKey))
	}
	db, err := memdb.NewMemDB(schema)
	if err != nil {
		return nil, fmt.Errorf("state schema: %w", err)
	}
	// A snapshot of a database is a database that keeps no watch channels up
	// to date. Watch is our own ordered feed, so their cost buys nothing.
	return db.Snapshot(), nil
}

func vmKey(v *fleet.VM) Key                 { return Key{v.ID} }
func hostKey(h *fleet.Host) Key             { return Key{h.ID} }
func taskKey(t *fleet.Task) Key             { return Key{t.TaskID} }
func snapshotKey(s *fleet.Snapshot) Key     { return Key{s.SnapshotID} }
func deadLetterKey(d *fleet.DeadLetter) Key { return Key{string(d.Kind), d.EntityID} }
func lifeKey(l *fleet.Life) Key             { return Key{l.UID} }
func startupLogKey(l *fleet.StartupLog) Key { return Key{l.UID} }
func idempotencyKey(r *Idempotency) Key     { return Key{r.Owner, r.Key} }

// bytes joins the parts so that keys sort by the first part, then the second.
// Parts hold no NUL: Put refuses them.
func (k Key) bytes() []byte {
	if k[1] == "" {
		return []byte(k[0])
	}
	b := make([]byte, 0, len(k[0])+1+len(k[1]))
	b = append(b, k[0]...)
	b = append(b, 0)
	return append(b, k[1]...)
}
