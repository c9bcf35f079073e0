package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows"
	"github.com/fusevm/fuse/internal/store/rows/dump"
)

// Export reads everything in one read transaction.
func (j *Journal) Export(ctx context.Context, head func(dump.Head) error, row func(dump.Record) error) (err error) {
	d, err := j.database()
	if err != nil {
		return err
	}
	tx, err := d.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return explain(j.cfg.Path, err)
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	return explain(j.cfg.Path, export(ctx, tx, head, row))
}

func export(ctx context.Context, tx *sql.Tx, head func(dump.Head) error, row func(dump.Record) error) error {
	var h dump.Head
	var at string
	err := tx.QueryRowContext(ctx, "SELECT fleet_id, revision, seq, committed_at FROM meta").Scan(&h.FleetID, &h.Revision, &h.Seq, &at)
	if err == nil && at != "" {
		h.At, err = rows.ParseStamp(at)
	}
	if err == nil {
		err = head(h)
	}
	if err != nil {
		return err
	}
	err = each(ctx, tx, "SELECT term, claim_token, holder, begun_at, revision FROM terms ORDER BY term", func(scan func(...any) error) error {
		var t dump.Term
		var begun string
		if err := scan(&t.Number, &t.Token, &t.Holder, &begun, &t.Revision); err != nil {
			return err
		}
		if begun != "" {
			if t.BegunAt, err = rows.ParseStamp(begun); err != nil {
				return err
			}
		}
		return row(dump.Record{Table: "terms", Term: &t})
	})
	for i := range rows.Tables {
		if err == nil {
			err = exportTable(ctx, tx, &rows.Tables[i], row)
		}
	}
	if err != nil {
		return err
	}
	return each(ctx, tx, "SELECT doc FROM events ORDER BY seq", func(scan func(...any) error) error {
		rec := dump.Record{Table: state.TableEvents}
		if err := scan((*[]byte)(&rec.Doc)); err != nil {
			return err
		}
		return row(rec)
	})
}

func exportTable(ctx context.Context, tx *sql.Tx, t *rows.Table, row func(dump.Record) error) error {
	rec := dump.Record{Table: t.Name}
	var updated string
	columns, into := "doc", []any{(*[]byte)(&rec.Doc)}
	switch {
	case t.Name == state.TableStartupLogs:
		columns, into = "doc, output", append(into, &rec.Output)
	case t.IsCollection():
		columns, into = "doc, id, updated_at", append(into, &rec.ID, &updated)
	}
	query := fmt.Sprintf("SELECT %s FROM %s ORDER BY %s", columns, t.Name, strings.Join(t.Keys, ", "))
	return each(ctx, tx, query, func(scan func(...any) error) (err error) {
		if err := scan(into...); err != nil {
			return err
		}
		if updated != "" {
			if rec.UpdatedAt, err = rows.ParseStamp(updated); err != nil {
				return err
			}
		}
		return row(rec)
	})
}

func each(ctx context.Context, tx *sql.Tx, query string, fn func(scan func(...any) error) error) (err error) {
	found, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		if err := fn(found.Scan); err != nil {
			return err
		}
	}
	return found.Err()
}

// Adopt makes this the store of another's fleet, with that one's terms.
func (j *Journal) Adopt(ctx context.Context, term int64, h dump.Head, terms []dump.Term) error {
	d, err := j.database()
	if err != nil {
		return err
	}
	err = d.transaction(ctx, func(ctx context.Context, conn *sql.Conn) error {
		result, err := conn.ExecContext(ctx, "UPDATE meta SET fleet_id = ? WHERE term = ?", h.FleetID, term)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return errors.Join(d.stale(ctx, term), err)
		}
		for _, t := range terms {
			if t.Number >= term {
				return fleet.Errorf(fleet.CodeConflict, "the export has seen term %d, this store is at %d", t.Number, term).
					With(fleet.DetailRemedy, "set this machine's clock right, and import into a new database")
			}
			_, err := conn.ExecContext(ctx, "INSERT OR IGNORE INTO terms (term, claim_token, holder, begun_at, revision) VALUES (?, ?, ?, ?, ?)",
				t.Number, t.Token, t.Holder, stamp(t.BegunAt), int64(t.Revision))
			if err != nil {
				return err
			}
		}
		// The state of this term is what was imported.
		_, err = conn.ExecContext(ctx, "UPDATE terms SET revision = (SELECT revision FROM meta) WHERE term = ?", term)
		return err
	})
	return explain(j.cfg.Path, err)
}

// Backup writes a copy of the database at path to the file at to, which must
// not exist, while a server may be using it. It only reads.
func Backup(ctx context.Context, path, to string) (err error) {
	db, err := sql.Open("sqlite", readOnly(path))
	if err != nil {
		return explain(path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return explain(path, err)
	}
	return nil
}

var _ dump.Store = (*Journal)(nil)
