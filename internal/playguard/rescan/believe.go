package rescan

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
)

const maxOwner = 128 // bytes

// believe is what a marker says, less what cannot be so: whoever can write on a
// host can write markers, and they are shown to people.
func believe(m model.Marker) model.Marker {
	if m.Name != "" && service.CheckName(m.Name) != nil {
		m.Name = ""
	}
	if !plain(m.Owner, maxOwner) {
		m.Owner = ""
	}
	if b := m.Branch; b != nil {
		u, err := url.Parse(b.Repository)
		if err != nil || !slices.Contains([]string{"https", "http", "ssh"}, u.Scheme) || u.Host == "" || b.Checkout == "" || b.Depth < 0 ||
			!plain(b.Repository, 2000) || !plain(b.Branch, 300) || !plain(b.Path, 300) || !plain(b.Checkout, 100) || !plain(b.Secret, 100) || !plain(b.Commit, 100) ||
			slices.ContainsFunc(b.Variables, func(name string) bool { return !plain(name, 200) }) {
			m.Branch = nil
		}
	}
	return m
}

func plain(s string, most int) bool {
	return len(s) <= most && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) < 0
}

// free refuses to adopt what a sweep is at work on or has set aside, and more
// than a marquee or an owner may have.
func free(tx state.Reader, m *records.Marquee, project model.Project, owner string) error {
	if m.Sweep.Op.Project == project && !m.Sweep.Op.IsZero() {
		return fleet.Errorf(fleet.CodeConflict, "a sweep is at work on %s right now", project).
			With(fleet.DetailReason, "sweep").With(fleet.DetailRemedy, "ask again in a minute; fuse marquee sweep status tells what became of it")
	}
	if slices.ContainsFunc(m.Sweep.Aside, func(a model.Aside) bool { return a.Project == project }) {
		return fleet.Errorf(fleet.CodeConflict, "%s is set aside", project).
			With(fleet.DetailReason, "sweep").With(fleet.DetailRemedy, "bring it back with fuse marquee sweep restore")
	}
	return service.Room(tx, owner, m)
}

// unclaimed are the routes of a file that lead to no other playground.
func unclaimed(tx state.Reader, p *records.Playground, file []byte) []model.Route {
	return slices.DeleteFunc(compose.Routed(file), func(r model.Route) bool {
		for _, o := range records.Playgrounds.All(tx) {
			if o.ID != p.ID && slices.ContainsFunc(o.Routes, func(x model.Route) bool { return x.Host == r.Host }) {
				return true
			}
		}
		return false
	})
}

// nameOf is what an adopted playground is called: as asked for, as its marker has
// it, or as its project.
func nameOf(given string, m model.Marker, project model.Project) string {
	slug, _, _ := strings.Cut(project.String(), "--")
	return cmp.Or(given, m.Name, slug)
}
