package work

import (
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// late reports whether a marquee ended an operation because its time was over: what
// waits too long for something else within its time ends with the same status.
func late(op records.Operation, limit time.Duration) bool {
	return !op.Lost && op.Status == decide.ExitLate && op.EndedAt.Sub(op.StartedAt) >= limit
}

// How operations end, as figures tell it.
const (
	EndedOK      = "ok"
	EndedFailed  = "failed"
	EndedLate    = "timed_out"
	EndedLost    = "lost"
	EndedRefused = "refused"
)

// result names an end.
func result(lost bool, status int, late bool) string {
	switch {
	case lost:
		return EndedLost
	case late:
		return EndedLate
	case status != 0:
		return EndedFailed
	}
	return EndedOK
}

// LogOverrun logs an operation that was ended because its time was over; more says of
// what.
func LogOverrun(log *slog.Logger, marquee model.MarqueeID, op string, kind model.OpKind, limit time.Duration, more ...any) {
	log.Warn("an operation passed its time limit and was ended", append([]any{
		slog.String("marquee", string(marquee)), slog.String("operation", op), slog.String("kind", string(kind)), slog.Duration("limit", limit),
	}, more...)...)
}

// overran raises the alarm about an operation that was ended because its time was
// over: its marquee is slow, or something there hangs.
func overran(log *slog.Logger, tx *state.Tx, p *records.Playground, op records.Operation, limit time.Duration) {
	LogOverrun(log, op.Marquee, op.ID, op.Kind, limit,
		slog.String("playground", string(p.ID)), slog.Duration("after", op.EndedAt.Sub(op.StartedAt)), slog.String("error", op.Text))
	records.Tell(tx, p, records.Note{
		Type: fleet.EventPlaygroundOperationTimedOut, Reason: records.ByLoop(fleet.RuleSettled, ""), Error: op.Text, Payload: told(op),
	})
}
