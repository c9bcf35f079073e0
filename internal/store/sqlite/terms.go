package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows"
)

// recordTerm keeps a term that begins and returns those before it, newest
// first. It belongs into the transaction that begins the term.
func recordTerm(ctx context.Context, conn *sql.Conn, g state.Grant, holder string) (earlier []state.Claim, err error) {
	_, err = conn.ExecContext(ctx, "INSERT INTO terms (term, claim_token, holder, begun_at, revision) VALUES (?, ?, ?, ?, ?)",
		g.Term, g.ClaimToken, holder, stamp(time.Now()), g.Revision)
	if err != nil {
		return nil, err
	}
	if _, err = conn.ExecContext(ctx, rows.PruneTerms); err != nil {
		return nil, err
	}
	found, err := conn.QueryContext(ctx, "SELECT term, claim_token, revision FROM terms WHERE term < ? ORDER BY term DESC", g.Term)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var c state.Claim
		if err := found.Scan(&c.Term, &c.Token, &c.Revision); err != nil {
			return nil, err
		}
		earlier = append(earlier, c)
	}
	return earlier, found.Err()
}
