package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/codec"
)

// stamp has a fixed width, so that stamps sort as text.
const stampLayout = "2006-01-02T15:04:05.000000Z"

func stamp(t time.Time) string { return t.UTC().Format(stampLayout) }

// table says how a kind of row is stored: the columns of its key, the columns
// that an operator would query, and the document.
type table struct {
	name    state.Table
	keys    []string
	columns []string
	values  func(row any) ([]any, error) // of columns
}

// columnsOf adapts a function of one row type; a row of another type is a
// mistake of the caller that must not be stored.
func columnsOf[T any](f func(*T) []any) func(any) ([]any, error) {
	return func(row any) ([]any, error) {
		r, ok := row.(*T)
		if !ok {
			return nil, fmt.Errorf("a %T where a %T belongs", row, r)
		}
		return f(r), nil
	}
}

var tables = append(documentTables(), []table{
	{state.TableVMs, []string{"id"},
		[]string{"uid", "task_id", "host_id", "state", "owner", "generation", "created_at", "updated_at"},
		columnsOf(func(v *fleet.VM) []any {
			return []any{v.UID, v.TaskID, v.HostID, string(v.State), v.Owner, v.Generation, stamp(v.CreatedAt), stamp(v.UpdatedAt)}
		})},
	{state.TableHosts, []string{"id"}, []string{"state", "url", "backend", "updated_at"},
		columnsOf(func(h *fleet.Host) []any {
			return []any{string(h.State), h.URL, string(h.Backend), stamp(h.UpdatedAt)}
		})},
	{state.TableTasks, []string{"id"}, []string{"vm_id", "uid", "run_status", "updated_at"},
		columnsOf(func(k *fleet.Task) []any {
			return []any{k.VMID, k.UID, string(k.RunStatus), stamp(k.UpdatedAt)}
		})},
	{state.TableSnapshots, []string{"id"}, []string{"vm_id", "host_id", "state", "owner", "size_bytes", "created_at"},
		columnsOf(func(s *fleet.Snapshot) []any {
			return []any{s.VMID, s.HostID, string(s.State), s.Owner, s.SizeBytes, stamp(s.CreatedAt)}
		})},
	{state.TableDeadLetters, []string{"kind", "entity_id"}, []string{"retry_count", "last_seen_at"},
		columnsOf(func(d *fleet.DeadLetter) []any { return []any{d.RetryCount, stamp(d.LastSeenAt)} })},
	{state.TableLives, []string{"uid"}, []string{"vm_id", "task_id", "state", "rule", "ended_at"},
		columnsOf(func(l *fleet.Life) []any {
			return []any{l.VMID, l.TaskID, string(l.State), l.Reason.Rule, stamp(l.EndedAt)}
		})},
	{state.TableStartupLogs, []string{"uid"}, []string{"exit_code", "ended_at", "output"},
		columnsOf(func(l *fleet.StartupLog) []any {
			return []any{l.ExitCode, stamp(l.EndedAt), append([]byte{}, l.Output...)}
		})},
	{state.TableIdempotency, []string{"owner", "key"}, []string{"resource_id", "done", "created_at"},
		columnsOf(func(r *state.Idempotency) []any { return []any{r.ResourceID, r.Done, stamp(r.CreatedAt)} })},
}...)

// documentTables are alike.
func documentTables() (out []table) {
	for _, name := range state.Collections {
		out = append(out, table{name, []string{"id"}, []string{"updated_at"},
			columnsOf(func(d *state.Document) []any { return []any{stamp(d.UpdatedAt)} })})
	}
	return out
}

// document encodes a row. A startup log's output has its own column, as bytes.
func document(t state.Table, row any) (string, error) {
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

func (t *table) upsert() string {
	columns := slices.Concat(t.keys, t.columns, []string{"doc"})
	var set []string
	for _, c := range columns[len(t.keys):] {
		set = append(set, c+" = excluded."+c)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (%s) DO UPDATE SET %s",
		t.name, strings.Join(columns, ", "), marks(len(columns)), strings.Join(t.keys, ", "), strings.Join(set, ", "))
}

func (t *table) remove() string {
	return fmt.Sprintf("DELETE FROM %s WHERE %s = ?", t.name, strings.Join(t.keys, " = ? AND "))
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

func (t *table) key(k state.Key) []any {
	args := make([]any, 0, 2)
	for i := range t.keys {
		args = append(args, k[i])
	}
	return args
}

// statements are prepared once, on the writer's connection.
type statements struct {
	begin, commit, rollback  *sql.Stmt
	head, batch, event, term *sql.Stmt
	rows                     map[state.Table]rowStatements
	all                      []*sql.Stmt
}

type rowStatements struct {
	table       *table
	put, remove *sql.Stmt
}

func (s *statements) prepare(ctx context.Context, conn *sql.Conn) error {
	var failed error
	prepare := func(query string) *sql.Stmt {
		stmt, err := conn.PrepareContext(ctx, query)
		if err != nil {
			failed = errors.Join(failed, err)
			return nil
		}
		s.all = append(s.all, stmt)
		return stmt
	}
	s.begin, s.commit, s.rollback = prepare("BEGIN IMMEDIATE"), prepare("COMMIT"), prepare("ROLLBACK")
	s.head = prepare("UPDATE meta SET revision = ?, seq = ?, committed_at = ? WHERE term = ?")
	s.term = prepare("SELECT term FROM meta")
	s.batch = prepare("INSERT OR REPLACE INTO commits (slot, n, batch_id, term, revision, committed_at) VALUES (?, ?, ?, ?, ?, ?)")
	s.event = prepare("INSERT INTO events (seq, at, entity_type, entity_id, uid, type, state, doc) VALUES (" + marks(8) + ")")
	s.rows = make(map[state.Table]rowStatements, len(tables))
	for i := range tables {
		t := &tables[i]
		s.rows[t.name] = rowStatements{t, prepare(t.upsert()), prepare(t.remove())}
	}
	return failed
}

func (s *statements) close() {
	for _, stmt := range s.all {
		stmt.Close() //nolint:errcheck // the connection goes next
	}
}
