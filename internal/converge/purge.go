package converge

import (
	"context"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// purgeChunk bounds what one transaction forgets, so that no other waits long.
const purgeChunk = 500

// kept finds the oldest record of each kind that is purged, except events.
func kept(tx *state.ReadTx, now time.Time) reconcile.Kept {
	k := reconcile.Kept{KeepIdempotency: state.IdempotencyRetention}
	for life := range tx.Lives().Oldest() {
		k.OldestLife = life.EndedAt
		break
	}
	for rec := range tx.IdempotencyBefore(now) {
		k.OldestIdempotency = rec.CreatedAt
		break
	}
	return k
}

// eventAges is what the retention of events goes by.
type eventAges struct {
	oldest time.Time // zero while events are kept for ever
	first  time.Time // of the first event that their number lets stay; zero: all do
}

func (l *eyes) oldestEvent(ctx context.Context) (ages eventAges, err error) {
	if l.cfg.EventRetention == 0 && l.cfg.EventKeep == 0 {
		return ages, nil
	}
	oldest, err := l.cfg.Events.Events(ctx, state.EventQuery{Limit: 1})
	if err != nil || len(oldest) == 0 {
		return ages, err
	}
	ages.oldest = oldest[0].At
	_, head := l.cfg.Store.Head()
	if keep := l.cfg.EventKeep; keep > 0 && head >= oldest[0].Seq+keep {
		stays, err := l.cfg.Events.Events(ctx, state.EventQuery{After: head - keep, Limit: 1})
		if err != nil || len(stays) == 0 {
			return ages, err
		}
		ages.first = stays[0].At
	}
	return ages, nil
}

// keepEvents is how long events are kept now: as long as was asked for, or
// less when there are too many of them, but not less than an ended life.
func (l *eyes) keepEvents(ages eventAges, now time.Time) time.Duration {
	keep := l.cfg.EventRetention
	if ages.first.IsZero() {
		return keep
	}
	if byCount := max(now.Sub(ages.first), fleet.LifeRetention); keep == 0 || byCount < keep {
		return byCount
	}
	return keep
}

// purge forgets records of one kind, chunk by chunk.
func (d *doer) purge(ctx context.Context, s reconcile.Step) (total int, err error) {
	for {
		n := 0
		switch s.Kind {
		case reconcile.KindPurgeEvents:
			// The store goes in small steps by itself.
			return d.cfg.Events.PurgeEvents(ctx, s.Before, 0)
		case reconcile.KindPurgeLives:
			n, err = d.forget(ctx, func(tx *state.Tx) (int, error) { return forgetLives(tx, s.Before) })
		case reconcile.KindPurgeDeadLetters:
			n, err = d.forget(ctx, func(tx *state.Tx) (int, error) { return forgetDeadLetters(tx, s.Before) })
		case reconcile.KindPurgeIdempotency:
			n, err = d.forget(ctx, func(tx *state.Tx) (int, error) { return forgetAnswers(tx, s.Before) })
		}
		if total += n; err != nil || n < purgeChunk {
			return total, err
		}
	}
}

func (d *doer) forget(ctx context.Context, some func(*state.Tx) (int, error)) (n int, err error) {
	_, err = d.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		n, err = some(tx)
		return err
	})
	return n, err
}

// forgetLives drops ended lives with what belongs to them: the output of the
// startup script, and the task if no later life has it.
func forgetLives(tx *state.Tx, before time.Time) (int, error) {
	var old []*fleet.Life
	for life := range tx.Lives().Oldest() {
		if !life.EndedAt.Before(before) || len(old) == purgeChunk {
			break
		}
		old = append(old, life)
	}
	for _, life := range old {
		if err := tx.DeleteLife(life.UID); err != nil {
			return 0, err
		}
		if err := tx.DeleteStartupLog(life.UID); err != nil {
			return 0, err
		}
		if task, ok := tx.Tasks().Get(life.TaskID); ok && task.UID == life.UID && task.RunStatus.Done() {
			if err := tx.DeleteTask(task.TaskID); err != nil {
				return 0, err
			}
		}
	}
	return len(old), nil
}

func forgetAnswers(tx *state.Tx, before time.Time) (int, error) {
	var old []*state.Idempotency
	for rec := range tx.IdempotencyBefore(before) {
		if len(old) == purgeChunk {
			break
		}
		old = append(old, rec)
	}
	for _, rec := range old {
		if err := tx.DeleteIdempotency(rec.Owner, rec.Key); err != nil {
			return 0, err
		}
	}
	return len(old), nil
}

// keepDeadLetters is when the dead letter that is longest unseen was last seen,
// and how long they are kept now: as long as was asked for, or less when there
// are too many of them.
func (c *Config) keepDeadLetters(tx *state.ReadTx, now time.Time) (oldest time.Time, keep time.Duration) {
	if c.DeadLetterRetention == 0 && c.DeadLetterKeep == 0 {
		return oldest, 0
	}
	var seen []time.Time
	for d := range tx.DeadLetters().All() {
		seen = append(seen, d.LastSeenAt)
	}
	if len(seen) == 0 {
		return oldest, 0
	}
	slices.SortFunc(seen, time.Time.Compare)
	keep = c.DeadLetterRetention
	if over := len(seen) - c.DeadLetterKeep; c.DeadLetterKeep > 0 && over > 0 {
		// Those of the same moment stay together.
		if fewer := max(now.Sub(seen[over]), 1); keep == 0 || fewer < keep {
			keep = fewer
		}
	}
	return seen[0], keep
}

func forgetDeadLetters(tx *state.Tx, before time.Time) (int, error) {
	var old []*fleet.DeadLetter
	for d := range tx.DeadLetters().All() {
		if len(old) == purgeChunk {
			break
		}
		if d.LastSeenAt.Before(before) {
			old = append(old, d)
		}
	}
	for _, d := range old {
		if err := tx.DeleteDeadLetter(d.Kind, d.EntityID); err != nil {
			return 0, err
		}
	}
	return len(old), nil
}
