package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/codec"
)

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func load(ctx context.Context, tx pgx.Tx, events int) (*state.Loaded, error) {
	l := &state.Loaded{Documents: map[state.Table][]*state.Document{}}
	var at *time.Time
	err := tx.QueryRow(ctx, "SELECT fleet_id, revision, seq, committed_at FROM meta").Scan(&l.FleetID, &l.Revision, &l.Seq, &at)
	if err != nil {
		return nil, err
	}
	if at != nil {
		l.At = at.UTC()
	}
	recent, err := docs[fleet.Event](ctx, tx, state.TableEvents, "ORDER BY seq DESC LIMIT $1", events)
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Backward(recent) {
		l.Events = append(l.Events, *e)
	}
	for _, read := range []func() error{
		into(ctx, tx, state.TableVMs, &l.VMs),
		into(ctx, tx, state.TableHosts, &l.Hosts),
		into(ctx, tx, state.TableTasks, &l.Tasks),
		into(ctx, tx, state.TableSnapshots, &l.Snapshots),
		into(ctx, tx, state.TableDeadLetters, &l.DeadLetters),
		into(ctx, tx, state.TableLives, &l.Lives),
		into(ctx, tx, state.TableIdempotency, &l.Idempotency),
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	for _, t := range state.Collections {
		if l.Documents[t], err = collection(ctx, tx, t); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func into[T any](ctx context.Context, tx pgx.Tx, t state.Table, rows *[]*T) func() error {
	return func() (err error) {
		*rows, err = docs[T](ctx, tx, t, "")
		return err
	}
}

func docs[T any](ctx context.Context, q querier, t state.Table, rest string, args ...any) (out []*T, err error) {
	rows, err := q.Query(ctx, "SELECT doc::text FROM "+string(t)+" "+rest, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t, err)
	}
	defer rows.Close()
	for rows.Next() {
		row, err := codec.Decode[T](t, rows.RawValues()[0])
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

func collection(ctx context.Context, q querier, t state.Table) (out []*state.Document, err error) {
	rows, err := q.Query(ctx, "SELECT id, updated_at, doc::text FROM "+string(t))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, doc string
		var at time.Time
		if err := rows.Scan(&id, &at, &doc); err != nil {
			return nil, fmt.Errorf("read %s: %w", t, err)
		}
		d, err := state.LoadDocument(t, id, at, []byte(doc))
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, rows.Err()
}

// Events reads events in rising order, by the index that narrows most.
func (j *Journal) Events(ctx context.Context, q state.EventQuery) ([]fleet.Event, error) {
	d, err := j.database()
	if err != nil {
		return nil, err
	}
	q = q.Normal()
	where, args := []string{}, []any{}
	add := func(use bool, condition string, arg any) {
		if use {
			args = append(args, arg)
			where = append(where, fmt.Sprintf(condition, len(args)))
		}
	}
	add(true, "seq > $%d", clamp(q.After))
	add(q.UpTo > 0, "seq <= $%d", clamp(q.UpTo))
	add(q.UID != "", "uid <> '' AND uid = $%d", q.UID)
	add(q.VMID != "", "entity_type = '"+fleet.EntityVM+"' AND entity_id = $%d", q.VMID)
	add(q.HostID != "", "entity_type = '"+fleet.EntityHost+"' AND entity_id = $%d", q.HostID)
	if q.StatesOnly {
		where = append(where, "state <> ''")
	}
	args = append(args, q.Limit)
	rows, err := docs[fleet.Event](ctx, d.read, state.TableEvents,
		fmt.Sprintf("WHERE %s ORDER BY seq LIMIT $%d", strings.Join(where, " AND "), len(args)), args...)
	if err != nil {
		return nil, d.explain(err)
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
	var doc string
	var output []byte
	err = d.read.QueryRow(ctx, "SELECT doc::text, output FROM startup_logs WHERE uid = $1", uid).Scan(&doc, &output)
	if errors.Is(err, pgx.ErrNoRows) {
		return fleet.StartupLog{}, false, nil
	}
	if err != nil {
		return fleet.StartupLog{}, false, d.explain(err)
	}
	l, err := codec.Decode[fleet.StartupLog](state.TableStartupLogs, []byte(doc))
	if err != nil {
		return fleet.StartupLog{}, false, err
	}
	l.Output = output
	return *l, true, nil
}
