package notify

import (
	"encoding/json"
	"path"
	"slices"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// family groups events that are about the same thing: those that begin a
// trouble and those that end it.
type family struct {
	name string
	sort Sort
	// named: only who asks for this type by name is told.
	named bool
}

// told are the events that people are told of. What says more by its payload is
// in familyOf.
var told = map[string]family{
	fleet.EventMarqueeQuarantined: {"reach", Problem, false},
	fleet.EventMarqueeReturned:    {"reach", Recovery, false},
	fleet.EventMarqueeAlarmed:     {"alarm", Problem, false},
	fleet.EventMarqueeOrphanFound: {"orphan", Notice, false},
	fleet.EventMarqueeSweepHalted: {"sweep", Problem, false},
	fleet.EventMarqueeSweepFailed: {"sweep", Problem, false},
	fleet.EventMarqueeOrphanSwept: {"orphan", Notice, false},

	fleet.EventPlaygroundExpiring:          {"expiry", Notice, false},
	fleet.EventPlaygroundParked:            {"parked", Problem, false},
	fleet.EventPlaygroundExtended:          {"parked", Recovery, false},
	fleet.EventPlaygroundExpired:           {"expiry", Notice, false},
	fleet.EventPlaygroundFlagged:           {"attention", Problem, false},
	fleet.EventPlaygroundRolloutFailed:     {"rollout", Problem, false},
	fleet.EventPlaygroundRolledOut:         {"rollout", Recovery, false},
	fleet.EventPlaygroundOperationTimedOut: {"operation", Problem, false},
	fleet.EventPlaygroundSkipped:           {"skipped", Notice, true},
	fleet.EventPlaygroundCreated:           {"life", Notice, true},
	fleet.EventPlaygroundDestroyed:         {"life", Notice, true},

	fleet.EventTrickScheduleFailed: {"schedule", Problem, false},
	fleet.EventTrickScheduleMissed: {"schedule", Problem, false},
	fleet.EventTrickScheduleFired:  {"schedule", Recovery, false},
	fleet.EventTrickLogsLost:       {"logs", Notice, false},
}

// gone are the events after which nothing more is to come of a subject.
var gone = map[string]bool{
	fleet.EventPlaygroundDestroyed: true, fleet.EventPlaygroundForgotten: true, fleet.EventTrickScheduleRemoved: true, fleet.EventMarqueeRemoved: true,
}

// families are the names of all families.
func families() []string {
	names := []string{"state", "trick"}
	for _, f := range told {
		if !slices.Contains(names, f.name) {
			names = append(names, f.name)
		}
	}
	return names
}

// familyOf says what an event is to people, and about what subject; false if
// they are not told of it.
func familyOf(e *fleet.Event) (f family, subject string, ok bool) {
	subject = e.EntityType + "/" + e.EntityID
	switch e.Type {
	case fleet.EventPlaygroundStateChanged:
		p, _ := read[events.PlaygroundChange](e)
		switch {
		case p.To == string(model.StateError):
			return family{"state", Problem, false}, subject, true
		case p.To == string(model.StateRunning):
			return family{"state", Recovery, false}, subject, true
		}
		return f, subject, false
	case fleet.EventTrickFinished:
		p, _ := read[events.TrickEnd](e)
		if p.Schedule != "" { // its runs are one story
			subject = fleet.EntityTrickSchedule + "/" + p.Schedule
		}
		switch {
		case p.Code != 0:
			return family{"trick", Problem, false}, subject, true
		case p.Schedule != "":
			return family{"trick", Recovery, false}, subject, true
		}
		return family{"trick", Notice, true}, subject, true
	}
	f, ok = told[e.Type]
	return f, subject, ok
}

func read[T any](e *fleet.Event) (v T, ok bool) {
	return v, len(e.Payload) > 0 && json.Unmarshal(e.Payload, &v) == nil
}

// wants reports whether patterns select an event. None select what concerns
// most people; a type by its full name or * selects everything that fits.
func wants(patterns []string, f family, typ string) bool {
	if len(patterns) == 0 {
		return !f.named
	}
	for _, p := range patterns {
		if ok, err := path.Match(p, typ); ok && err == nil {
			return true
		}
	}
	return false
}

// checkPatterns refuses patterns that select nothing.
func checkPatterns(patterns []string) error {
	if len(patterns) > 50 {
		return fleet.Invalid("events", "50", "use *, which stands for anything", "has %d patterns", len(patterns))
	}
	for _, p := range patterns {
		found := false
		for typ := range told {
			ok, err := path.Match(p, typ)
			found = found || ok && err == nil
		}
		for _, typ := range []string{fleet.EventPlaygroundStateChanged, fleet.EventTrickFinished} {
			ok, err := path.Match(p, typ)
			found = found || ok && err == nil
		}
		if !found {
			return fleet.Invalid("events", "types of events that people are told of", "docs/operate/notifications.md lists them", "%.60q fits none of them", p)
		}
	}
	return nil
}
