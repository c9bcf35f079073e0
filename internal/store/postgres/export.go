package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows"
	"github.com/fusevm/fuse/internal/store/rows/dump"
)

// Export reads everything in one read transaction.
func (j *Journal) Export(ctx context.Context, head func(dump.Head) error, row func(dump.Record) error) error {
	d, err := j.database()
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, d.read, snapshot, func(tx pgx.Tx) error { return export(ctx, tx, head, row) })
	return d.explain(err)
}

func export(ctx context.Context, tx pgx.Tx, head func(dump.Head) error, row func(dump.Record) error) error {
	var h dump.Head
	var at *time.Time
	err := tx.QueryRow(ctx, "SELECT fleet_id, revision, seq, committed_at FROM meta").Scan(&h.FleetID, &h.Revision, &h.Seq, &at)
	if err != nil {
		return err
	}
	if at != nil {
		h.At = at.UTC()
	}
	if err := head(h); err != nil {
		return err
	}
	var t dump.Term
	err = each(ctx, tx, "SELECT term, claim_token, holder, begun_at, revision FROM terms ORDER BY term",
		[]any{&t.Number, &t.Token, &t.Holder, &t.BegunAt, &t.Revision}, func() error {
			of := t
			of.BegunAt = of.BegunAt.UTC()
			return row(dump.Record{Table: "terms", Term: &of})
		})
	for i := range rows.Tables {
		if err == nil {
			err = exportTable(ctx, tx, &rows.Tables[i], row)
		}
	}
	if err != nil {
		return err
	}
	rec := dump.Record{Table: state.TableEvents}
	return each(ctx, tx, "SELECT doc::text FROM events ORDER BY seq", []any{(*[]byte)(&rec.Doc)}, func() error { return row(rec) })
}

func exportTable(ctx context.Context, tx pgx.Tx, t *rows.Table, row func(dump.Record) error) error {
	rec := dump.Record{Table: t.Name}
	columns, into := "doc::text", []any{(*[]byte)(&rec.Doc)}
	switch {
	case t.Name == state.TableStartupLogs:
		columns, into = columns+", output", append(into, &rec.Output)
	case t.IsCollection():
		columns, into = columns+", id, updated_at", append(into, &rec.ID, &rec.UpdatedAt)
	}
	query := fmt.Sprintf("SELECT %s FROM %s ORDER BY %s", columns, t.Name, strings.Join(t.Keys, ", "))
	return each(ctx, tx, query, into, func() error {
		rec.UpdatedAt = rec.UpdatedAt.UTC()
		return row(rec)
	})
}

func each(ctx context.Context, tx pgx.Tx, query string, into []any, fn func() error) error {
	found, err := tx.Query(ctx, query)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(found, into, fn)
	return err
}

// Adopt makes this the store of another's fleet, with that one's terms.
func (j *Journal) Adopt(ctx context.Context, term int64, h dump.Head, terms []dump.Term) error {
	d, err := j.database()
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, d.write, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "UPDATE meta SET fleet_id = $1 WHERE term = $2", h.FleetID, term)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("term %d is over: %w", term, fleet.ErrStaleTerm)
		}
		for _, t := range terms {
			if t.Number >= term {
				return fleet.Errorf(fleet.CodeConflict, "the export has seen term %d, this store is at %d", t.Number, term).
					With(fleet.DetailRemedy, "set this machine's clock right, and import into a new database")
			}
			_, err := tx.Exec(ctx, "INSERT INTO terms (term, claim_token, holder, begun_at, revision) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
				t.Number, t.Token, t.Holder, t.BegunAt, clamp(t.Revision))
			if err != nil {
				return err
			}
		}
		// The state of this term is what was imported.
		_, err = tx.Exec(ctx, "UPDATE terms SET revision = (SELECT revision FROM meta) WHERE term = $1", term)
		return err
	})
	return d.explain(err)
}

var _ dump.Store = (*Journal)(nil)
