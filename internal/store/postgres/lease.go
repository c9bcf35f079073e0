package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows"
	"github.com/fusevm/fuse/internal/uid"
)

// Acquire begins a term if the lease is free. It brings the schema up to date
// only then: under another holder's eyes nothing changes.
func (j *Journal) Acquire(ctx context.Context, c state.Candidate) (state.Grant, error) {
	d, err := j.connect()
	if err != nil {
		return state.Grant{}, err
	}
	grant, err := d.acquire(ctx, c)
	if err != nil {
		return state.Grant{}, d.explain(err)
	}
	return grant, nil
}

func (d *database) acquire(ctx context.Context, c state.Candidate) (state.Grant, error) {
	has, err := d.checkSchema(ctx)
	if err != nil {
		return state.Grant{}, err
	}
	// A plain look first: a row lock of everybody who waits would be in the
	// holder's way.
	switch info, held, err := d.leader(ctx); {
	case err != nil:
		return state.Grant{}, err
	case held:
		return state.Grant{}, state.HeldBy("state database "+d.name, info.Candidate)
	}
	if known, err := newest(); err != nil {
		return state.Grant{}, err
	} else if has < known {
		if err := d.migrate(ctx); err != nil {
			return state.Grant{}, err
		}
	}
	b, err := d.begin(ctx, c)
	if blocked(err) {
		if err = d.unblock(ctx); err == nil {
			b, err = d.begin(ctx, c)
		}
	}
	if err != nil {
		return state.Grant{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.term, d.n, d.pending = b.grant.Term, b.n, ""
	d.tenure = lease.Keep(lease.Config{
		Timing: d.cfg.Lease, Asked: b.asked, Logger: d.cfg.Logger,
		Extend: func(ctx context.Context) error { return d.extend(ctx, b.grant.Term, d.cfg.Lease.Period) },
		GiveUp: func(ctx context.Context) error { return d.extend(ctx, b.grant.Term, 0) },
	})
	b.grant.Tenure = d.tenure
	return b.grant, nil
}

func (d *database) begin(ctx context.Context, c state.Candidate) (*beginning, error) {
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return nil, fmt.Errorf("make claim token: %w", err)
	}
	b := &beginning{d: d, c: c}
	b.grant.ClaimToken = hex.EncodeToString(token)
	return b, pgx.BeginFunc(ctx, d.write, func(tx pgx.Tx) error { return b.run(ctx, tx) })
}

// beginning is the transaction that begins a term.
type beginning struct {
	d     *database
	c     state.Candidate
	grant state.Grant
	asked lease.Instant
	n     int64
}

func (b *beginning) run(ctx context.Context, tx pgx.Tx) error {
	for _, s := range []string{
		fmt.Sprintf("SET LOCAL lock_timeout = %d", blockedFor.Milliseconds()),
		"INSERT INTO meta (program, fleet_id, term, claim_token, holder, revision, seq, n) VALUES ('fuse', '" + uid.New() + "', 0, '', '', 0, 0, 0) ON CONFLICT DO NOTHING",
		"INSERT INTO lease (term, candidate, expires_at) VALUES (0, '{}', '-infinity') ON CONFLICT DO NOTHING",
	} {
		if _, err := tx.Exec(ctx, s); err != nil {
			return err
		}
	}
	var held bool
	var holder []byte
	if err := tx.QueryRow(ctx, "SELECT expires_at > clock_timestamp(), candidate::text FROM lease FOR UPDATE").Scan(&held, &holder); err != nil {
		return err
	}
	if held {
		var other state.Candidate
		err := json.Unmarshal(holder, &other)
		return errors.Join(state.HeldBy("state database "+b.d.name, other), err)
	}
	// From here on a commit of the term before cannot be under way: it holds
	// the row of meta, and the next one is refused.
	err := tx.QueryRow(ctx, `UPDATE meta SET term = greatest(term + 1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint),
		claim_token = $1, holder = $2 RETURNING term, n, revision`, b.grant.ClaimToken, clean(b.c.Name)).Scan(&b.grant.Term, &b.n, &b.grant.Revision)
	if err != nil {
		return err
	}
	if err := b.record(ctx, tx); err != nil {
		return err
	}
	if b.grant.Fingerprint, err = fingerprint(ctx, tx); err != nil {
		return err
	}
	candidate, err := json.Marshal(b.c) //nolint:gosec // its secret is for who may read the store
	if err != nil {
		return err
	}
	b.asked = lease.Now()
	_, err = tx.Exec(ctx, "UPDATE lease SET term = $1, candidate = $2::text::json, expires_at = clock_timestamp() + $3",
		b.grant.Term, string(candidate), b.d.cfg.Lease.Period)
	return err
}

// record keeps the new term and reads those before it.
func (b *beginning) record(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO terms (term, claim_token, holder, begun_at, revision) VALUES ($1, $2, $3, clock_timestamp(), $4)",
		b.grant.Term, b.grant.ClaimToken, clean(b.c.Name), clamp(b.grant.Revision))
	if err != nil {
		return err
	}
	if _, err = tx.Exec(ctx, rows.PruneTerms); err != nil {
		return err
	}
	found, err := tx.Query(ctx, "SELECT term, claim_token, revision FROM terms WHERE term < $1 ORDER BY term DESC", b.grant.Term)
	if err != nil {
		return err
	}
	b.grant.Earlier, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (c state.Claim, err error) {
		return c, row.Scan(&c.Term, &c.Token, &c.Revision)
	})
	return err
}

// fingerprint tells this very database apart from a restored one, elsewhere or
// beside it: the cluster's identity and the database's number in it.
func fingerprint(ctx context.Context, tx pgx.Tx) (string, error) {
	var system, oid int64
	err := tx.QueryRow(ctx, `SELECT (SELECT system_identifier FROM pg_control_system()), oid::bigint
		FROM pg_database WHERE datname = current_database()`).Scan(&system, &oid)
	if err != nil {
		return "", fmt.Errorf("identity of the database: %w", err)
	}
	return fmt.Sprintf("postgres/%d/%d", system, oid), nil
}

// blockedFor is how long the beginning of a term waits for a commit of the
// holder before, whose process may be frozen in the middle of one.
const blockedFor = time.Second

func blocked(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == codeLockTimeout
}

// unblock ends the transactions that hold rows of meta. A server that is
// frozen, or cut off from the database, may have left one open; its lease has
// expired, so it must not finish that.
func (d *database) unblock(ctx context.Context) error {
	d.cfg.Logger.Warn("ending the transaction that the owner before left open")
	_, err := d.write.Exec(ctx, `SELECT pg_terminate_backend(l.pid, 1000) FROM pg_locks l
		WHERE l.relation = 'meta'::regclass AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.mode IN ('RowExclusiveLock', 'RowShareLock') AND l.granted AND l.pid <> pg_backend_pid()`)
	return err
}

// extend makes the lease last so long from now on the database's clock, if it
// is still of this term.
func (d *database) extend(ctx context.Context, term int64, by time.Duration) error {
	tag, err := d.write.Exec(ctx, "UPDATE lease SET expires_at = clock_timestamp() + $2 WHERE term = $1", term, by)
	if err != nil {
		return d.explain(err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("another server has begun a term in state database %s: %w", d.name, fleet.ErrStaleTerm)
	}
	return nil
}

// Leader reads who holds the lease. A database without our tables has none.
func (j *Journal) Leader(ctx context.Context) (state.LeaseInfo, bool, error) {
	d, err := j.connect()
	if err != nil {
		return state.LeaseInfo{}, false, err
	}
	info, held, err := d.leader(ctx)
	if err != nil {
		return state.LeaseInfo{}, false, d.explain(err)
	}
	return info, held, nil
}

func (d *database) leader(ctx context.Context) (info state.LeaseInfo, held bool, err error) {
	var candidate []byte
	var left float64 // seconds
	err = d.write.QueryRow(ctx, `SELECT term, candidate::text, expires_at > clock_timestamp(),
		greatest(extract(epoch FROM expires_at - clock_timestamp()), 0)::float8 FROM lease WHERE expires_at > '-infinity'`).
		Scan(&info.Term, &candidate, &held, &left)
	var e *pgconn.PgError
	if errors.Is(err, pgx.ErrNoRows) || errors.As(err, &e) && e.Code == codeNoTable {
		return state.LeaseInfo{}, false, nil
	}
	if err == nil && held {
		err = json.Unmarshal(candidate, &info.Candidate)
	}
	if err != nil || !held {
		return state.LeaseInfo{}, false, err
	}
	info.Expires = time.Now().Add(time.Duration(left * float64(time.Second)))
	return info, true, nil
}
