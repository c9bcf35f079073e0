// Package memory is the journal that forgets: it keeps everything in the
// process, for tests, simulations and a server without a data directory.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows"
	"github.com/fusevm/fuse/internal/uid"
)

const (
	// MaxEvents is how many events a journal keeps whatever retention says.
	MaxEvents = 1 << 16
	// MaxStartupLogs is the same for startup logs.
	MaxStartupLogs = 1 << 10

	keptBatches = 64
)

// Journal is a state.Journal and a state.Lease. What it holds outlives Close:
// Reopen and Acquire find it again.
type Journal struct {
	*storage
	closed bool
	mine   int64 // the newest term of this journal; zero: none
}

// storage is what several journals, opened one after another, share.
type storage struct {
	period   time.Duration // of the lease; zero: see Acquire
	mu       sync.Mutex
	fleetID  string
	term     int64
	lease    holding
	revision uint64
	seq      uint64
	at       time.Time
	rows     map[state.Table]map[state.Key]any
	logs     []string // uids of startup logs, oldest first
	events   []fleet.Event
	batches  []string
}

// Options of a journal.
type Options struct {
	// FleetID names the fleet; empty makes a new one (semantics 20).
	FleetID string
	// Lease is how long a term lasts that is not renewed, for tests of what
	// several servers do. Zero: until the next Acquire, which takes over.
	Lease time.Duration
}

// New makes an empty journal.
func New(o Options) *Journal {
	if o.FleetID == "" {
		o.FleetID = uid.New()
	}
	j := &Journal{storage: &storage{period: o.Lease, fleetID: o.FleetID, rows: map[state.Table]map[state.Key]any{}}}
	for _, t := range state.Tables {
		j.rows[t] = map[state.Key]any{}
	}
	return j
}

// Reopen returns another journal on the same rows, as a restarted or a second
// server would open.
func (j *Journal) Reopen() *Journal { return &Journal{storage: j.storage} }

// Load returns what is there.
func (j *Journal) Load(_ context.Context, events int) (*state.Loaded, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, errClosed
	}
	documents := map[state.Table][]*state.Document{}
	for _, t := range state.Collections {
		documents[t] = table[state.Document](j.storage, t)
	}
	return &state.Loaded{
		Documents: documents,
		FleetID:   j.fleetID, Revision: j.revision, Seq: j.seq, At: j.at,
		VMs:         table[fleet.VM](j.storage, state.TableVMs),
		Hosts:       table[fleet.Host](j.storage, state.TableHosts),
		Tasks:       table[fleet.Task](j.storage, state.TableTasks),
		Snapshots:   table[fleet.Snapshot](j.storage, state.TableSnapshots),
		DeadLetters: table[fleet.DeadLetter](j.storage, state.TableDeadLetters),
		Lives:       table[fleet.Life](j.storage, state.TableLives),
		Idempotency: table[state.Idempotency](j.storage, state.TableIdempotency),
		Events:      slices.Clone(j.events[max(0, len(j.events)-events):]),
	}, nil
}

func table[T any](j *storage, t state.Table) []*T {
	rows := make([]*T, 0, len(j.rows[t]))
	for _, raw := range j.rows[t] {
		rows = append(rows, raw.(*T)) //nolint:forcetypeassert // Commit checks the type
	}
	return rows
}

// Commit applies b.
func (j *Journal) Commit(_ context.Context, term int64, b state.Batch) error {
	for _, w := range b.Writes {
		if err := rows.Check(w); err != nil {
			return fmt.Errorf("%w: %w", state.ErrNotCommitted, err)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, errClosed)
	}
	if err := j.check(term); err != nil {
		return err
	}
	for _, w := range b.Writes {
		j.write(w)
	}
	j.events = append(j.events, b.Events...)
	if over := len(j.events) - MaxEvents; over > 0 {
		j.events = slices.Delete(j.events, 0, over)
	}
	j.revision, j.seq, j.at = b.Revision, b.Seq, b.At
	j.batches = append(j.batches, b.ID)
	if over := len(j.batches) - keptBatches; over > 0 {
		j.batches = slices.Delete(j.batches, 0, over)
	}
	return nil
}

var errClosed = errors.New("the memory journal is closed")

func (j *storage) check(term int64) error {
	if term != j.term {
		return fmt.Errorf("term %d, the journal is at %d: %w", term, j.term, fleet.ErrStaleTerm)
	}
	return nil
}

func (j *storage) write(w state.Write) {
	rows := j.rows[w.Table]
	_, had := rows[w.Key]
	if w.Row == nil {
		delete(rows, w.Key)
	} else {
		rows[w.Key] = w.Row
	}
	if w.Table != state.TableStartupLogs {
		return
	}
	if had {
		j.logs = slices.DeleteFunc(j.logs, func(uid string) bool { return uid == w.Key[0] })
	}
	if w.Row != nil {
		j.logs = append(j.logs, w.Key[0])
	}
	if len(j.logs) > MaxStartupLogs {
		delete(rows, state.Key{j.logs[0]})
		j.logs = slices.Delete(j.logs, 0, 1)
	}
}

// Committed reports whether the batch is there. Of one that is not it cannot tell
// once another term has begun: the ring may have gone round.
func (j *Journal) Committed(_ context.Context, batchID string) (bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch known := slices.Contains(j.batches, batchID); {
	case known || j.mine == 0:
		return known, nil
	default:
		return false, j.check(j.mine)
	}
}

// Events reads events in rising order.
func (j *Journal) Events(_ context.Context, q state.EventQuery) ([]fleet.Event, error) {
	q = q.Normal()
	j.mu.Lock()
	defer j.mu.Unlock()
	var events []fleet.Event
	for i := range j.events {
		if len(events) == q.Limit {
			break
		}
		if q.Match(&j.events[i]) {
			events = append(events, j.events[i])
		}
	}
	return events, nil
}

// StartupLog reads one life's startup log.
func (j *Journal) StartupLog(_ context.Context, uid string) (fleet.StartupLog, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l, ok := j.rows[state.TableStartupLogs][state.Key{uid}].(*fleet.StartupLog)
	if !ok {
		return fleet.StartupLog{}, false, nil
	}
	return *l, true, nil
}

// PurgeEvents deletes the oldest events.
func (j *Journal) PurgeEvents(_ context.Context, term int64, cut state.EventCut) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.check(term); err != nil {
		return 0, err
	}
	n := 0
	for n < len(j.events) && n < cut.Limit && cut.Takes(&j.events[n], j.seq) {
		n++
	}
	j.events = slices.Delete(j.events, 0, n)
	return n, nil
}

// Close ends this journal, not what it holds.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	return nil
}
