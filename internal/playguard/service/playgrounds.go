package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/state"
)

// view is a record as people see it.
func view(p *records.Playground) Playground {
	v := Playground{
		ID: p.ID, Name: p.Name, Owner: p.Owner, Marquee: p.Marquee, Project: p.Project,
		Intent: p.Intent, State: p.State, StateSince: p.StateSince, Step: p.Step, Reason: p.Reason, Attention: p.Attention, Failure: p.Failure,
		KeepVolumes: p.KeepVolumes, Services: p.Services, Volumes: p.Volumes, Desired: p.Desired, Applied: p.Applied, AppliedAt: p.AppliedAt,
		CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, Revision: p.Revision,
	}
	if p.State != model.StateInProgress {
		v.Step = string(p.Op.Kind)
	}
	if r := p.LastRollout; r != nil {
		v.LastRollout = &Rollout{At: r.At, Digest: r.Digest, Result: string(r.Result), Failure: r.Failure}
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
			return view(p), sees(p.Owner) && (on == "" || p.Marquee == on) && (o.State == "" || p.State == o.State)
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

// Adopt takes an orphan back into the records, with the definition that lies on
// the host and as it is there: running if anything of it runs, else stopped.
func (s *Service) Adopt(ctx context.Context, req AdoptRequest) (Playground, error) {
	m, err := s.Marquee(ctx, req.Marquee)
	if err != nil {
		return Playground{}, err
	}
	if req.Name == "" {
		req.Name, _, _ = strings.Cut(req.Project.String(), "--")
	}
	if err := checkName("name", req.Name); err != nil {
		return Playground{}, err
	}
	sight, err := s.Loop.Check(ctx, m.ID)
	if err != nil {
		return Playground{}, err
	}
	if sight.Look.Verdict() != observe.Seen {
		return Playground{}, unseen(sight.Look)
	}
	found := sight.Look.Project(req.Project)
	dir, seen := found.Directory()
	id := dir.Marker.Playground
	switch {
	case !seen || !dir.Exists:
		return Playground{}, notFound("project", req.Project.String())
	case !dir.Marker.Owns(s.Installation, id, req.Project):
		return Playground{}, fleet.Errorf(fleet.CodeConflict, "project %s is not proven ours: its owner marker is missing or somebody else's", req.Project).
			With(fleet.DetailReason, "foreign")
	}
	version, err := fetch(ctx, s, m.ID, req.Project, dir.Compose)
	if err != nil {
		return Playground{}, err
	}
	key, entry, err := records.SealVersion(s.Sealer, id, version)
	if err != nil {
		return Playground{}, err
	}
	containers, _ := found.Containers()
	var out records.Playground
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		by := who(ctx)
		if _, ok := records.Playgrounds.Get(tx, string(id)); ok {
			return fleet.Errorf(fleet.CodeConflict, "playground %s has a record", id).With(fleet.DetailReason, "exists")
		}
		if err := free(tx, by.owner, req.Name); err != nil {
			return err
		}
		// Nothing tells any more whether its volumes were to outlive it.
		keep := len(version.Volumes) > 0
		now := tx.Now()
		out = records.Playground{Name: req.Name, Owner: by.owner, Actor: by.actor, CreatedAt: now, Volumes: version.Volumes, Playground: model.Playground{
			ID: id, Marquee: m.ID, Project: req.Project, Player: by.owner, Intent: model.IntentStopped, IntentSince: now, KeepVolumes: keep,
			State: model.StateStopped, StateSince: now, Reason: "adopted", Services: version.Services, Desired: version.Digest, Applied: version.Digest,
		}}
		for _, c := range containers {
			if c.State == "running" {
				out.Intent, out.State = model.IntentUp, model.StateRunning
			}
		}
		out.Revision, out.UpdatedAt = tx.Revision()+1, now
		records.Tell(tx, &out, records.Note{Type: fleet.EventPlaygroundAdopted, Reason: by.reason(""), Payload: map[string]string{"project": req.Project.String()}})
		if err := records.Entries.Put(tx, key, &entry); err != nil {
			return err
		}
		return records.PutPlayground(tx, out)
	})
	if err != nil {
		return Playground{}, err
	}
	s.Loop.Kick(m.ID)
	return view(&out), nil
}

// fetch reads the definition that lies on a host.
func fetch(ctx context.Context, s *Service, m model.MarqueeID, project model.Project, digest string) (v records.Version, err error) {
	host, layout, err := wayTo(s, m)
	if err != nil {
		return v, err
	}
	file, err := layout.Path(model.PlaceCompose, project.String())
	if err != nil {
		return v, err
	}
	line, err := sshx.Quote("head", "-c", fmt.Sprint(compose.MaxFile+1), file)
	if err != nil {
		return v, err
	}
	res, err := host.Run(ctx, sshx.Command{Line: line})
	if err != nil {
		return v, explainReach(err)
	}
	if res.Status != 0 || digestOf(res.Stdout) != digest {
		return v, fleet.Errorf(fleet.CodeConflict, "the compose file of %s could not be read, or changed meanwhile", project).
			With(fleet.DetailRemedy, "put it back, or bring the directory with up under another name")
	}
	return definition(res.Stdout, digest, project)
}

// definition reads services and volumes out of a file that Render made.
func definition(file []byte, digest string, project model.Project) (v records.Version, err error) {
	var doc struct {
		Services map[string]struct {
			Labels map[string]string `yaml:"labels"`
		} `yaml:"services"`
		Volumes map[string]struct {
			External any               `yaml:"external"`
			Labels   map[string]string `yaml:"labels"`
		} `yaml:"volumes"`
	}
	if err := yaml.Unmarshal(file, &doc); err != nil || len(doc.Services) == 0 {
		return v, fleet.Errorf(fleet.CodeConflict, "the compose file of %s is not one that Fuse wrote", project)
	}
	v = records.Version{Digest: digest, Compose: file}
	rolled := compose.Rolled(file)
	for _, name := range sortedKeys(doc.Services) {
		v.Services = append(v.Services, model.Service{Name: name, Digest: doc.Services[name].Labels[model.LabelDigest], Rolled: slices.Contains(rolled, name)})
	}
	for _, name := range sortedKeys(doc.Volumes) {
		if doc.Volumes[name].External == nil {
			v.Volumes = append(v.Volumes, project.String()+"_"+name)
		}
	}
	return v, nil
}
