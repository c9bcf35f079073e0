package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/codec"
	"github.com/fusevm/fuse/internal/store/rows"
)

// Load reads every table that lives in memory, in one read transaction.
func (j *Journal) Load(ctx context.Context, events int) (*state.Loaded, error) {
	d, err := j.database()
	if err != nil {
		return nil, err
	}
	l, err := d.load(ctx, events)
	if err != nil {
		return nil, explain(j.cfg.Path, err)
	}
	return l, nil
}

func (d *database) load(ctx context.Context, events int) (l *state.Loaded, err error) {
	tx, err := d.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	l = &state.Loaded{}
	var at string
	if err := tx.QueryRowContext(ctx, "SELECT fleet_id, revision, seq, committed_at FROM meta").Scan(&l.FleetID, &l.Revision, &l.Seq, &at); err != nil {
		return nil, err
	}
	if at != "" {
		if l.At, err = rows.ParseStamp(at); err != nil {
			return nil, fmt.Errorf("time of the newest commit: %w", err)
		}
	}
	recent, err := selectDocs[fleet.Event](ctx, tx, state.TableEvents, "ORDER BY seq DESC LIMIT ?", events)
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Backward(recent) {
		l.Events = append(l.Events, *e)
	}
	return l, errors.Join(
		loadDocuments(ctx, tx, l),
		into(ctx, tx, state.TableVMs, &l.VMs),
		into(ctx, tx, state.TableHosts, &l.Hosts),
		into(ctx, tx, state.TableTasks, &l.Tasks),
		into(ctx, tx, state.TableSnapshots, &l.Snapshots),
		into(ctx, tx, state.TableDeadLetters, &l.DeadLetters),
		into(ctx, tx, state.TableLives, &l.Lives),
		into(ctx, tx, state.TableIdempotency, &l.Idempotency),
	)
}

func into[T any](ctx context.Context, tx *sql.Tx, t state.Table, rows *[]*T) (err error) {
	*rows, err = selectDocs[T](ctx, tx, t, "")
	return err
}

// loadDocuments reads every collection.
func loadDocuments(ctx context.Context, tx *sql.Tx, l *state.Loaded) error {
	l.Documents = map[state.Table][]*state.Document{}
	for _, t := range state.Collections {
		if err := loadCollection(ctx, tx, t, l); err != nil {
			return fmt.Errorf("read %s: %w", t, err)
		}
	}
	return nil
}

func loadCollection(ctx context.Context, tx *sql.Tx, t state.Table, l *state.Loaded) (err error) {
	found, err := tx.QueryContext(ctx, fmt.Sprintf("SELECT id, updated_at, doc FROM %s", t))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var id, updated string
		var doc sql.RawBytes
		if err := found.Scan(&id, &updated, &doc); err != nil {
			return err
		}
		at, err := rows.ParseStamp(updated)
		if err != nil {
			return err
		}
		d, err := state.LoadDocument(t, id, at, doc)
		if err != nil {
			return err
		}
		l.Documents[t] = append(l.Documents[t], d)
	}
	return found.Err()
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func selectDocs[T any](ctx context.Context, q querier, t state.Table, rest string, args ...any) (out []*T, err error) {
	rows, err := q.QueryContext(ctx, "SELECT doc FROM "+string(t)+" "+rest, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var doc sql.RawBytes
	for rows.Next() {
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("read %s: %w", t, err)
		}
		row, err := codec.Decode[T](t, doc)
		if err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", t, err)
	}
	return out, nil
}

// Events reads events in rising order, by the index that narrows most.
func (j *Journal) Events(ctx context.Context, q state.EventQuery) ([]fleet.Event, error) {
	d, err := j.database()
	if err != nil {
		return nil, err
	}
	q = q.Normal()
	where, args := []string{"seq > ?"}, []any{int64(q.After)}
	for _, c := range []struct {
		use   bool
		where string
		args  []any
	}{
		{q.UpTo > 0, "seq <= ?", []any{int64(q.UpTo)}},
		{q.UID != "", "uid = ? AND uid <> ''", []any{q.UID}},
		{q.VMID != "", "entity_id = ? AND entity_type = ?", []any{q.VMID, state.EntityVM}},
		{q.HostID != "", "entity_id = ? AND entity_type = ?", []any{q.HostID, fleet.EntityHost}},
		{q.StatesOnly, "state <> ''", nil},
	} {
		if c.use {
			where, args = append(where, c.where), append(args, c.args...)
		}
	}
	rows, err := selectDocs[fleet.Event](ctx, d.read, state.TableEvents,
		"WHERE "+strings.Join(where, " AND ")+" ORDER BY seq LIMIT ?", append(args, q.Limit)...)
	if err != nil {
		return nil, explain(j.cfg.Path, err)
	}
	events := make([]fleet.Event, 0, len(rows))
	for _, e := range rows {
		events = append(events, *e)
	}
	return events, nil
}

// StartupLog reads one life's startup log.
func (j *Journal) StartupLog(ctx context.Context, uid string) (fleet.StartupLog, bool, error) {
	d, err := j.database()
	if err != nil {
		return fleet.StartupLog{}, false, err
	}
	var doc, output []byte
	err = d.read.QueryRowContext(ctx, "SELECT doc, output FROM startup_logs WHERE uid = ?", uid).Scan(&doc, &output)
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.StartupLog{}, false, nil
	}
	if err != nil {
		return fleet.StartupLog{}, false, explain(j.cfg.Path, err)
	}
	l, err := codec.Decode[fleet.StartupLog](state.TableStartupLogs, doc)
	if err != nil {
		return fleet.StartupLog{}, false, err
	}
	l.Output = output
	return *l, true, nil
}
