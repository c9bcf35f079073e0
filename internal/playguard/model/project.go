package model

import (
	"regexp"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// PlaygroundID names a playground for ever: 1 to 32 lower-case letters and
// digits.
type PlaygroundID string

// MarqueeID names a marquee for ever, by the same rules.
type MarqueeID string

// InstallationID names one Fuse installation: what it put on a host is its
// own, and nothing else there is.
type InstallationID string

const (
	maxID   = 32
	maxSlug = 40 // longer human names are cut
	idSep   = "--"
)

var (
	idPattern      = regexp.MustCompile(`^[a-z0-9]{1,32}$`)
	projectPattern = regexp.MustCompile(`^([a-z0-9]|[a-z0-9][a-z0-9-]{0,38}[a-z0-9])--([a-z0-9]{1,32})$`)
)

// Valid reports whether the id may be part of names on a host.
func (id PlaygroundID) Valid() bool { return idPattern.MatchString(string(id)) }

// Valid reports whether the id may be part of names on a host.
func (id MarqueeID) Valid() bool { return idPattern.MatchString(string(id)) }

// Valid reports whether the id may be part of names on a host.
func (id InstallationID) Valid() bool { return idPattern.MatchString(string(id)) }

// Project is a legal Compose project name of ours, "slug--id". Only NewProject
// and ParseProject make one, so a Project is always safe as a path segment and
// as an argument.
type Project struct{ name string }

// NewProject names the Compose project of a playground: the human name as a
// slug of at most 40 characters, two dashes, the id.
func NewProject(name string, id PlaygroundID) (Project, error) {
	if !id.Valid() {
		return Project{}, fleet.Errorf(fleet.CodeInvalidArgument,
			"playground id %q: want 1 to %d lower-case letters and digits", clip(string(id)), maxID)
	}
	return Project{slug(name) + idSep + string(id)}, nil
}

// ParseProject takes a name read elsewhere; it is an error unless the name is
// one that NewProject could have made.
func ParseProject(name string) (Project, error) {
	m := projectPattern.FindStringSubmatch(name)
	if m == nil || strings.Contains(m[1], idSep) {
		return Project{}, fleet.Errorf(fleet.CodeInvalidArgument,
			"project name %q: want a slug of at most %d characters, two dashes and an id", clip(name), maxSlug)
	}
	return Project{name}, nil
}

// String returns the name; that of the zero Project is empty.
func (p Project) String() string { return p.name }

// IsZero reports whether p names nothing.
func (p Project) IsZero() bool { return p.name == "" }

// ID returns the playground whose name this is.
func (p Project) ID() PlaygroundID {
	_, id, _ := strings.Cut(p.name, idSep)
	return PlaygroundID(id)
}

// MarshalText makes a Project a JSON string.
func (p Project) MarshalText() ([]byte, error) { return []byte(p.name), nil }

// UnmarshalText is ParseProject.
func (p *Project) UnmarshalText(text []byte) error {
	q, err := ParseProject(string(text))
	if err == nil {
		*p = q
	}
	return err
}

// slug keeps ASCII letters and digits, in lower case, and turns every run of
// anything else into one dash.
func slug(name string) string {
	var b strings.Builder
	dash := false
	for _, r := range strings.ToLower(name) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			if dash && b.Len() > 0 {
				b.WriteByte('-')
			}
			dash = false
			b.WriteRune(r)
		} else {
			dash = true
		}
	}
	s := strings.TrimRight(b.String()[:min(b.Len(), maxSlug)], "-")
	if s == "" {
		return "playground"
	}
	return s
}

// clip keeps a hostile value from filling an error message.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}
