package events

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Case is all that is known of one life of an environment. VM is its row while
// it lives, Ended the record after; one of them is there.
type Case struct {
	Now   time.Time
	VM    *fleet.VM
	Ended *fleet.Life
	// Events are those of the life, Host those of its host meanwhile, rising.
	Events, Host []fleet.Event
	Startup      *fleet.StartupLog
	// Sight is what is known of the host now; nil: nothing.
	Sight *Sight
	// MaxRuntime and IdleTimeout are what holds for an environment that names
	// none; zero is no limit.
	MaxRuntime, IdleTimeout time.Duration
}

// Sight is when a host was last seen, since when looks at it have failed, and
// since when nothing is destroyed there that nobody asked for; zero: not so.
type Sight struct {
	LastSeen, MissedSince, PausedSince time.Time
	Reason                             string // of the last look that failed
}

// Fact is one thing that is known of a life and what it rests on. Detail are
// further lines.
type Fact struct {
	At     time.Time
	Type   string
	Text   string
	Detail []string
	Reason *fleet.Reason
	Event  uint64 // 0: not from an event
}

// TypeStartup is the type of the fact that tells the startup script's result.
const TypeStartup = "startup_script"

// Story is a life in words. Summary says how it stands, Next what is to be
// expected; Cut, that its beginning is not in the log any more.
type Story struct {
	ID, UID, TaskID, Owner, HostID string
	State                          fleet.VMState
	CreatedAt, EndedAt             time.Time
	Summary, Next                  string
	Facts                          []Fact
	Cut                            bool
}

// Explain tells a life.
func Explain(c Case) Story {
	var s Story
	if c.VM != nil {
		s = Story{
			ID: c.VM.ID, UID: c.VM.UID, TaskID: c.VM.TaskID, Owner: c.VM.Owner, HostID: c.VM.HostID,
			State: c.VM.State, CreatedAt: c.VM.CreatedAt, Summary: c.standing(), Next: c.next(),
		}
	} else {
		s = Story{
			ID: c.Ended.VMID, UID: c.Ended.UID, TaskID: c.Ended.TaskID, Owner: c.Ended.Owner, HostID: c.Ended.HostID,
			State: c.Ended.State, CreatedAt: c.Ended.CreatedAt, EndedAt: c.Ended.EndedAt, Summary: c.ending(), Next: c.kept(),
		}
	}
	s.Facts = c.facts()
	if s.Cut = len(c.Events) == 0; !s.Cut {
		first := c.Events[0].Type // of a machine that no record tracked its end is all there is
		s.Cut = first != fleet.EventVMProvisioning && first != fleet.EventVMOrphanDestroy
	}
	return s
}

func (c *Case) facts() []Fact {
	var out []Fact
	for _, list := range [][]fleet.Event{c.Events, c.Host} {
		for i := range list {
			e := &list[i]
			t := tell(e)
			out = append(out, Fact{At: e.At, Type: e.Type, Text: t.text, Detail: t.detail, Reason: e.Reason, Event: e.Seq})
		}
	}
	if l := c.Startup; l != nil {
		out = append(out, Fact{At: l.EndedAt, Type: TypeStartup, Text: startup(l)})
	}
	slices.SortStableFunc(out, func(a, b Fact) int {
		if by := a.At.Compare(b.At); by != 0 {
			return by
		}
		return cmp.Compare(a.Event, b.Event)
	})
	return out
}

func startup(l *fleet.StartupLog) string {
	switch {
	case l.TimedOut:
		return fmt.Sprintf("The startup script did not end in time; it had written %s", count(len(l.Output), "byte"))
	case l.ExitCode != 0:
		return fmt.Sprintf("The startup script ended with exit code %d; it wrote %s", l.ExitCode, count(len(l.Output), "byte"))
	}
	return fmt.Sprintf("The startup script succeeded; it wrote %s", count(len(l.Output), "byte"))
}

// standing is how an environment that lives stands.
func (c *Case) standing() string {
	vm := c.VM
	age := Span(max(c.Now.Sub(vm.CreatedAt), 0))
	switch vm.State {
	case fleet.VMStateProvisioning:
		return fmt.Sprintf("%s is being made on host %s, for %s so far.", vm.ID, vm.HostID, age)
	case fleet.VMStateDraining:
		return fmt.Sprintf("%s is on host %s and draining: its services are stopped, or are being stopped.", vm.ID, vm.HostID)
	case fleet.VMStateDestroying:
		why := "of a reason that was not recorded"
		if vm.End != nil {
			why = because(*vm.End)
		}
		return fmt.Sprintf("%s is being destroyed, because %s.", vm.ID, why)
	}
	return fmt.Sprintf("%s is running on host %s, %s after it was asked for.", vm.ID, vm.HostID, age)
}

// next is what is to be expected of one that lives.
func (c *Case) next() string {
	vm := c.VM
	if s := c.Sight; s != nil && !s.MissedSince.IsZero() {
		text := fmt.Sprintf("Host %s has not answered since %s", vm.HostID, stamp(s.MissedSince))
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		if vm.State == fleet.VMStateDestroying {
			return text + "; it is asked again once it answers, and until then the task id stays taken."
		}
		return text + "; nothing is judged until it answers, so this may still run there."
	}
	switch vm.State {
	case fleet.VMStateProvisioning:
		return "When it runs it says so; if a step fails, everything is undone and the reason is told here."
	case fleet.VMStateDraining:
		return "It stays until somebody destroys it; there is no way back to running."
	case fleet.VMStateDestroying:
		return fmt.Sprintf("Host %s has not confirmed the end yet; it is asked again, with growing pauses, until it does.", vm.HostID)
	}
	return c.limits()
}

// limits are what will end a running environment by itself.
func (c *Case) limits() string {
	text := "Nothing ends it by itself but its host losing it"
	runtime, idle := cmp.Or(c.VM.Spec.MaxRuntime, c.MaxRuntime), cmp.Or(c.VM.Spec.IdleTimeout, c.IdleTimeout)
	switch end := c.VM.CreatedAt.Add(runtime); {
	case runtime > 0 && !c.Now.Before(end):
		text = fmt.Sprintf("It has been older than it may become, %s, since %s; it is ended once two cycles in a row have seen that", Span(runtime), stamp(end))
	case runtime > 0 && idle > 0:
		text = fmt.Sprintf("It is ended once it is older than %s, at %s, or earlier when nobody has used it for %s", Span(runtime), stamp(end), Span(idle))
	case runtime > 0:
		text = fmt.Sprintf("It is ended once it is older than %s, at %s", Span(runtime), stamp(end))
	case idle > 0:
		text = fmt.Sprintf("It is ended once nobody has used it for %s", Span(idle))
	}
	if s := c.Sight; s != nil && !s.PausedSince.IsZero() && runtime+idle > 0 {
		return fmt.Sprintf("%s. Not now: since %s nothing is destroyed on host %s that nobody asked for, until an operator resumes it.", text, stamp(s.PausedSince), c.VM.HostID)
	}
	return text + "."
}

// ending is how an ended life ended.
func (c *Case) ending() string {
	l := c.Ended
	verb := "was destroyed"
	if l.State == fleet.VMStateFailed {
		verb = "failed"
	}
	text := fmt.Sprintf("%s %s after %s, because %s", l.VMID, verb, Span(max(l.EndedAt.Sub(l.CreatedAt), 0)), because(l.Reason))
	if l.Reason.Evidence != "" {
		text += ": " + l.Reason.Evidence
	}
	return text + "."
}

func (c *Case) kept() string {
	if c.Now.Sub(c.Ended.EndedAt) >= fleet.LifeRetention {
		return "It is over. This can be read for as long as its events are kept."
	}
	return fmt.Sprintf("It is over. This can be read until %s.", stamp(c.Ended.EndedAt.Add(fleet.LifeRetention)))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
