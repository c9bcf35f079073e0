package rescan

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/state"
)

// Adopt takes one playground back, with the definition that lies on the host and
// as it is there: running if anything of it runs, else stopped. An empty name is
// that of its marker.
func (s *Scanner) Adopt(ctx context.Context, marquee string, project model.Project, name string) (model.PlaygroundID, error) {
	row, err := s.marquee(marquee)
	if err != nil {
		return "", err
	}
	look, err := s.look(ctx, row)
	if err != nil {
		return "", err
	}
	return s.adopt(ctx, row, look, project, name)
}

// adopt takes back what a look showed.
func (s *Scanner) adopt(ctx context.Context, row records.Marquee, look observe.Look, project model.Project, name string) (model.PlaygroundID, error) {
	found := look.Project(project)
	dir, seen := found.Directory()
	id := dir.Marker.Playground
	switch {
	case !seen || !dir.Exists:
		return "", fleet.Errorf(fleet.CodeNotFound, "there is no project %.80q", project).With(fleet.DetailScope, "project")
	case !owned(row, dir, project):
		return "", fleet.Errorf(fleet.CodeConflict, "project %s is not proven ours: its owner marker is missing or somebody else's", project).
			With(fleet.DetailReason, "foreign")
	}
	version, err := s.fetch(ctx, row, project, dir.Compose)
	if err != nil {
		return "", err
	}
	return id, s.take(ctx, row, found, version, name)
}

// take makes the record of what was found.
func (s *Scanner) take(ctx context.Context, row records.Marquee, found observe.ProjectLook, version records.Version, given string) error {
	dir, _ := found.Directory()
	id, project := dir.Marker.Playground, dir.Marker.Project
	key, entry, err := records.SealVersion(s.Sealer, id, version)
	if err != nil {
		return err
	}
	name := nameOf(given, believe(dir.Marker), project)
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		if _, ok := records.Playgrounds.Get(tx, string(id)); ok {
			return fleet.Errorf(fleet.CodeConflict, "playground %s has a record", id).With(fleet.DetailReason, "exists")
		}
		now, ok := records.Marquees.Get(tx, string(row.ID))
		if !ok || now.Identity != row.Identity {
			return records.ErrMoved
		}
		p := record(ctx, tx, row.ID, found, version)
		if err := free(tx, now, project, p.Owner); err != nil {
			return err
		}
		if p.Name = name; taken(tx, p.Owner, name) {
			if given != "" {
				return fleet.Errorf(fleet.CodeConflict, "there is a playground %s by now", name).
					With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "take another name")
			}
			p.Name = project.String() // it has its id in it
		}
		records.Tell(tx, &p, records.Note{
			Type: fleet.EventPlaygroundAdopted, Reason: requested(ctx), Payload: map[string]string{"project": project.String(), "marquee": row.Name},
		})
		if err := records.Entries.Put(tx, key, &entry); err != nil {
			return err
		}
		return records.PutPlayground(tx, p)
	})
	return err
}

func requested(ctx context.Context) fleet.Reason {
	actor := fleet.ActorMaster
	if p, ok := auth.From(ctx); ok {
		actor = p.Actor()
	}
	return fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}
}

// record is what can be told of a playground from its marker and what the look
// showed.
func record(ctx context.Context, tx *state.Tx, m model.MarqueeID, found observe.ProjectLook, v records.Version) records.Playground {
	dir, _ := found.Directory()
	containers, _ := found.Containers()
	owner := fleet.OwnerMaster
	if p, ok := auth.From(ctx); ok {
		owner = p.Name
	}
	marker := believe(dir.Marker)
	owner = cmp.Or(marker.Owner, owner)
	now := tx.Now()
	p := records.Playground{Owner: owner, Actor: requested(ctx).Actor, CreatedAt: now, Volumes: v.Volumes, Claimed: true, Source: records.SourceOf(marker.Branch), Registries: compose.Registries(v.Compose), Playground: model.Playground{
		ID: dir.Marker.Playground, Marquee: m, Project: dir.Marker.Project, Player: owner, Intent: model.IntentStopped, IntentSince: now,
		// Nothing tells any more whether its volumes were to outlive it.
		KeepVolumes: len(v.Volumes) > 0, State: model.StateStopped, StateSince: now, Reason: "adopted",
		Services: v.Services, Desired: v.Digest, Applied: v.Digest, Expiry: ends(marker, now),
	}}
	p.Routes = unclaimed(tx, &p, v.Compose)
	if at := marker.CreatedAt; !at.IsZero() && at.Before(now) {
		p.CreatedAt = at
	}
	runs := slices.ContainsFunc(containers, func(c observe.Container) bool { return c.State == "running" })
	switch {
	case runs:
		p.Intent, p.State = model.IntentUp, model.StateRunning
	case dir.Last == string(model.OpUp):
		// Nobody stopped it by an action; what did is not known, so nothing is begun.
		p.Intent, p.Reason = model.IntentUp, "adopted: it was up, and nothing of it runs; start it"
	}
	return p
}

// taken reports whether the owner has given a name already: an up would not
// know which is meant.
func taken(tx state.Reader, owner, name string) bool {
	for _, o := range records.Playgrounds.All(tx) {
		if o.Owner == owner && o.Name == name {
			return true
		}
	}
	return false
}

func owned(row records.Marquee, dir observe.Directory, project model.Project) bool {
	root, err := model.NewLayout(row.Root)
	return err == nil && root.Contains(dir.Path) && path.Base(dir.Path) == project.String() &&
		dir.HasMarker && dir.Marker.Owns(row.Identity.Installation, project.ID(), project)
}

// fetch reads the definition that lies on a host.
func (s *Scanner) fetch(ctx context.Context, row records.Marquee, project model.Project, digest string) (v records.Version, err error) {
	layout, err := model.NewLayout(row.Root)
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
	res, err := s.Hosts.Host(row).Run(ctx, sshx.Command{Line: line})
	if err != nil {
		return v, fleet.Errorf(fleet.CodeUnavailable, "the compose file of %s: %w", project, err)
	}
	sum := sha256.Sum256(res.Stdout)
	if res.Status != 0 || hex.EncodeToString(sum[:]) != digest {
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
			External any `yaml:"external"`
		} `yaml:"volumes"`
	}
	if err := yaml.Unmarshal(file, &doc); err != nil || len(doc.Services) == 0 {
		return v, fleet.Errorf(fleet.CodeConflict, "the compose file of %s is not one that Fuse wrote", project)
	}
	v = records.Version{Digest: digest, Compose: file}
	rolled := compose.Rolled(file)
	for _, name := range slices.Sorted(maps.Keys(doc.Services)) {
		v.Services = append(v.Services, model.Service{Name: name, Digest: doc.Services[name].Labels[model.LabelDigest], Rolled: slices.Contains(rolled, name)})
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Volumes)) {
		if doc.Volumes[name].External == nil {
			v.Volumes = append(v.Volumes, project.String()+"_"+name)
		}
	}
	return v, nil
}

// way is how a marquee is reached under another installation's name.
func (s *Scanner) way(row records.Marquee, as model.InstallationID) *reach.Host {
	row.Identity.Installation = as
	return s.Hosts.Host(row)
}
