package trick

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of bringing in what an attempt wrote.
const (
	logLines = 5000 // of each watched service
	logTime  = 60 * time.Second
	logTries = 5
)

// Phase is the part of a pass that is about tricks: while one runs its marquee
// is looked at more often, and what an attempt wrote is brought in before its
// containers go.
func (s *Service) Phase() loop.Phase {
	return loop.Phase{Name: "tricks", Run: func(_ context.Context, t *loop.Turn) error {
		for _, p := range t.In.Playgrounds {
			if p.Trick != nil && p.State != model.StateCompleted {
				t.Soon(pace(t.In.Now.Sub(p.StateSince), t.In.Policy.TrickEvery))
			}
		}
		for _, row := range t.Free() {
			containers, seen := t.In.Look.Project(row.Project).Containers()
			if row.Trick == nil || row.Trick.Open() || row.Trick.Last().Logs != model.LogsOwed || !seen || len(containers) == 0 {
				continue
			}
			id, marquee := row.ID, t.In.Marquee.ID
			t.Start(id, func(ctx context.Context) (bool, error) { return true, s.collect(ctx, marquee, id) })
		}
		return nil
	}}
}

// pace is how soon a marquee is looked at again for a trick: as often as it may
// be at first, and less and less often for one that runs long.
func pace(age, least time.Duration) time.Duration {
	return min(max(age/20, least), 30*time.Second)
}

// collect brings in what the last attempt of a trick wrote.
func (s *Service) collect(ctx context.Context, marquee model.MarqueeID, id model.PlaygroundID) error {
	var m records.Marquee
	var p records.Playground
	if err := s.Store.View(func(tx *state.ReadTx) error {
		row, ok := records.Marquees.Get(tx, string(marquee))
		pg, there := records.Playgrounds.Get(tx, string(id))
		if !ok || !there || pg.Trick == nil || pg.Trick.Open() {
			return records.ErrMoved
		}
		m, p = *row, *pg
		return nil
	}); err != nil {
		return err
	}
	text, cut, failed := s.read(ctx, m, p)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(id))
		if !ok || row.Trick == nil || row.Trick.Last().N != p.Trick.Last().N || row.Trick.Last().Logs != model.LogsOwed {
			return records.ErrMoved
		}
		q := *row
		last := q.Trick.Last()
		if last.LogTries++; failed == nil {
			last.Logs = model.LogsKept
			if err := records.PutLog(tx, s.Sealer, id, records.Log{Attempt: last.N, At: tx.Now(), Cut: cut, Text: text}); err != nil {
				return err
			}
		} else if last.LogTries >= logTries {
			last.Logs = model.LogsLost
			records.Tell(tx, &q, records.Note{
				Type: fleet.EventTrickLogsLost, Reason: records.ByLoop(fleet.RuleSettled, ""), Error: failed.Error(), Payload: map[string]int{"attempt": last.N},
			})
		}
		t := *q.Trick
		t.Attempts = append(slices.Clone(t.Attempts[:len(t.Attempts)-1]), last)
		q.Trick = &t
		return records.PutPlayground(tx, q)
	})
	if err == nil && failed != nil {
		s.Logger.Info("what a trick wrote could not be read", slog.String("playground", string(id)), slog.Any("error", failed))
	}
	return err
}

// read reads from the marquee.
func (s *Service) read(ctx context.Context, m records.Marquee, p records.Playground) (text []byte, cut bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	host := s.Hosts.Host(m)
	r, err := host.Runner()
	if err != nil {
		return nil, false, err
	}
	conn, err := host.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	end := &ending{most: records.MaxLog}
	err = r.Logs(ctx, conn, runner.Logs{Playground: p.ID, Services: p.Trick.Watch, Tail: logLines}, end)
	return end.text(), end.cut, err
}

// ending keeps the end of what is written to it.
type ending struct {
	most int
	buf  []byte
	cut  bool
}

// Write implements io.Writer.
func (e *ending) Write(p []byte) (int, error) {
	e.buf = append(e.buf, p...)
	if len(e.buf) > 2*e.most {
		e.buf = append(e.buf[:0], e.buf[len(e.buf)-e.most:]...)
		e.cut = true
	}
	return len(p), nil
}

// text is the end, from the begin of a line.
func (e *ending) text() []byte {
	if len(e.buf) > e.most {
		e.buf, e.cut = e.buf[len(e.buf)-e.most:], true
	}
	if i := slices.Index(e.buf, '\n'); e.cut && i >= 0 {
		return e.buf[i+1:]
	}
	return e.buf
}
