// Package rows says what a journal in a SQL database stores of each row: the
// columns of its key, the columns that an operator would query, and the
// document. Column names and their order are the same in every database; how a
// type is written is the adapter's.
package rows

import (
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/codec"
)

// Type of a column's values: string, int64, bool, time.Time or []byte.
type Type int

// Types.
const (
	Text Type = iota
	Int
	Bool
	Time
	Bytes
)

// Column of a table.
type Column struct {
	Name string
	Type Type
}

// Table says how a kind of row is stored. Keys are texts; every table has a
// column doc beside them and Columns.
type Table struct {
	Name    state.Table
	Keys    []string
	Columns []Column

	values func(row any) ([]any, error)
}

// Values returns what belongs into Columns. A row of another type is a mistake
// of the caller that must not be stored.
func (t *Table) Values(row any) ([]any, error) { return t.values(row) }

// Key returns what belongs into Keys.
func (t *Table) Key(k state.Key) []string { return k[:len(t.Keys)] }

// IsCollection reports whether the rows are documents, each with its id.
func (t *Table) IsCollection() bool { return slices.Contains(state.Collections, t.Name) }

// Document encodes a row. A startup log's output has its own column, as bytes.
func Document(t state.Table, row any) (string, error) {
	switch r := row.(type) {
	case *fleet.StartupLog:
		rest := *r
		rest.Output = nil
		row = &rest
	case *state.Document:
		return r.Encode(t)
	}
	return codec.Encode(t, row)
}

// Tables lists how every table of rows is stored.
var Tables = append([]Table{
	{state.TableVMs, []string{"id"}, []Column{
		{"uid", Text}, {"task_id", Text}, {"host_id", Text}, {"state", Text}, {"owner", Text},
		{"generation", Int}, {"created_at", Time}, {"updated_at", Time},
	}, of(func(v *fleet.VM) []any {
		return []any{v.UID, v.TaskID, v.HostID, string(v.State), v.Owner, v.Generation, v.CreatedAt, v.UpdatedAt}
	})},
	{state.TableHosts, []string{"id"}, []Column{
		{"state", Text}, {"url", Text}, {"backend", Text}, {"updated_at", Time},
	}, of(func(h *fleet.Host) []any {
		return []any{string(h.State), h.URL, string(h.Backend), h.UpdatedAt}
	})},
	{state.TableTasks, []string{"id"}, []Column{
		{"vm_id", Text}, {"uid", Text}, {"run_status", Text}, {"updated_at", Time},
	}, of(func(k *fleet.Task) []any {
		return []any{k.VMID, k.UID, string(k.RunStatus), k.UpdatedAt}
	})},
	{state.TableSnapshots, []string{"id"}, []Column{
		{"vm_id", Text}, {"host_id", Text}, {"state", Text}, {"owner", Text}, {"size_bytes", Int}, {"created_at", Time},
	}, of(func(s *fleet.Snapshot) []any {
		return []any{s.VMID, s.HostID, string(s.State), s.Owner, s.SizeBytes, s.CreatedAt}
	})},
	{state.TableDeadLetters, []string{"kind", "entity_id"}, []Column{{"retry_count", Int}, {"last_seen_at", Time}},
		of(func(d *fleet.DeadLetter) []any { return []any{int64(d.RetryCount), d.LastSeenAt} })},
	{state.TableLives, []string{"uid"}, []Column{
		{"vm_id", Text}, {"task_id", Text}, {"state", Text}, {"rule", Text}, {"ended_at", Time},
	}, of(func(l *fleet.Life) []any {
		return []any{l.VMID, l.TaskID, string(l.State), l.Reason.Rule, l.EndedAt}
	})},
	{state.TableStartupLogs, []string{"uid"}, []Column{{"exit_code", Int}, {"ended_at", Time}, {"output", Bytes}},
		of(func(l *fleet.StartupLog) []any {
			return []any{int64(l.ExitCode), l.EndedAt, append([]byte{}, l.Output...)}
		})},
	{state.TableIdempotency, []string{"owner", "key"}, []Column{{"resource_id", Text}, {"done", Bool}, {"created_at", Time}},
		of(func(r *state.Idempotency) []any { return []any{r.ResourceID, r.Done, r.CreatedAt} })},
}, documents()...)

// documents are alike.
func documents() (out []Table) {
	for _, name := range state.Collections {
		out = append(out, Table{name, []string{"id"}, []Column{{"updated_at", Time}},
			of(func(d *state.Document) []any { return []any{d.UpdatedAt} })})
	}
	return out
}

func of[T any](f func(*T) []any) func(any) ([]any, error) {
	return func(row any) ([]any, error) {
		r, ok := row.(*T)
		if !ok {
			return nil, fmt.Errorf("a %T where a %T belongs", row, r)
		}
		return f(r), nil
	}
}

// Check refuses a write whose row is not of its table's type.
func Check(w state.Write) error {
	ok := false
	switch w.Row.(type) {
	case nil:
		ok = slices.Contains(state.Tables, w.Table)
	case *fleet.VM:
		ok = w.Table == state.TableVMs
	case *fleet.Host:
		ok = w.Table == state.TableHosts
	case *fleet.Task:
		ok = w.Table == state.TableTasks
	case *fleet.Snapshot:
		ok = w.Table == state.TableSnapshots
	case *fleet.DeadLetter:
		ok = w.Table == state.TableDeadLetters
	case *fleet.Life:
		ok = w.Table == state.TableLives
	case *fleet.StartupLog:
		ok = w.Table == state.TableStartupLogs
	case *state.Idempotency:
		ok = w.Table == state.TableIdempotency
	case *state.Document:
		ok = slices.Contains(state.Collections, w.Table)
	}
	if !ok {
		return fmt.Errorf("a %T in table %q", w.Row, w.Table)
	}
	return nil
}

// stampLayout has a fixed width, so that stamps sort as text.
const stampLayout = "2006-01-02T15:04:05.000000Z"

// Stamp writes a time as UTC text of fixed width, to the microsecond.
func Stamp(t time.Time) string { return t.UTC().Format(stampLayout) }

// ParseStamp reads what Stamp has written.
func ParseStamp(s string) (time.Time, error) { return time.Parse(stampLayout, s) }

// Decode reads a stored document into the row that it is of, with its key. The
// documents of collections are state.LoadDocument's.
func Decode(t state.Table, doc []byte) (state.Key, any, error) {
	decode, ok := decoders[t]
	if !ok {
		return state.Key{}, nil, fmt.Errorf("no rows of table %q", t)
	}
	return decode(doc)
}

var decoders = map[state.Table]func([]byte) (state.Key, any, error){
	state.TableVMs:         decoder(state.TableVMs, func(v *fleet.VM) state.Key { return state.Key{v.ID} }),
	state.TableHosts:       decoder(state.TableHosts, func(h *fleet.Host) state.Key { return state.Key{h.ID} }),
	state.TableTasks:       decoder(state.TableTasks, func(k *fleet.Task) state.Key { return state.Key{k.TaskID} }),
	state.TableSnapshots:   decoder(state.TableSnapshots, func(s *fleet.Snapshot) state.Key { return state.Key{s.SnapshotID} }),
	state.TableDeadLetters: decoder(state.TableDeadLetters, func(d *fleet.DeadLetter) state.Key { return state.Key{string(d.Kind), d.EntityID} }),
	state.TableLives:       decoder(state.TableLives, func(l *fleet.Life) state.Key { return state.Key{l.UID} }),
	state.TableStartupLogs: decoder(state.TableStartupLogs, func(l *fleet.StartupLog) state.Key { return state.Key{l.UID} }),
	state.TableIdempotency: decoder(state.TableIdempotency, func(r *state.Idempotency) state.Key { return state.Key{r.Owner, r.Key} }),
}

func decoder[T any](t state.Table, key func(*T) state.Key) func([]byte) (state.Key, any, error) {
	return func(doc []byte) (state.Key, any, error) {
		row, err := codec.Decode[T](t, doc)
		if err != nil {
			return state.Key{}, nil, err
		}
		return key(row), row, nil
	}
}
