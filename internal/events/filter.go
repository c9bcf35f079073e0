package events

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of a filter.
const (
	MaxPatterns = 32
	maxPattern  = 64
	maxID       = 200
)

var (
	patternRule = regexp.MustCompile(`^[a-z0-9_.*]+$`)
	entityRule  = regexp.MustCompile(`^[a-z]+(/.+)?$`)
)

// Selector is a filter that is ready to be asked. The zero Selector takes
// every event.
type Selector struct {
	filter     fleet.EventFilter
	types      []string
	kind, name string // of the entity
}

// Compile checks a filter and makes it ready. Its errors name the field.
func Compile(f fleet.EventFilter) (Selector, error) {
	s := Selector{filter: f}
	for _, p := range f.Types {
		if len(p) > maxPattern || !patternRule.MatchString(p) {
			return Selector{}, fleet.Invalid("type", fmt.Sprintf("%d of a-z, 0-9, _, . and *", maxPattern),
				"use a name such as vm.running, or a pattern such as vm.*", "cannot be %.80q", p)
		}
		s.types = append(s.types, p)
	}
	if len(s.types) > MaxPatterns {
		return Selector{}, fleet.Invalid("type", fmt.Sprint(MaxPatterns), "use fewer patterns, with *", "has %d patterns", len(s.types))
	}
	if f.Entity != "" && !entityRule.MatchString(f.Entity) {
		return Selector{}, fleet.Invalid("entity", "TYPE or TYPE/ID", "use for instance host or host/h1", "cannot be %.80q", f.Entity)
	}
	s.kind, s.name, _ = strings.Cut(f.Entity, "/")
	for field, v := range map[string]string{"entity": f.Entity, "vm": f.VM, "host": f.Host, "owner": f.Owner} {
		if len(v) > maxID {
			return Selector{}, fleet.Invalid(field, fmt.Sprintf("%d bytes", maxID), "give an id that exists", "has %d bytes", len(v))
		}
	}
	return s, nil
}

// CheckTypes refuses a pattern that takes no event there is, for those who wait
// for what is to come. Compile takes such: logs and stored filters may hold the
// names of other releases.
func CheckTypes(patterns []string) error {
	for _, p := range patterns {
		known := false
		for name := range sentences {
			known = known || glob(p, name)
		}
		if !known {
			return fleet.Invalid("type", "the events that there are", "docs/reference/events.md lists them", "%.80q stands for none", p)
		}
	}
	return nil
}

// Match reports whether the filter takes e.
func (s *Selector) Match(e *fleet.Event) bool {
	f := &s.filter
	return (f.VM == "" || e.VMID == f.VM) && (f.Host == "" || e.HostID == f.Host) && (f.Owner == "" || e.Owner == f.Owner) &&
		(s.kind == "" || e.EntityType == s.kind) && (s.name == "" || e.EntityID == s.name) && s.matchType(e.Type)
}

func (s *Selector) matchType(name string) bool {
	for _, p := range s.types {
		if glob(p, name) {
			return true
		}
	}
	return len(s.types) == 0
}

// glob matches name against a pattern in which * stands for any text, in time
// proportional to the product of their lengths.
func glob(pattern, name string) bool {
	star, mark := -1, 0
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
