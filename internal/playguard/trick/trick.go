package trick

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
)

// Config wires a Service. All of it is needed.
type Config struct {
	Playguard *service.Service
	Store     records.Store
	Hosts     *reach.Hosts
	Sealer    records.Sealer
	Logger    *slog.Logger
	// Acting tells for which owners somebody can still act, with that role or more.
	Acting func(tx state.Reader) func(owner string, least fleet.Role) bool
}

// Service is tricks as people see them. It is safe for concurrent use.
type Service struct {
	Config
	wake chan struct{} // the scheduler: schedules have changed
}

// New makes a Service.
func New(c Config) (*Service, error) {
	if c.Playguard == nil || c.Store == nil || c.Hosts == nil || c.Sealer == nil || c.Logger == nil || c.Acting == nil {
		return nil, errors.New("trick service config: playguard, store, hosts, sealer, logger and acting are needed")
	}
	return &Service{Config: c, wake: make(chan struct{}, 1)}, nil
}

// Defaults of tricks.
const (
	DefaultBackoff  = 10 * time.Second
	DefaultDeadline = time.Hour
	DefaultKeep     = 7 * 24 * time.Hour
)

// Limits are how a trick is tried and kept. What is zero takes its default; a
// negative one is none.
type Limits struct {
	Retries  int           `json:"retries,omitempty"`
	Backoff  time.Duration `json:"backoff,omitempty"`
	Deadline time.Duration `json:"deadline,omitempty"`
	Keep     time.Duration `json:"keep,omitempty"`
}

// Request asks for a trick: Name, Marquee, Compose, Files, Variables, Policy and
// KeepVolumes of Up count.
type Request struct {
	Up     service.UpRequest
	Limits Limits
}

// trick checks limits, and makes the trick that they describe.
func (l Limits) trick() (*model.Trick, error) {
	t := &model.Trick{
		Retries: l.Retries, Backoff: cmp.Or(l.Backoff, DefaultBackoff), Deadline: max(cmp.Or(l.Deadline, DefaultDeadline), 0),
		Keep: max(cmp.Or(l.Keep, DefaultKeep), 0),
	}
	for _, c := range []struct {
		field     string
		bad       bool
		most, had any
	}{
		{"retries", t.Retries < 0 || t.Retries > model.MaxRetries, fmt.Sprintf("0 to %d", model.MaxRetries), t.Retries},
		{"backoff", t.Backoff < time.Second || t.Backoff > model.MaxBackoff, "1s to " + model.MaxBackoff.String(), t.Backoff},
		{"deadline", t.Deadline > 0 && t.Deadline < time.Second || t.Deadline > model.MaxDeadline, "1s to " + model.MaxDeadline.String(), t.Deadline},
		{"keep", t.Keep > 0 && t.Keep < time.Minute || t.Keep > model.MaxKeep, "1m to " + model.MaxKeep.String(), t.Keep},
	} {
		if c.bad {
			return nil, fleet.Invalid(c.field, fmt.Sprint(c.most), "give another", "is %v", c.had)
		}
	}
	return t, nil
}

// Run begins a trick. A name that is there is a conflict: a trick is begun
// once.
func (s *Service) Run(ctx context.Context, req Request) (service.Playground, error) {
	t, err := req.Limits.trick()
	if err != nil {
		return service.Playground{}, err
	}
	return s.run(ctx, req.Up, t)
}

func (s *Service) run(ctx context.Context, up service.UpRequest, t *model.Trick) (service.Playground, error) {
	up.Trick, up.Expires, up.Plan = t, "", ""
	return s.Playguard.Up(ctx, up)
}

// Get returns one by id or name.
func (s *Service) Get(ctx context.Context, id string) (service.Playground, error) {
	p, err := s.Playguard.Playground(ctx, id)
	if err == nil && p.Trick == nil {
		err = noTrick(id)
	}
	return p, err
}

func noTrick(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "playground %.80q is no trick", id).With(fleet.DetailScope, "trick")
}

// ListOptions select tricks.
type ListOptions struct {
	Schedule string // id or name
	Active   bool   // that still run
	After    string
	Limit    int
}

// List lists tricks that the caller sees, by id, which is by age.
func (s *Service) List(ctx context.Context, o ListOptions) (out service.Page[service.Playground], err error) {
	sees := auth.Visible(ctx)
	limit := min(cmp.Or(max(o.Limit, 0), service.DefaultPage), service.MaxPage)
	err = s.Store.View(func(tx *state.ReadTx) error {
		schedule := ""
		if o.Schedule != "" {
			sch, err := find(ctx, tx, o.Schedule)
			if err != nil {
				return err
			}
			schedule = sch.ID
		}
		for _, p := range records.Playgrounds.After(tx, o.After) {
			if p.Trick == nil || !sees(p.Owner) || schedule != "" && p.Trick.Schedule != schedule || o.Active && Over(p.Playground) {
				continue
			}
			if len(out.Items) == limit {
				out.Next = string(out.Items[limit-1].ID)
				return nil
			}
			out.Items = append(out.Items, service.View(p))
		}
		return nil
	})
	return out, err
}

// Over reports whether nothing more is to come of a trick.
func Over(p model.Playground) bool {
	return p.Trick == nil || p.State == model.StateCompleted || p.State == model.StateDestroying
}

// Cancel ends a trick. What runs is stopped; its code is 130.
func (s *Service) Cancel(ctx context.Context, id string) (service.Playground, error) {
	p, err := service.Amend(ctx, s.Playguard, id, func(tx *state.Tx, p *records.Playground) error {
		switch {
		case p.Trick == nil:
			return noTrick(id)
		case p.Trick.Ending != "" || p.State == model.StateCompleted || p.State == model.StateDestroying:
			return nil
		}
		cancel(ctx, tx, p)
		return nil
	})
	if err != nil {
		return service.Playground{}, err
	}
	s.Playguard.Loop.Kick(p.Marquee)
	return service.View(&p), nil
}

func cancel(ctx context.Context, tx *state.Tx, p *records.Playground) {
	t := *p.Trick
	t.Ending = model.TrickCancelled
	p.Trick = &t
	_, by := service.Caller(ctx)
	records.Tell(tx, p, records.Note{Type: fleet.EventTrickCancelled, Reason: by})
}

// Remove takes a trick away: its containers if it runs, and its record.
func (s *Service) Remove(ctx context.Context, id string) (service.Playground, error) {
	p, err := s.Get(ctx, id)
	if err != nil || p.State == model.StateDestroying {
		return p, err
	}
	return s.Playguard.Act(ctx, string(p.ID), service.ActionRequest{Action: model.ActionDestroy})
}

// waitStep is how often Wait asks.
const waitStep = 200 * time.Millisecond

// Wait returns once nothing more is to come of a trick, or with ctx.
func (s *Service) Wait(ctx context.Context, id string) (service.Playground, error) {
	t := time.NewTicker(waitStep)
	defer t.Stop()
	for {
		p, err := s.Get(ctx, id)
		if err != nil || p.State == model.StateCompleted || p.State == model.StateDestroying {
			return p, err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}

// LogsRequest selects what of a trick's output is wanted.
type LogsRequest struct {
	Attempt int // zero: the present or last one
	Follow  bool
	Tail    int
}

// Logs writes what an attempt wrote: that of one that runs comes from its
// marquee, that of one that has ended is kept here.
func (s *Service) Logs(ctx context.Context, id string, req LogsRequest, w io.Writer) error {
	p, err := s.Get(ctx, id)
	if err != nil {
		return err
	}
	t := p.Trick
	n := cmp.Or(req.Attempt, t.Attempt)
	if n < 1 || n > t.Attempt {
		return fleet.Errorf(fleet.CodeNotFound, "there is no attempt %d; the last is %d", n, t.Attempt).With(fleet.DetailScope, "attempt")
	}
	if n > len(t.Attempts) || t.Attempts[n-1].Logs == model.LogsOwed && n == t.Attempt {
		return s.Playguard.Logs(ctx, string(p.ID), service.LogsRequest{Services: t.Watch, Follow: req.Follow, Tail: req.Tail}, w)
	}
	var l records.Log
	if err := s.Store.View(func(tx *state.ReadTx) (err error) {
		l, err = records.OpenLog(tx, s.Sealer, p.ID, n)
		return err
	}); err != nil {
		return err
	}
	_, err = w.Write(tail(l.Text, req.Tail))
	return err
}

// tail returns the last n lines; all of them if n is zero.
func tail(text []byte, n int) []byte {
	if n <= 0 {
		return text
	}
	at := len(text)
	if at > 0 && text[at-1] == '\n' {
		at--
	}
	for ; n > 0 && at >= 0; n-- {
		at = bytes.LastIndexByte(text[:max(at, 0)], '\n')
	}
	return text[at+1:]
}
