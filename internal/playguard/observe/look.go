package observe

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// Trip is what one round trip to a marquee brought back.
type Trip struct {
	Nonce  string // of the request
	Ending Ending
	Status int
	Stdout []byte
	Stderr []byte
	From   time.Time // by our clock: sent
	To     time.Time // by our clock: ended
}

// Look is one look at a marquee. The zero Look is unseen.
type Look struct {
	verdict  Verdict
	reason   Reason
	detail   string
	from, to time.Time
	host     Host
	read     bool // the frame was complete: host is as the host says
	projects map[model.Project]*projectLook
}

// Host is what a complete answer says about the host itself.
type Host struct {
	Identity model.Identity
	Boot     model.Boot
	Clock    time.Time     // the host's clock
	Uptime   time.Duration // since its boot
	Epoch    uint64        // highest lease epoch that the host has seen; 0 if none
	DiskFree uint64        // bytes, below our root
	OddDirs  int           // directories among ours whose names are not ours
	Docker   string        // version of the daemon
	Storage  string        // storage driver
	Compose  Compose
}

// BootedAt returns when the host booted, by its clock.
func (h Host) BootedAt() time.Time { return h.Clock.Add(-h.Uptime) }

// Compose is the Compose on a host.
type Compose struct {
	Flavour string // v2 is "docker compose", v1 is "docker-compose"
	Version string
}

// Conclude reads the answer of a round trip. pin is the identity on record.
// Absence may be concluded from a seen Look only, so whatever is not a whole
// and well-formed answer of the very host that is meant is not one.
func Conclude(t Trip, pin model.Identity) Look {
	l := Look{from: t.From, to: t.To}
	parts, f := decode(t.Nonce, t.Stdout)
	if f != nil {
		return l.failed(f, t)
	}
	if f := l.fill(parts); f != nil {
		return l.blind(f)
	}
	l.read = true
	if what := pin.Differs(l.host.Identity); what != "" {
		return l.blind(&fault{reason: ReasonIdentity, text: what + " is not the one on record"})
	}
	l.verdict = Seen
	return l
}

// failed is the look of an answer without a complete frame. Why it is not
// complete is what the ending says, unless the frame itself is wrong.
func (l Look) failed(f *fault, t Trip) Look {
	if f.reason != ReasonCut {
		return l.blind(f)
	}
	reason, text := trouble(t.Ending, t.Status, string(t.Stderr)), string(t.Ending)
	if f.partial && reason == ReasonParse {
		reason = ReasonCut
	}
	if t.Ending == EndedExit || t.Ending == EndedSignal {
		text = fmt.Sprintf("exit status %d", t.Status)
	}
	if f.partial || reason == ReasonParse {
		text += ", " + f.text
	}
	if line := firstLine(t.Stderr); line != "" {
		text += ": " + line
	}
	return l.blind(&fault{reason, f.partial, text})
}

func (l Look) blind(f *fault) Look {
	l.verdict, l.reason, l.detail, l.projects = Unseen, f.reason, f.text, nil
	if f.partial {
		l.verdict = Partial
	}
	return l
}

// Verdict returns how much was seen of the marquee as a whole.
func (l Look) Verdict() Verdict { return l.verdict }

// Reason returns why not all was seen; ReasonNone if it was.
func (l Look) Reason() Reason { return l.reason }

// Detail returns what a person needs to know of the reason.
func (l Look) Detail() string { return l.detail }

// From returns when the look was sent, by our clock.
func (l Look) From() time.Time { return l.from }

// To returns when the answer was complete, by our clock.
func (l Look) To() time.Time { return l.to }

// Host returns what a seen host says about itself.
func (l Look) Host() (Host, bool) { return l.host, l.verdict == Seen }

// Claimed returns the identity that a complete answer claims, also one that is
// not the pinned one: for a person to confirm, never to conclude from.
func (l Look) Claimed() (model.Identity, bool) { return l.host.Identity, l.read }

// Projects lists every project of ours that the host has a trace of, sorted.
func (l Look) Projects() ([]model.Project, bool) {
	if l.verdict != Seen {
		return nil, false
	}
	return slices.SortedFunc(maps.Keys(l.projects), func(a, b model.Project) int {
		switch {
		case a.String() < b.String():
			return -1
		case a.String() > b.String():
			return 1
		}
		return 0
	}), true
}

// Project returns what was seen of one project. If the host has no trace of
// it, that is seen too.
func (l Look) Project(name model.Project) ProjectLook {
	if l.verdict != Seen {
		return ProjectLook{verdict: l.verdict}
	}
	p := l.projects[name]
	if p == nil {
		p = &projectLook{}
	}
	return ProjectLook{verdict: p.verdict(), p: p}
}

// ProjectLook is one look at one project. The zero ProjectLook is unseen.
type ProjectLook struct {
	verdict Verdict
	p       *projectLook
}

// projectLook is what a seen host says about one project. Containers, volumes
// and operations come from host-wide lists without which nothing is seen.
type projectLook struct {
	containers []Container
	volumes    []Volume
	ops        []Op
	foreign    []string // containers that use the name and are not ours
	dir        dirLook
	checkouts  checkoutsLook
}

type dirLook struct {
	trouble bool // the directory is there and could not be read
	dir     Directory
}

type checkoutsLook struct {
	trouble bool
	list    []Checkout
}

func (p *projectLook) verdict() Verdict {
	if p.dir.trouble {
		return Partial
	}
	return Seen
}

// Verdict returns how much was seen of the project, its checkouts aside.
func (p ProjectLook) Verdict() Verdict { return p.verdict }

// Containers lists the project's containers, those of other owners aside.
func (p ProjectLook) Containers() ([]Container, bool) {
	if p.verdict != Seen {
		return nil, false
	}
	return slices.Clone(p.p.containers), true
}

// Volumes lists the volumes that carry our labels and the project's.
func (p ProjectLook) Volumes() ([]Volume, bool) {
	if p.verdict != Seen {
		return nil, false
	}
	return slices.Clone(p.p.volumes), true
}

// Ops lists the project's operations that the host has records of.
func (p ProjectLook) Ops() ([]Op, bool) {
	if p.verdict != Seen {
		return nil, false
	}
	return slices.Clone(p.p.ops), true
}

// Foreign lists containers of others that use the project's name.
func (p ProjectLook) Foreign() ([]string, bool) {
	if p.verdict != Seen {
		return nil, false
	}
	return slices.Clone(p.p.foreign), true
}

// Directory returns the project's directory; its zero value, seen, means that
// there is none.
func (p ProjectLook) Directory() (Directory, bool) {
	if p.verdict != Seen {
		return Directory{}, false
	}
	return p.p.dir.dir, true
}

// Checkouts lists the project's working copies. They have a verdict of their
// own: everything else may be seen while they are not.
func (p ProjectLook) Checkouts() ([]Checkout, bool) {
	if p.p == nil || p.p.checkouts.trouble {
		return nil, false
	}
	return slices.Clone(p.p.checkouts.list), true
}

// Dirt returns the worst of the project's checkouts, and why. It fails closed:
// what could not be looked at counts as unknown.
func (p ProjectLook) Dirt() (Dirt, string) {
	list, ok := p.Checkouts()
	if !ok {
		return DirtUnknown, "its checkouts could not be listed"
	}
	worst, why := Clean, ""
	for _, c := range list {
		if c.Dirt > worst {
			worst, why = c.Dirt, c.Name+": "+c.Why
		}
	}
	return worst, why
}
