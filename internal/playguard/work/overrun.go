package work

import (
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// late reports whether a marquee ended an operation because its time was over: what
// waits too long for something else within its time ends with the same status.
func late(op records.Operation, limit time.Duration) bool {
	return !op.Lost && op.Status == decide.ExitLate && op.EndedAt.Sub(op.StartedAt) >= limit
}

// Result names an end for figures.
func Result(lost bool, status int, late bool) string {
	switch {
	case lost:
		return "lost"
	case late:
		return "timed_out"
	case status != 0:
		return "failed"
	}
	return "ok"
}

// overran raises the alarm about an operation that was ended because its time was
// over: its marquee is slow, or something there hangs.
func overran(log *slog.Logger, tx *state.Tx, p *records.Playground, op records.Operation, limit time.Duration) {
	log.Warn("an operation passed its time limit and was ended", slog.String("playground", string(p.ID)), slog.String("marquee", string(op.Marquee)),
		slog.String("operation", op.ID), slog.String("kind", string(op.Kind)), slog.Duration("limit", limit),
		slog.Duration("after", op.EndedAt.Sub(op.StartedAt)), slog.String("error", op.Text))
	records.Tell(tx, p, records.Note{
		Type: fleet.EventPlaygroundOperationTimedOut, Reason: records.ByLoop(fleet.RuleSettled, ""), Error: op.Text, Payload: told(op),
	})
}
