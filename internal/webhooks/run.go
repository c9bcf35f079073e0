package webhooks

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Run sends what there is to send, until ctx ends or this process does not own
// the fleet any more; then it returns that error. Only the leader runs it.
func (s *Service) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer s.client.CloseIdleConnections()
	defer group.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // before the wait
	for {
		sub := s.cfg.Store.Watch(ctx)
		s.staff(ctx, cancel, &group)
		err := s.follow(ctx, cancel, sub, &group)
		sub.Close()
		switch cause := context.Cause(ctx); {
		case errors.Is(err, state.ErrLagged):
		case cause != nil && !errors.Is(cause, context.Canceled):
			return cause
		case ctx.Err() != nil, errors.Is(err, state.ErrSubscriptionClosed):
			return nil // whoever watches the store tells why it has ended
		default:
			return err
		}
	}
}

// follow wakes workers as things are committed.
func (s *Service) follow(ctx context.Context, stop context.CancelCauseFunc, sub *state.Subscription, group *sync.WaitGroup) error {
	for {
		set, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(set.Documents, func(d state.DocumentID) bool { return d.Table == hooks.Table() }) {
			s.staff(ctx, stop, group)
		}
		if len(set.Events) > 0 || len(set.Documents) > 0 {
			s.wake(len(set.Documents) > 0)
		}
	}
}

// wake wakes the workers, the deaf ones only for changed documents.
func (s *Service) wake(documents bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		if documents || !w.deaf.Load() {
			w.nudge()
		}
	}
}

// staff sees that each webhook has one worker and no other has any.
func (s *Service) staff(ctx context.Context, stop context.CancelCauseFunc, group *sync.WaitGroup) {
	ids := map[string]uint64{}
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for id, h := range hooks.All(tx) {
			ids[id] = h.Cursor
		}
		return nil
	})
	if err != nil {
		stop(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range s.workers {
		if _, ok := ids[id]; !ok {
			w.stop()
			delete(s.workers, id)
		}
	}
	for id, cursor := range ids {
		if s.workers[id] != nil {
			continue
		}
		wctx, cancel := context.WithCancel(ctx)
		w := &worker{s: s, id: id, pos: cursor, stop: cancel, wake: make(chan struct{}, 1)}
		s.workers[id] = w
		group.Go(func() {
			defer s.gone(id, w)
			if err := w.run(wctx); err != nil && wctx.Err() == nil {
				stop(err)
			}
		})
	}
}

func (s *Service) gone(id string, w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workers[id] == w {
		delete(s.workers, id)
	}
	w.stop()
}

// worker sends the messages of one webhook.
type worker struct {
	s    *Service
	id   string
	stop context.CancelFunc
	wake chan struct{}

	// pos is how far the log has been read; the row's cursor is behind it by
	// events that the webhook does not want. Owned by run.
	pos     uint64
	saved   time.Time
	unsaved bool
	// deaf is whether new events change nothing, because the receiver is down.
	deaf atomic.Bool
}

func (w *worker) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// storePause is the pause after a store that could not be used.
const storePause = time.Second

// run works until ctx ends or the fleet is not this process's any more.
func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil {
		next, err := w.round(ctx)
		switch {
		case err == nil:
		case errors.Is(err, fleet.ErrNotLeader):
			return err
		case errors.Is(err, errHookGone), ctx.Err() != nil:
			return nil //nolint:nilerr // it ends as it should
		default:
			w.s.log.Warn("webhook round failed", slog.String("webhook_id", w.id), slog.Any("error", err))
			next = time.Now().Add(storePause)
		}
		w.wait(ctx, next)
	}
	return nil
}

// wait returns at next, when something was committed, or with ctx. The zero
// time is whenever something is committed.
func (w *worker) wait(ctx context.Context, next time.Time) {
	if next.IsZero() {
		select {
		case <-w.wake:
		case <-ctx.Done():
		}
		return
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.wake:
	case <-ctx.Done():
	}
}
