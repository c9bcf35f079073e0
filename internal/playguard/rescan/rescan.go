package rescan

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
)

// Config wires a Scanner.
type Config struct {
	Store        records.Store
	Sealer       records.Sealer
	Loop         *loop.Loop
	Hosts        *reach.Hosts
	Installation model.InstallationID
	// Leads returns why this process may not change anything; nil: it always may.
	Leads func() error
}

// Scanner takes playgrounds back. It is safe for concurrent use.
type Scanner struct{ Config }

// New makes a Scanner.
func New(c Config) *Scanner {
	if c.Leads == nil {
		c.Leads = func() error { return nil }
	}
	return &Scanner{c}
}

// Request says what is wanted of a rescan. The zero Request only lists.
type Request struct {
	Adopt bool // take back all that has no record
	// TakeOver names the installation whose playgrounds are on the marquee: that
	// of the records that were lost. Who names it says that it is not at work any
	// more.
	TakeOver model.InstallationID
}

// Report is what a rescan found.
type Report struct {
	Marquee       model.MarqueeID
	Name          string
	Installation  model.InstallationID   // whose playgrounds are listed
	Installations []model.InstallationID // that have playgrounds on the host, and ours
	Projects      []Found
	Aside         []runner.Swept // by a sweep, and still there
}

// Found is one project on the host.
type Found struct {
	Project    model.Project
	Playground model.PlaygroundID
	Name       string // of its marker
	Owner      string
	CreatedAt  time.Time
	Running    int // containers
	Containers int
	Last       string // operation that succeeded last: up, stop, down; empty if unknown
	Digest     string
	Recorded   bool     // the records know of it
	Adopted    bool     // by this rescan
	Needs      []string // of what was adopted: what was in the lost records alone
	Trouble    string   // why it is not, or cannot be, taken back
}

func (s *Scanner) marquee(id string) (row records.Marquee, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		m, ok := records.Marquees.Get(tx, id)
		for _, o := range records.Marquees.All(tx) {
			if !ok && o.Name == id {
				m, ok = o, true
			}
		}
		if !ok {
			return fleet.Errorf(fleet.CodeNotFound, "there is no marquee %.80q", id).With(fleet.DetailScope, "marquee")
		}
		row = *m
		return nil
	})
	if err == nil && row.Admin != model.AdminActive {
		err = fleet.Errorf(fleet.CodeConflict, "marquee %s is quarantined by a person: %s", row.Name, row.AdminWhy).
			With(fleet.DetailReason, "quarantined").With(fleet.DetailRemedy, "take it back first")
	}
	return row, err
}

// look has the loop look now, so that nothing is taken from an old one.
func (s *Scanner) look(ctx context.Context, row records.Marquee) (observe.Look, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	sight, err := s.Loop.Check(ctx, row.ID)
	if err != nil {
		return observe.Look{}, err
	}
	if sight.Look.Verdict() != observe.Seen {
		return observe.Look{}, unseen(sight.Look)
	}
	return sight.Look, nil
}

func unseen(l observe.Look) error {
	return fleet.Errorf(fleet.CodeUnavailable, "the marquee could not be seen: %s", l.Detail()).With(fleet.DetailReason, string(l.Reason())).
		With(fleet.DetailRemedy, "fuse marquee check says what to do")
}

// Rescan lists what is on a marquee, and takes back what the request says.
func (s *Scanner) Rescan(ctx context.Context, id string, req Request) (Report, error) {
	row, err := s.marquee(id)
	if err != nil {
		return Report{}, err
	}
	if req.TakeOver != "" && req.TakeOver != row.Identity.Installation {
		if row, err = s.takeOver(ctx, row, req.TakeOver); err != nil {
			return Report{}, err
		}
	}
	look, err := s.look(ctx, row)
	if err != nil {
		return Report{}, err
	}
	host := s.Hosts.Host(row)
	r := Report{Marquee: row.ID, Name: row.Name, Installation: row.Identity.Installation}
	if r.Installations, r.Aside, err = host.Inventory(ctx); err != nil {
		return Report{}, err
	}
	projects, _ := look.Projects()
	known := map[model.Project]bool{}
	if err := s.Store.View(func(tx *state.ReadTx) error { // after the look
		for _, p := range records.Playgrounds.All(tx) {
			known[p.Project] = true
		}
		return nil
	}); err != nil {
		return Report{}, err
	}
	for _, project := range projects {
		f, ours := found(row, look, project)
		if !ours {
			continue
		}
		f.Recorded = known[project]
		if req.Adopt && !f.Recorded && f.Trouble == "" {
			if _, err := s.adopt(ctx, row, look, project, ""); err != nil {
				f.Trouble = err.Error()
			} else {
				f.Adopted, f.Recorded, f.Needs = true, true, s.needs(project)
			}
		}
		r.Projects = append(r.Projects, f)
	}
	if req.Adopt {
		left, err := s.takeAside(ctx, row, r.Aside)
		if err != nil {
			return Report{}, err
		}
		for _, project := range left {
			r.Projects = append(r.Projects, Found{Project: project, Playground: project.ID(), Trouble: noRoom})
		}
		s.Loop.Kick(row.ID)
	}
	return r, nil
}

// needs of the record of a project.
func (s *Scanner) needs(p model.Project) (out []string) {
	_ = s.Store.View(func(tx *state.ReadTx) error { // the closure never fails
		if row, ok := records.Playgrounds.Get(tx, string(p.ID())); ok {
			out = needs(tx, row)
		}
		return nil
	})
	return out
}

// found tells of one project; false if it is another installation's.
func found(row records.Marquee, look observe.Look, project model.Project) (Found, bool) {
	p := look.Project(project)
	f := Found{Project: project, Playground: project.ID()}
	dir, seen := p.Directory()
	containers, _ := p.Containers()
	for _, c := range containers {
		if f.Containers++; c.State == "running" {
			f.Running++
		}
	}
	volumes, _ := p.Volumes()
	switch {
	case !seen:
		f.Trouble = "its directory could not be read"
		return f, true
	case !dir.Exists && len(containers)+len(volumes) == 0:
		return f, false
	case !dir.Exists:
		f.Trouble = fmt.Sprintf("its directory is gone; %d containers and %d volumes are left", len(containers), len(volumes))
		return f, true
	case dir.HasMarker && dir.Marker.Installation != row.Identity.Installation:
		return f, false
	case !owned(row, dir, project):
		f.Trouble = "its owner marker is missing or somebody else's"
		return f, true
	case dir.Compose == "":
		f.Trouble = "it has no compose file"
	}
	m := believe(dir.Marker)
	f.Name, f.Owner, f.CreatedAt, f.Last, f.Digest = m.Name, m.Owner, m.CreatedAt, dir.Last, dir.Compose
	return f, true
}

// atWork refuses an installation that an operation on the host is at work for: its
// server lives, or did a moment ago.
func atWork(look observe.Look, as model.InstallationID) error {
	projects, _ := look.Projects()
	for _, p := range projects {
		ops, _ := look.Project(p).Ops()
		for _, op := range ops {
			if op.Running {
				return fleet.Errorf(fleet.CodeConflict, "installation %s is at work: %s of %s under epoch %d runs", as, op.Kind, p, op.Epoch).With(fleet.DetailReason, "busy").
					With(fleet.DetailRemedy, "end the server that it is of; if that is gone, ask again when the operation has ended")
			}
		}
	}
	return nil
}

// takeOver makes what another installation put on a host this one's: from here
// on it is known there by that name, holds an epoch that none of its servers
// held, and finds its containers by their labels. Nothing there is touched.
func (s *Scanner) takeOver(ctx context.Context, row records.Marquee, as model.InstallationID) (records.Marquee, error) {
	if !as.Valid() {
		return row, fleet.Invalid("take_over_installation", "1 to 32 lower-case letters and digits", "fuse marquee rescan lists those on the host", "%.80q is none", string(as))
	}
	if err := s.Leads(); err != nil {
		return row, err
	}
	there, _, err := s.Hosts.Host(row).Inventory(ctx)
	if err != nil {
		return row, err
	}
	names := make([]string, 0, len(there))
	is := false
	for _, i := range there {
		names = append(names, string(i))
		is = is || i == as
	}
	if !is {
		return row, fleet.Errorf(fleet.CodeNotFound, "installation %s has no place on marquee %s; there are %s", as, row.Name, strings.Join(names, ", ")).
			With(fleet.DetailScope, "installation")
	}
	trip := s.way(row, as).Look(ctx)
	look := observe.Conclude(trip, model.Identity{})
	claimed, ok := look.Claimed()
	if !ok {
		return row, unseen(look)
	}
	if gap := claimed.Differs(claimed); gap != "" || claimed.Installation != as {
		return row, fleet.Errorf(fleet.CodeConflict, "installation %s cannot be taken over: its %s is not there any more", as, gap).
			With(fleet.DetailRemedy, "find out whether the host has the Docker data that the playgrounds were made with")
	}
	look = observe.Conclude(trip, claimed)
	if err := atWork(look, as); err != nil {
		return row, err
	}
	seen, _ := look.Host()
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		now, ok := records.Marquees.Get(tx, string(row.ID))
		if !ok || now.Identity != row.Identity {
			return records.ErrMoved
		}
		if n := len(records.Of(tx, row.ID)); n > 0 {
			return fleet.Errorf(fleet.CodeConflict, "%d playgrounds on marquee %s carry this installation's name", n, row.Name).
				With(fleet.DetailReason, "not_empty").With(fleet.DetailRemedy, "destroy them first, and bring them again afterwards")
		}
		for _, o := range records.Marquees.All(tx) {
			if o.ID != row.ID && o.Identity == claimed && o.Root == row.Root {
				return fleet.Errorf(fleet.CodeConflict, "marquee %s is that installation on that host already", o.Name).With(fleet.DetailReason, "exists")
			}
		}
		row = *now
		row.Identity, row.Sweep = claimed, model.Sweep{}
		row.Begin(row.Term.Term, max(row.Term.Epoch, seen.Epoch)+1, tx.Revision()+1)
		records.TellMarquee(tx, &row, records.Note{
			Type: fleet.EventMarqueeTakenOver, Reason: requested(ctx), Payload: map[string]any{"installation": as, "epoch": row.Term.Epoch},
		})
		return records.PutMarquee(tx, row)
	})
	return row, err
}
