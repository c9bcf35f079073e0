package state

import (
	"context"
	"errors"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Journal is durable storage of the state. Commit is called from one goroutine
// at a time; the rest may run beside it. Every adapter passes storetest.
type Journal interface {
	// Load reads everything but startup logs, and the newest events events.
	Load(ctx context.Context, events int) (*Loaded, error)
	// Commit makes b durable in one transaction that also checks term. An
	// error that is ErrNotCommitted or fleet.ErrStaleTerm promises that b left
	// nothing behind; after any other the outcome is unknown and Committed
	// tells it.
	Commit(ctx context.Context, term int64, b Batch) error
	// Committed reports whether the batch of that id is durable. It waits for
	// a commit of it that may still be in flight, and knows at least the
	// newest 32 batches; beyond them, in a later term, fleet.ErrStaleTerm.
	Committed(ctx context.Context, batchID string) (bool, error)
	// Events reads events in rising order.
	Events(ctx context.Context, q EventQuery) ([]fleet.Event, error)
	// StartupLog reads one life's startup log; false if there is none.
	StartupLog(ctx context.Context, uid string) (fleet.StartupLog, bool, error)
	// PurgeEvents deletes the oldest events that cut allows to, at most
	// cut.Limit, and returns how many. It checks term as Commit does.
	PurgeEvents(ctx context.Context, term int64, cut EventCut) (int, error)
	// Close ends the journal. It is idempotent.
	Close() error
}

// KeptTerms is how many terms a journal keeps: so many of all, and so many of
// those in which something was committed, the newest of each.
const KeptTerms = 256

// ErrNotCommitted marks a Journal error after which the batch is certainly
// not durable and the journal may be used again.
var ErrNotCommitted = errors.New("not committed")

// Table names a kind of row.
type Table string

// Tables. Startup logs and events are not kept in memory as rows; events are no
// rows of a Batch.
const (
	TableVMs         Table = "vms"
	TableHosts       Table = "hosts"
	TableTasks       Table = "tasks"
	TableSnapshots   Table = "snapshots"
	TableDeadLetters Table = "dead_letters"
	TableLives       Table = "lives"
	TableStartupLogs Table = "startup_logs"
	TableIdempotency Table = "idempotency"
	TableEvents      Table = "events"
)

// Tables lists every table of rows in a fixed order.
var Tables = append([]Table{
	TableVMs, TableHosts, TableTasks, TableSnapshots,
	TableDeadLetters, TableLives, TableStartupLogs, TableIdempotency,
}, Collections...)

// Key is a row's primary key: its id, or kind and entity of a dead letter, or
// owner and key of an idempotency record.
type Key [2]string

// Write is the last thing a batch does to a row. Row is a pointer to the
// fleet type of the table, or *Idempotency, or *Document, nil for a deletion.
// Journals do not change it.
type Write struct {
	Table Table
	Key   Key
	Row   any
}

// Batch is what one commit makes durable.
type Batch struct {
	ID       string // unique for ever
	Revision uint64 // of the newest Update in it
	Seq      uint64 // of the newest event so far
	At       time.Time
	Writes   []Write // at most one per row
	Events   []fleet.Event
}

// Loaded is what a journal held when a term began.
type Loaded struct {
	FleetID     string // ULID made when the journal was first used
	Revision    uint64
	Seq         uint64
	At          time.Time // of the newest commit
	VMs         []*fleet.VM
	Hosts       []*fleet.Host
	Tasks       []*fleet.Task
	Snapshots   []*fleet.Snapshot
	DeadLetters []*fleet.DeadLetter
	Lives       []*fleet.Life
	Idempotency []*Idempotency
	Documents   map[Table][]*Document
	Events      []fleet.Event // the newest, in rising order
}

// Idempotency is what is kept of a mutating call that carried an
// Idempotency-Key: enough to answer it again, never its output.
type Idempotency struct {
	Owner      string    `json:"owner"`
	Key        string    `json:"key"`
	BodyHash   string    `json:"body_hash"`
	Method     string    `json:"method"`
	Path       string    `json:"path"`
	Status     int       `json:"status,omitempty"`
	ResourceID string    `json:"resource_id,omitempty"`
	ExitCode   *int      `json:"exit_code,omitempty"` // of an exec
	CreatedAt  time.Time `json:"created_at"`
	Done       bool      `json:"done,omitempty"`
}

// IdempotencyRetention is how long a key answers with its first result.
const IdempotencyRetention = 24 * time.Hour

// EventQuery selects events. Empty fields do not restrict.
type EventQuery struct {
	After      uint64 // only events with a greater Seq
	UpTo       uint64 // only events with at most this Seq; 0: no bound
	VMID       string
	HostID     string // only events about that host itself
	UID        string
	StatesOnly bool // only events that change a VM's state
	Limit      int  // 0: MaxEventPage
}

// MaxEventPage bounds the events of one answer.
const MaxEventPage = 1000

// Normal returns q with its limit in bounds, for journals.
func (q EventQuery) Normal() EventQuery {
	if q.Limit <= 0 || q.Limit > MaxEventPage {
		q.Limit = MaxEventPage
	}
	return q
}

// Match reports whether e belongs into an answer to q.
func (q EventQuery) Match(e *fleet.Event) bool {
	return e.Seq > q.After && (q.UpTo == 0 || e.Seq <= q.UpTo) &&
		(q.VMID == "" || e.EntityType == EntityVM && e.EntityID == q.VMID) &&
		(q.HostID == "" || e.EntityType == fleet.EntityHost && e.EntityID == q.HostID) &&
		(q.UID == "" || e.UID == q.UID) &&
		(!q.StatesOnly || e.State != "")
}

// EntityVM is the entity type of events about a VM.
const EntityVM = "vm"

// EventCut says which events may go: those older than Before, and the oldest
// beyond the newest Keep. Zero values keep all.
type EventCut struct {
	Before time.Time
	Keep   uint64
	Limit  int
}

// Takes reports whether e may go while the newest event is head.
func (c EventCut) Takes(e *fleet.Event, head uint64) bool {
	return !c.Before.IsZero() && e.At.Before(c.Before) || c.Keep > 0 && e.Seq+c.Keep <= head
}
