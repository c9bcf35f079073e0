package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/fusevm/fuse/internal/state"
)

// recordTerm keeps a term that begins and returns those before it, newest
// first. It belongs into the transaction that begins the term.
func recordTerm(ctx context.Context, conn *sql.Conn, g state.Grant, holder string) (earlier []state.Claim, err error) {
	_, err = conn.ExecContext(ctx, "INSERT INTO terms (term, claim_token, holder, begun_at, revision) VALUES (?, ?, ?, ?, ?)",
		g.Term, g.ClaimToken, holder, stamp(time.Now()), g.Revision)
	if err != nil {
		return nil, err
	}
	_, err = conn.ExecContext(ctx, "DELETE FROM terms WHERE term NOT IN (SELECT term FROM terms ORDER BY term DESC LIMIT ?)", state.KeptTerms)
	if err != nil {
		return nil, err
	}
	rows, err := conn.QueryContext(ctx, "SELECT term, claim_token, revision FROM terms WHERE term < ? ORDER BY term DESC", g.Term)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var c state.Claim
		if err := rows.Scan(&c.Term, &c.Token, &c.Revision); err != nil {
			return nil, err
		}
		earlier = append(earlier, c)
	}
	return earlier, rows.Err()
}
