package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows"
)

func stamp(t time.Time) string { return rows.Stamp(t) }

// args is what is stored of a row, in SQLite's types.
func args(key []string, values []any, doc string) []any {
	out := make([]any, 0, len(key)+len(values)+1)
	for _, k := range key {
		out = append(out, k)
	}
	for _, v := range values {
		if at, ok := v.(time.Time); ok {
			v = stamp(at)
		}
		out = append(out, v)
	}
	return append(out, doc)
}

func upsert(t *rows.Table) string {
	columns := slices.Clone(t.Keys)
	for _, c := range t.Columns {
		columns = append(columns, c.Name)
	}
	columns = append(columns, "doc")
	var set []string
	for _, c := range columns[len(t.Keys):] {
		set = append(set, c+" = excluded."+c)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (%s) DO UPDATE SET %s",
		t.Name, strings.Join(columns, ", "), marks(len(columns)), strings.Join(t.Keys, ", "), strings.Join(set, ", "))
}

func remove(t *rows.Table) string {
	return fmt.Sprintf("DELETE FROM %s WHERE %s = ?", t.Name, strings.Join(t.Keys, " = ? AND "))
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// statements are prepared once, on the writer's connection.
type statements struct {
	begin, commit, rollback  *sql.Stmt
	head, batch, event, term *sql.Stmt
	rows                     map[state.Table]rowStatements
	all                      []*sql.Stmt
}

type rowStatements struct {
	table       *rows.Table
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
	s.rows = make(map[state.Table]rowStatements, len(rows.Tables))
	for i := range rows.Tables {
		t := &rows.Tables[i]
		s.rows[t.Name] = rowStatements{t, prepare(upsert(t)), prepare(remove(t))}
	}
	return failed
}

func (s *statements) close() {
	for _, stmt := range s.all {
		stmt.Close() //nolint:errcheck // the connection goes next
	}
}
