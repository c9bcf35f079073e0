package service

import (
	"context"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/addresses"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// view is a record as people see it.
func view(p *records.Playground) Playground {
	v := Playground{
		ID: p.ID, Name: p.Name, Owner: p.Owner, Marquee: p.Marquee, Project: p.Project,
		Intent: p.Intent, State: p.State, StateSince: p.StateSince, Step: p.Step, Reason: p.Reason, Attention: p.Attention, Failure: p.Failure,
		KeepVolumes: p.KeepVolumes, Services: p.Services, Volumes: p.Volumes, Desired: p.Desired, Applied: p.Applied, AppliedAt: p.AppliedAt,
		Source: p.Source, Pull: p.Pull, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, Revision: p.Revision, Expiry: p.Expiry, Trick: p.Trick,
	}
	if p.State != model.StateInProgress {
		v.Step = string(p.Op.Kind)
	}
	if r := p.LastRollout; r != nil {
		v.LastRollout = &Rollout{At: r.At, Digest: r.Digest, Result: string(r.Result), Failure: r.Failure}
	}
	return v
}

// located is a record as people see it, with the addresses that the last look
// at its marquee shows.
func located(s *Service, tx state.Reader, p *records.Playground) Playground {
	v := view(p)
	if m, ok := records.Marquees.Get(tx, string(p.Marquee)); ok {
		sight, _ := s.Loop.Sight(m.ID)
		v.Addresses = addresses.Of(sight.Look.Project(p.Project), m.Address, p.Routes)
	}
	return v
}

// Playgrounds lists those that the caller sees.
func (s *Service) Playgrounds(ctx context.Context, o ListOptions) (out Page[Playground], err error) {
	sees := auth.Visible(ctx)
	err = s.Store.View(func(tx *state.ReadTx) error {
		var on model.MarqueeID
		if o.Marquee != "" {
			m, err := findMarquee(tx, o.Marquee)
			if err != nil {
				return err
			}
			on = m.ID
		}
		out = page(records.Playgrounds.After(tx, o.After), o.Limit, func(p *records.Playground) (Playground, bool) {
			return located(s, tx, p), sees(p.Owner) && (on == "" || p.Marquee == on) && (o.State == "" || p.State == o.State)
		})
		return nil
	})
	return out, err
}

// Playground returns one by id or name.
func (s *Service) Playground(ctx context.Context, id string) (out Playground, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		p, err := findPlayground(ctx, tx, id)
		if err == nil {
			out = view(p)
			out.Progress = s.Loop.Worker.Progress(p.ID)
		}
		return err
	})
	return out, err
}

// Owner is the owner of the playground that the caller means by an id or name,
// for the edge's rules; false if it sees none.
func (s *Service) Owner(ctx context.Context, id string) (owner string, ok bool) {
	p, err := s.Playground(ctx, id)
	return p.Owner, err == nil
}

// Act asks something of a playground. An action that its state does not allow
// is a conflict of reason state.
func (s *Service) Act(ctx context.Context, id string, req ActionRequest) (Playground, error) {
	p, err := s.changePlayground(ctx, id, func(tx *state.Tx, p *records.Playground) error {
		if req.KeepVolumes != nil && req.Action != model.ActionDestroy {
			return fleet.Invalid("keep_volumes", "only with destroy", "leave it out", "says nothing to %s", req.Action)
		}
		if err := request(tx, who(ctx), p, req.Action); err != nil {
			return err
		}
		if req.KeepVolumes != nil {
			p.KeepVolumes = *req.KeepVolumes
		}
		return nil
	})
	if err != nil {
		return Playground{}, err
	}
	if p.State == model.StatePending {
		s.Loop.Begin(p.Marquee, p.ID)
	} else {
		s.Loop.Kick(p.Marquee)
	}
	return view(&p), nil
}

// Forget drops a playground's record and touches nothing on its host.
func (s *Service) Forget(ctx context.Context, id string) error {
	var gone records.Playground
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		p, err := findPlayground(ctx, tx, id)
		if err != nil {
			return err
		}
		gone = *p
		records.Tell(tx, p, records.Note{Type: fleet.EventPlaygroundForgotten, Reason: who(ctx).reason("")})
		return records.DeletePlayground(tx, p.ID)
	})
	if err == nil {
		s.Loop.Forget(gone.ID)
		s.Loop.Kick(gone.Marquee)
	}
	return err
}
