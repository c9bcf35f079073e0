package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/codec"
	"github.com/fusevm/fuse/internal/store/rows"
)

// Codes that commit_under raises.
const (
	codeStaleTerm   = "FU001"
	codeStaleNumber = "FU002"
)

// Commit sends b in one round trip: the check of the term and a statement per
// table, which the server runs as one transaction.
func (j *Journal) Commit(ctx context.Context, term int64, b state.Batch) error {
	d, err := j.database()
	if err != nil {
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, err)
	}
	work, n, err := d.prepare(term, b)
	if err != nil {
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, err)
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.CommitTimeout)
	defer cancel()
	conn, err := d.write.Acquire(ctx)
	if err != nil { // nothing was sent
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, d.explain(err))
	}
	defer conn.Release()
	if err = conn.SendBatch(ctx, work).Close(); err == nil {
		d.committed(n)
		return nil
	}
	return d.failed(ctx, b.ID, err)
}

// failed says what the error of a commit means. An error that the server gave
// a statement undid the transaction; after anything else, such as a cut
// connection, nobody knows.
func (d *database) failed(ctx context.Context, batchID string, err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.SeverityUnlocalized != "ERROR" { // the other one is in the server's language
		d.mu.Lock()
		defer d.mu.Unlock()
		d.pending = batchID
		return d.explain(err)
	}
	switch e.Code {
	case codeStaleTerm:
		return fmt.Errorf("%s: %w", e.Message, fleet.ErrStaleTerm)
	case codeStaleNumber:
		// An earlier commit was given up for lost without a look.
		_, resync := d.lookUp(ctx, batchID)
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, errors.Join(err, resync))
	}
	return fmt.Errorf("%w: %w", state.ErrNotCommitted, d.explain(err))
}

// committed notes that the database has at least n commits.
func (d *database) committed(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n = max(d.n, n)
}

// prepare makes the work of commit number n.
func (d *database) prepare(term int64, b state.Batch) (work *pgx.Batch, n int64, err error) {
	d.mu.Lock()
	n = d.n + 1
	d.mu.Unlock()
	work = &pgx.Batch{}
	work.Queue("SELECT commit_under($1, $2, $3, $4, $5, $6)", term, n, b.ID, clamp(b.Revision), clamp(b.Seq), b.At)
	for _, w := range b.Writes {
		if err := rows.Check(w); err != nil {
			return nil, 0, err
		}
	}
	for i := range tables {
		if err := tables[i].queue(work, b.Writes); err != nil {
			return nil, 0, err
		}
	}
	return work, n, queueEvents(work, b.Events)
}

// table is how a kind of row is written: all of a batch's at once, out of one
// array per column.
type table struct {
	*rows.Table
	put, remove string
}

var tables = func() (out []table) {
	for i := range rows.Tables {
		t := &rows.Tables[i]
		out = append(out, table{t, upsert(t), remove(t)})
	}
	return out
}()

var sqlTypes = map[rows.Type]string{
	rows.Text: "text", rows.Int: "bigint", rows.Bool: "boolean", rows.Time: "timestamptz", rows.Bytes: "bytea",
}

// columns of a table with their types.
func columns(t *rows.Table) (names, types []string) {
	for _, k := range t.Keys {
		names, types = append(names, k), append(types, "text")
	}
	for _, c := range t.Columns {
		names, types = append(names, c.Name), append(types, sqlTypes[c.Type])
	}
	return append(names, "doc"), append(types, "text")
}

func upsert(t *rows.Table) string {
	names, types := columns(t)
	var arrays, set []string
	for i, name := range names {
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, types[i]))
		if i >= len(t.Keys) {
			set = append(set, name+" = excluded."+name)
		}
	}
	list := strings.Join(names, ", ")
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s::json FROM unnest(%s) AS r (%s) ON CONFLICT (%s) DO UPDATE SET %s",
		t.Name, list, list, strings.Join(arrays, ", "), list, strings.Join(t.Keys, ", "), strings.Join(set, ", "))
}

func remove(t *rows.Table) string {
	var arrays, match []string
	for i, k := range t.Keys {
		arrays = append(arrays, fmt.Sprintf("$%d::text[]", i+1))
		match = append(match, fmt.Sprintf("%s.%s = k.%s", t.Name, k, k))
	}
	return fmt.Sprintf("DELETE FROM %s USING unnest(%s) AS k (%s) WHERE %s",
		t.Name, strings.Join(arrays, ", "), strings.Join(t.Keys, ", "), strings.Join(match, " AND "))
}

// queue adds the writes of one table.
func (t *table) queue(work *pgx.Batch, writes []state.Write) error {
	put, gone := t.arrays(), make([][]string, len(t.Keys))
	for _, w := range writes {
		if w.Table != t.Name {
			continue
		}
		if w.Row == nil {
			for i, k := range t.Key(w.Key) {
				gone[i] = append(gone[i], k)
			}
			continue
		}
		if err := put.add(t, w); err != nil {
			return err
		}
	}
	if put.n > 0 {
		work.Queue(t.put, put.args()...)
	}
	if len(gone[0]) > 0 {
		args := make([]any, 0, len(gone))
		for _, column := range gone {
			args = append(args, column)
		}
		work.Queue(t.remove, args...)
	}
	return nil
}

// arrays gathers rows by column.
type arrays struct {
	n       int
	columns []appender
}

type appender interface {
	add(v any) error
	values() any
}

type column[T any] struct{ all []T }

func (c *column[T]) add(v any) error {
	value, ok := v.(T)
	if !ok {
		return fmt.Errorf("a %T in a column of %T", v, value)
	}
	c.all = append(c.all, value)
	return nil
}

func (c *column[T]) values() any { return c.all }

// texts is a column of texts, in which PostgreSQL takes no NUL and UTF-8 only.
// The document beside it holds what there was.
type texts struct{ column[string] }

func (c *texts) add(v any) error {
	if s, ok := v.(string); ok {
		v = clean(s)
	}
	return c.column.add(v)
}

func clean(s string) string {
	if utf8.ValidString(s) && !strings.ContainsRune(s, 0) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func (t *table) arrays() *arrays {
	a := &arrays{}
	for range t.Keys {
		a.columns = append(a.columns, &column[string]{})
	}
	for _, c := range t.Columns {
		var next appender
		switch c.Type {
		case rows.Text:
			next = &texts{}
		case rows.Int:
			next = &column[int64]{}
		case rows.Bool:
			next = &column[bool]{}
		case rows.Time:
			next = &column[time.Time]{}
		case rows.Bytes:
			next = &column[[]byte]{}
		}
		a.columns = append(a.columns, next)
	}
	a.columns = append(a.columns, &column[string]{})
	return a
}

func (a *arrays) add(t *table, w state.Write) error {
	values, err := t.Values(w.Row)
	if err != nil {
		return err
	}
	doc, err := rows.Document(w.Table, w.Row)
	if err != nil {
		return err
	}
	next := 0
	put := func(v any) {
		err = errors.Join(err, a.columns[next].add(v))
		next++
	}
	for _, k := range t.Key(w.Key) {
		put(k)
	}
	for _, v := range values {
		put(v)
	}
	put(doc)
	a.n++
	return err
}

func (a *arrays) args() (out []any) {
	for _, c := range a.columns {
		out = append(out, c.values())
	}
	return out
}

const appendEvents = `INSERT INTO events (seq, at, entity_type, entity_id, uid, type, state, doc)
	SELECT seq, at, entity_type, entity_id, uid, type, state, doc::json
	FROM unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
	AS e (seq, at, entity_type, entity_id, uid, type, state, doc)`

func queueEvents(work *pgx.Batch, events []fleet.Event) error {
	if len(events) == 0 {
		return nil
	}
	seqs, ats := make([]int64, len(events)), make([]time.Time, len(events))
	var columns [6][]string
	for i := range events {
		e := &events[i]
		doc, err := codec.Encode(state.TableEvents, e)
		if err != nil {
			return err
		}
		seqs[i], ats[i] = clamp(e.Seq), e.At
		for n, v := range []string{clean(e.EntityType), clean(e.EntityID), clean(e.UID), clean(e.Type), clean(string(e.State)), doc} {
			columns[n] = append(columns[n], v)
		}
	}
	work.Queue(appendEvents, seqs, ats, columns[0], columns[1], columns[2], columns[3], columns[4], columns[5])
	return nil
}

// clamp fits a counter into a bigint.
func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Committed waits for a commit that may be under way: that holds the row of
// meta. A batch that is not there is kept from arriving later, by taking the
// number that it would have. Once another term has begun, one that is not there
// may have been, and fleet.ErrStaleTerm says so.
func (j *Journal) Committed(ctx context.Context, batchID string) (bool, error) {
	d, err := j.database()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.CommitTimeout)
	defer cancel()
	known, err := d.lookUp(ctx, batchID)
	if err != nil {
		return false, d.explain(err)
	}
	return known, nil
}

func (d *database) lookUp(ctx context.Context, batchID string) (known bool, err error) {
	d.mu.Lock()
	ours, pending := d.term, d.pending == batchID
	d.mu.Unlock()
	var term, n int64
	err = pgx.BeginFunc(ctx, d.write, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT term, n FROM meta FOR UPDATE").Scan(&term, &n); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM commits WHERE batch_id = $1)", batchID).Scan(&known); err != nil {
			return err
		}
		switch {
		case known || !pending:
			return nil
		case term != ours:
			return fmt.Errorf("term %d, the state database is at %d: %w", ours, term, fleet.ErrStaleTerm)
		}
		return tx.QueryRow(ctx, "UPDATE meta SET n = n + 1 RETURNING n").Scan(&n)
	})
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == term {
		d.n = max(d.n, n)
	}
	if pending {
		d.pending = ""
	}
	return known, nil
}

// purgeEvents deletes from the oldest of $1 events up to the first that stays,
// so that a clock which was set back tears no hole into the sequence.
const purgeEvents = `WITH oldest AS (SELECT seq, at FROM events ORDER BY seq LIMIT $1)
	DELETE FROM events WHERE seq <= (SELECT max(seq) FROM oldest)
	AND seq < coalesce((SELECT min(seq) FROM oldest WHERE at >= $2 AND seq > $3), 9223372036854775807)`

// PurgeEvents deletes the oldest events.
func (j *Journal) PurgeEvents(ctx context.Context, term int64, cut state.EventCut) (int, error) {
	d, err := j.database()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.CommitTimeout)
	defer cancel()
	keep := int64(math.MaxInt64)
	if cut.Keep > 0 {
		keep = clamp(cut.Keep)
	}
	var gone int64
	// Not one of the writer's connections: it comes beside a commit, and waits for
	// it, while the lease has to be renewed.
	err = pgx.BeginFunc(ctx, d.read, func(tx pgx.Tx) error {
		var current, seq int64
		if err := tx.QueryRow(ctx, "SELECT term, seq FROM meta FOR SHARE").Scan(&current, &seq); err != nil {
			return err
		}
		if current != term {
			return fmt.Errorf("term %d, the state database is at %d: %w", term, current, fleet.ErrStaleTerm)
		}
		tag, err := tx.Exec(ctx, purgeEvents, cut.Limit, cut.Before, max(0, seq-keep))
		gone = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, d.explain(err)
	}
	return int(gone), nil
}
