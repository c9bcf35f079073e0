package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/fusevm/fuse/internal/fleet"
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

// counts holds the number of rows of each table, in the order of Tables.
type counts [15]int

func (c *counts) of(t Table) *int { return &c[slices.Index(Tables, t)] }

// indexer computes one index key of a row of type T without reflection.
// Queries pass the raw key bytes.
type indexer[T any] struct {
	key func(*T) []byte // nil: the row is not in the index
}

func (x indexer[T]) FromObject(raw any) (bool, []byte, error) {
	row, ok := raw.(*T)
	if !ok {
		return false, nil, fmt.Errorf("a %T in a table of %T", raw, row)
	}
	k := x.key(row)
	return k != nil, k, nil
}

func (x indexer[T]) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 1 {
		return nil, errors.New("an index takes one argument")
	}
	k, ok := args[0].([]byte)
	if !ok {
		return nil, fmt.Errorf("a %T as index key", args[0])
	}
	return k, nil
}

// PrefixFromArgs makes prefix queries possible.
func (x indexer[T]) PrefixFromArgs(args ...any) ([]byte, error) { return x.FromArgs(args...) }

func primary[T any](key func(*T) Key) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: byID, Unique: true, Indexer: indexer[T]{func(row *T) []byte {
		return key(row).bytes()
	}}}
}

func secondary[T any](name string, key func(*T) []byte) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, AllowMissing: true, Indexer: indexer[T]{key}}
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
			secondary(byUID, func(v *fleet.VM) []byte { return group(v.UID) }),
			secondary(byTask, func(v *fleet.VM) []byte { return group(v.TaskID) }),
			secondary(byHost, func(v *fleet.VM) []byte { return group(v.HostID) }),
			secondary(byOwner, func(v *fleet.VM) []byte {
				if v.Owner == fleet.OwnerMaster {
					return nil // ByOwner filters instead
				}
				return group(v.Owner)
			}),
			secondary(byState, func(v *fleet.VM) []byte {
				if v.State == fleet.VMStateRunning {
					return nil // nearly all are: ByState filters instead
				}
				return group(string(v.State))
			})),
		tableOf(TableHosts, primary(hostKey)),
		tableOf(TableTasks, primary(taskKey)),
		tableOf(TableSnapshots, primary(snapshotKey),
			secondary(byVM, func(s *fleet.Snapshot) []byte { return group(s.VMID) })),
		tableOf(TableDeadLetters, primary(deadLetterKey)),
		tableOf(TableLives, primary(lifeKey),
			secondary(byVM, func(l *fleet.Life) []byte { return append(group(l.VMID), instant(l.EndedAt)...) }),
			secondary(byEnd, func(l *fleet.Life) []byte { return instant(l.EndedAt) })),
		tableOf(TableIdempotency, primary(idempotencyKey),
			secondary(byCreated, func(r *Idempotency) []byte { return instant(r.CreatedAt) })),
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

// group is the key of all rows that share value; none for an empty one.
func group(value string) []byte {
	if value == "" {
		return nil
	}
	b := make([]byte, 0, len(value)+1+16)
	return append(append(b, value...), 0)
}

// instant orders by time: nanoseconds since 1970, sign flipped.
func instant(t time.Time) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 8+32), uint64(t.UnixNano())^(1<<63))
}
