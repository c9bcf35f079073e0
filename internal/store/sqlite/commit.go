package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/codec"
	"github.com/fusevm/fuse/internal/store/rows"
)

// keptBatches is the size of the ring of batch ids.
const keptBatches = 64

// errCommit marks a failed COMMIT, whose outcome SQLite does not tell.
var errCommit = errors.New("commit")

// transaction runs fn between BEGIN IMMEDIATE and COMMIT on the writer's
// connection. An error that is not errCommit left nothing behind.
func (d *database) transaction(ctx context.Context, fn func(context.Context, *sql.Conn) error) error {
	var conn *sql.Conn
	select {
	case conn = <-d.writer:
	case <-ctx.Done():
		return ctx.Err()
	}
	if conn == nil { // close has taken it for good
		return errClosed
	}
	defer func() { d.writer <- conn }()
	// The driver watches a context that can end with a goroutine per
	// statement. Nothing here waits long, so none can end.
	ctx = context.WithoutCancel(ctx)
	if _, err := d.stmts.begin.ExecContext(ctx); err != nil {
		return err
	}
	if err := fn(ctx, conn); err != nil {
		d.rollback(ctx)
		return err
	}
	if _, err := d.stmts.commit.ExecContext(ctx); err != nil {
		d.rollback(ctx)
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	return nil
}

// rollback ends a transaction. After some errors SQLite has done so itself and
// answers that there is none, so the answer says nothing.
func (d *database) rollback(ctx context.Context) {
	d.stmts.rollback.ExecContext(ctx) //nolint:errcheck // see above
}

// Commit writes b in one transaction that begins with the check of the term.
func (j *Journal) Commit(ctx context.Context, term int64, b state.Batch) error {
	d, err := j.database()
	if err != nil {
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, err)
	}
	err = d.transaction(ctx, func(ctx context.Context, _ *sql.Conn) error { return d.apply(ctx, term, b) })
	switch {
	case err == nil || errors.Is(err, fleet.ErrStaleTerm):
		return err
	case errors.Is(err, errCommit):
		return explain(j.cfg.Path, err)
	default:
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, explain(j.cfg.Path, err))
	}
}

func (d *database) apply(ctx context.Context, term int64, b state.Batch) error {
	result, err := d.stmts.head.ExecContext(ctx, int64(b.Revision), int64(b.Seq), stamp(b.At), term)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(d.stale(ctx, term), err)
	}
	n := d.counter + 1
	if _, err := d.stmts.batch.ExecContext(ctx, n%keptBatches, n, b.ID, term, int64(b.Revision), stamp(b.At)); err != nil {
		return err
	}
	for _, w := range b.Writes {
		if err := d.stmts.write(ctx, w); err != nil {
			return err
		}
	}
	for i := range b.Events {
		if err := d.stmts.appendEvent(ctx, &b.Events[i]); err != nil {
			return err
		}
	}
	d.counter = n // a number that is used twice or never harms nobody
	return nil
}

func (d *database) stale(ctx context.Context, term int64) error {
	var current int64
	if err := d.stmts.term.QueryRowContext(ctx).Scan(&current); err != nil {
		return err
	}
	return fmt.Errorf("term %d, the state database is at %d: %w", term, current, fleet.ErrStaleTerm)
}

func (s *statements) write(ctx context.Context, w state.Write) error {
	stmts, ok := s.rows[w.Table]
	if !ok {
		return fmt.Errorf("no table %q", w.Table)
	}
	key := stmts.table.Key(w.Key)
	if w.Row == nil {
		_, err := stmts.remove.ExecContext(ctx, args(key, nil, "")[:len(key)]...)
		return err
	}
	values, err := stmts.table.Values(w.Row)
	if err != nil {
		return err
	}
	doc, err := rows.Document(w.Table, w.Row)
	if err != nil {
		return err
	}
	_, err = stmts.put.ExecContext(ctx, args(key, values, doc)...)
	return err
}

func (s *statements) appendEvent(ctx context.Context, e *fleet.Event) error {
	doc, err := codec.Encode(state.TableEvents, e)
	if err != nil {
		return err
	}
	_, err = s.event.ExecContext(ctx, int64(e.Seq), stamp(e.At), e.EntityType, e.EntityID, e.UID, e.Type, string(e.State), doc)
	return err
}

// Committed looks the batch up on the writer's connection: after the commit
// that it is about.
func (j *Journal) Committed(ctx context.Context, batchID string) (bool, error) {
	d, err := j.database()
	if err != nil {
		return false, err
	}
	var n int
	err = d.transaction(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, "SELECT count(*) FROM commits WHERE batch_id = ?", batchID).Scan(&n)
	})
	if err != nil {
		return false, explain(j.cfg.Path, err)
	}
	return n > 0, nil
}

// purgeEvents deletes from the oldest of ?1 events up to the first that stays,
// so that a clock which was set back tears no hole into the sequence.
const purgeEvents = `DELETE FROM events WHERE seq <= (SELECT max(seq) FROM (SELECT seq FROM events ORDER BY seq LIMIT ?1))
	AND seq < coalesce((SELECT min(seq) FROM (SELECT seq, at FROM events ORDER BY seq LIMIT ?1) WHERE at >= ?2 AND seq > ?3), 9223372036854775807)`

// PurgeEvents deletes the oldest events.
func (j *Journal) PurgeEvents(ctx context.Context, term int64, cut state.EventCut) (int, error) {
	d, err := j.database()
	if err != nil {
		return 0, err
	}
	before := ""
	if !cut.Before.IsZero() {
		before = stamp(cut.Before)
	}
	keep := int64(math.MaxInt64)
	if cut.Keep > 0 && cut.Keep < math.MaxInt64 {
		keep = int64(cut.Keep)
	}
	var n int64
	err = d.transaction(ctx, func(ctx context.Context, conn *sql.Conn) error {
		var current, seq int64
		if err := conn.QueryRowContext(ctx, "SELECT term, seq FROM meta").Scan(&current, &seq); err != nil {
			return err
		}
		if current != term {
			return d.stale(ctx, term)
		}
		result, err := conn.ExecContext(ctx, purgeEvents, cut.Limit, before, max(0, seq-keep))
		if err != nil {
			return err
		}
		n, err = result.RowsAffected()
		return err
	})
	if err != nil {
		return 0, explain(j.cfg.Path, err)
	}
	return int(n), nil
}
