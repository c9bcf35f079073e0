package rescan

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of writing markers on a marquee.
const (
	mostMarks = 5
	markAgain = 2 * time.Minute // after a failure; twice as long after each
	markLast  = 30 * time.Minute
)

// Phase is the part of a pass that has markers say what would be lost with the
// records: when playgrounds end.
func Phase(w *work.Worker) loop.Phase {
	return loop.Phase{Name: "markers", Run: func(_ context.Context, t *loop.Turn) error {
		var owed []loop.Owed
		for _, row := range t.Free() {
			dir, _ := t.In.Look.Project(row.Project).Directory()
			if outdated(row, dir.Marker) && dir.HasMarker && dir.Marker.Owns(t.In.Marquee.Identity.Installation, row.ID, row.Project) {
				owed = append(owed, loop.Owed{Row: row, What: row.Expiry.At.UTC().Format(time.RFC3339)})
			}
		}
		t.Few(loop.Chore{Name: "mark", Most: mostMarks, First: markAgain, Last: markLast, Do: func(ctx context.Context, was records.Playground) (bool, error) {
			end, err := w.Task(t.Site, was.ID, work.RuleMark, was.Unmoved).Mark(ctx)
			return !end.Lost && end.Status == 0, err
		}}, owed)
		return nil
	}}
}

// outdated reports whether a marker says something else than its record, and
// nothing else is about to write it.
func outdated(p *records.Playground, m model.Marker) bool {
	switch p.State {
	case model.StateRunning, model.StateStopped, model.StateHasChanges:
		return !m.Expires.Equal(p.Expiry.At)
	}
	return false
}

// leastLife is how long a playground that is taken back has at least: people may
// not have been there when it was to end, and are to be warned anew.
const leastLife = 24 * time.Hour

// ends is the end that a marker tells of.
func ends(m model.Marker, now time.Time) model.Expiry {
	switch left := m.Expires.Sub(now); {
	case m.Expires.IsZero() || left > model.MaxLife:
		return model.Expiry{}
	case left < leastLife:
		return model.Until(now.Add(leastLife), now)
	}
	return model.Until(m.Expires, now)
}

// needs are what was in the lost records alone and a playground wants, for people.
func needs(tx state.Reader, p *records.Playground) (out []string) {
	src := p.Source
	if src.Secret != "" {
		if _, err := credential.Find(tx, p.Owner, src.Secret, credential.KindToken, credential.KindSSHKey); err != nil {
			out = append(out, "secret "+src.Secret)
		}
	}
	if u, err := url.Parse(src.Repository); err == nil && u.Scheme == "ssh" && src.KnownHosts == "" {
		out = append(out, "known hosts of "+u.Host)
	}
	for _, name := range src.Lost {
		out = append(out, "variable "+name)
	}
	for _, registry := range p.Registries {
		known := false
		for _, s := range credential.Secrets.All(tx) {
			known = known || s.Kind == credential.KindRegistry && s.Name == registry && (s.Owner == p.Owner || s.Marquee == p.Marquee)
		}
		if !known && registry != "docker.io" {
			out = append(out, "login of "+registry+", if it wants one")
		}
	}
	return out
}

// maxAside is how much that was set aside the records of a marquee take in: more
// than a sweep ever sets aside, since records may have been lost more than once.
const maxAside = 500

// takeAside notes what a sweep set aside and these records do not know of, so that
// it can be brought back, and goes after it was kept for a while once more. What
// there is no room for is returned.
func (s *Scanner) takeAside(ctx context.Context, row records.Marquee, list []runner.Swept) (left []model.Project, err error) {
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		left = nil
		now, ok := records.Marquees.Get(tx, string(row.ID))
		if !ok || now.Identity != row.Identity {
			return records.ErrMoved
		}
		m := *now
		m.Sweep.Aside = slices.Clone(now.Sweep.Aside)
		known := map[model.Project]bool{}
		for _, p := range records.Playgrounds.All(tx) {
			known[p.Project] = true
		}
		for _, a := range m.Sweep.Aside {
			known[a.Project] = true
		}
		if !m.Sweep.Op.IsZero() {
			known[m.Sweep.Op.Project] = true
		}
		for _, x := range list {
			switch {
			case known[x.Project]:
				continue
			case len(m.Sweep.Aside) >= maxAside:
				left = append(left, x.Project)
				continue
			}
			m.Sweep.Aside = append(m.Sweep.Aside, model.Aside{
				Project: x.Project, Playground: x.Project.ID(), At: tx.Now().Add(-x.Age), Found: tx.Now(), Ran: x.Last == string(model.OpUp),
			})
		}
		if len(m.Sweep.Aside) == len(now.Sweep.Aside) {
			return nil
		}
		return records.PutMarquee(tx, m)
	})
	return left, err
}

// noRoom is why something that was set aside is not taken into the records.
var noRoom = fmt.Sprintf("it was set aside by a sweep, and the records of this marquee have %d of those: rescan again when some were brought back or removed", maxAside)
