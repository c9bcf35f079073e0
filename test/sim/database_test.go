package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// leasePeriod is that of a server without settings.
const leasePeriod = lease.DefaultPeriod

// database is the store that all servers of a fleet share: the journal and the
// row of the lease. Its clock is the world's.
type database struct {
	rows        *memory.Journal
	fingerprint string

	mu     sync.Mutex
	claims []state.Claim // newest first
	rnd    *rand.Rand
	holder state.LeaseInfo
	down   bool
	// crash kills the process whose commit comes as the nth from now: before
	// it is written, or after.
	crashIn    int
	crashAfter bool
	next       fault   // of the next commit
	forgets    float64 // how often a commit is said to be written and is not
}

// fault is what happens to one commit.
type fault int

const (
	noFault fault = iota
	refused       // nothing is written, and the store says so
	lost          // it is written, the answer is lost
	dropped       // nothing is written, the answer is lost
	faults
	forgotten // nothing is written, and the store says that it was: never by chance
)

var (
	errDown = errors.New("the database is down")
	errLost = errors.New("the connection to the database broke")
)

// conn is how one process reaches the database. It is a state.Journal and a
// state.Lease.
type conn struct {
	*memory.Journal
	db *database
	p  *process
}

// copy is what a backup would be: the same rows and terms, as they are now, in
// another place unless fingerprint is the same.
func (db *database) copy(ctx context.Context, fingerprint string) (*database, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	loaded, err := db.rows.Reopen().Load(ctx, memory.MaxEvents)
	if err != nil {
		return nil, err
	}
	to := memory.New(memory.Options{FleetID: loaded.FleetID})
	b := state.Batch{ID: "copy", Revision: loaded.Revision, Seq: loaded.Seq, At: loaded.At, Events: loaded.Events}
	put := func(table state.Table, row any, key ...string) {
		b.Writes = append(b.Writes, state.Write{Table: table, Key: state.Key{key[0], strings.Join(key[1:], "")}, Row: row})
	}
	for _, r := range loaded.VMs {
		put(state.TableVMs, r, r.ID)
	}
	for _, r := range loaded.Hosts {
		put(state.TableHosts, r, r.ID)
	}
	for _, r := range loaded.Tasks {
		put(state.TableTasks, r, r.TaskID)
	}
	for _, r := range loaded.Lives {
		put(state.TableLives, r, r.UID)
	}
	for _, r := range loaded.Idempotency {
		put(state.TableIdempotency, r, r.Owner, r.Key)
	}
	grant, err := to.Acquire(ctx, state.Candidate{Name: "copy"})
	if err != nil {
		return nil, err
	}
	if err := to.Commit(ctx, grant.Term, b); err != nil {
		return nil, err
	}
	return &database{rows: to, fingerprint: fingerprint, rnd: rndFor(db.rnd.Uint64(), 1), claims: slices.Clone(db.claims)}, grant.Tenure.Release(ctx)
}

func (db *database) connect(p *process) *conn {
	return &conn{Journal: db.rows.Reopen(), db: db, p: p}
}

// reach takes a call to the database, and later its answer back.
func (c *conn) reach(ctx context.Context) error {
	if err := c.p.pass(); err != nil {
		return err
	}
	c.db.mu.Lock()
	wait := time.Duration(c.db.rnd.IntN(int(4 * time.Millisecond)))
	c.db.mu.Unlock()
	if err := pause(ctx, c.p.ctx, wait); err != nil {
		return err
	}
	c.db.mu.Lock()
	down := c.db.down
	c.db.mu.Unlock()
	if down || c.p.isCut(linkDatabase) {
		return errDown
	}
	return ctx.Err()
}

// Acquire takes the lease if nobody holds it.
func (c *conn) Acquire(ctx context.Context, cand state.Candidate) (state.Grant, error) {
	asked := lease.Now()
	if err := c.reach(ctx); err != nil {
		return state.Grant{}, err
	}
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	if h := c.db.holder; time.Now().Before(h.Expires) {
		return state.Grant{}, state.HeldBy("the store", h.Candidate)
	}
	grant, err := c.Journal.Acquire(ctx, cand)
	if err != nil {
		return grant, err
	}
	grant.Fingerprint, grant.Earlier = c.db.fingerprint, c.db.claims
	c.db.claims = append([]state.Claim{{Term: grant.Term, Token: grant.ClaimToken, Revision: grant.Revision}}, c.db.claims...)
	c.db.holder = state.LeaseInfo{Candidate: cand, Term: grant.Term, Expires: time.Now().Add(leasePeriod)}
	own := grant.Term
	grant.Tenure = lease.Keep(lease.Config{
		Asked: asked, Logger: c.p.log,
		Extend: func(ctx context.Context) error { return c.extend(ctx, own, leasePeriod) },
		GiveUp: func(ctx context.Context) error { return c.extend(ctx, own, 0) },
	})
	return grant, nil
}

func (c *conn) extend(ctx context.Context, term int64, period time.Duration) error {
	if err := c.reach(ctx); err != nil {
		return err
	}
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	if c.db.holder.Term != term {
		return fmt.Errorf("term %d has begun: %w", c.db.holder.Term, fleet.ErrStaleTerm)
	}
	c.db.holder.Expires = time.Now().Add(period)
	return nil
}

// Leader reads the row of the lease.
func (c *conn) Leader(ctx context.Context) (state.LeaseInfo, bool, error) {
	if err := c.reach(ctx); err != nil {
		return state.LeaseInfo{}, false, err
	}
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	return c.db.holder, time.Now().Before(c.db.holder.Expires), nil
}

// Load reads everything.
func (c *conn) Load(ctx context.Context, events int) (*state.Loaded, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	return c.Journal.Load(ctx, events)
}

// Commit writes a batch, unless something happens to it.
func (c *conn) Commit(ctx context.Context, term int64, b state.Batch) error {
	if err := c.reach(ctx); err != nil {
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, err)
	}
	f, kill, after := c.db.fate()
	if kill && !after {
		c.p.die("as it commits")
		return errLost
	}
	switch f {
	case refused:
		return fmt.Errorf("%w: disk full", state.ErrNotCommitted)
	case dropped:
		return errLost
	case forgotten:
		return nil
	}
	if err := c.p.ctx.Err(); err != nil {
		return errLost
	}
	err := c.Journal.Commit(ctx, term, b)
	if kill {
		c.p.die("just after a commit")
	}
	if passed := c.p.pass(); err == nil && (passed != nil || f == lost || c.p.isCut(linkDatabase)) {
		return errLost // it is durable, and nobody was told
	}
	return err
}

func (db *database) fate() (f fault, kill, after bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	f, db.next = db.next, noFault
	if db.forgets > 0 && db.rnd.Float64() < db.forgets {
		f = forgotten
	}
	if db.crashIn > 0 {
		if db.crashIn--; db.crashIn == 0 {
			kill, after = true, db.crashAfter
		}
	}
	return f, kill, after
}

// Committed looks a batch up.
func (c *conn) Committed(ctx context.Context, id string) (bool, error) {
	if err := c.reach(ctx); err != nil {
		return false, err
	}
	return c.Journal.Committed(ctx, id)
}

// pause waits, unless one of the two ends first.
func pause(ctx, life context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-life.Done():
		return errKilled
	}
}
