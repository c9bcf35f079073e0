package sweep

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Policy holds the numbers of the sweep.
type Policy struct {
	MinAge   time.Duration // between the two looks that make an orphan of a suspect
	Memory   time.Duration // after which a first look counts no more
	Keep     time.Duration // of what was set aside
	Again    time.Duration // after a purge that failed; twice as long after each more
	Slowest  time.Duration // of those
	Lost     time.Duration // after which an operation that the host does not know is lost
	AtOnce   int           // orphans on one marquee; more is an alarm
	Suspects int           // that are watched
	Aside    int           // that are kept; with that many nothing more is set aside
}

// DefaultPolicy has ours.
func DefaultPolicy() Policy {
	return Policy{
		MinAge: time.Hour, Memory: 24 * time.Hour, Keep: 24 * time.Hour, Again: 10 * time.Minute, Slowest: 6 * time.Hour, Lost: 2 * time.Minute,
		AtOnce: 3, Suspects: 100, Aside: 50,
	}
}

// DefaultShare is how much of a host may be orphans, in percent, unless the
// operator says otherwise.
const DefaultShare = 20

// Guards beside those of decide.
const (
	GuardUnarmed  decide.Guard = "sweep_unarmed"   // nobody armed it, or the arming is over
	GuardHalted   decide.Guard = "sweep_halted"    // some marquee shows what the records do not know of
	GuardMany     decide.Guard = "too_many"        // more orphans than may be explained by a few forgotten ones
	GuardMarker   decide.Guard = "no_marker"       // its directory is gone: nothing proves whose it is
	GuardUnproven decide.Guard = "unknown_history" // its marker was written by a history that is not ours
	GuardFull     decide.Guard = "aside_full"
)

// Input is all that a decision depends on.
type Input struct {
	Now    time.Time
	Policy Policy
	Look   observe.Look
	// Known are the projects that records know of, read after the look.
	Marquee model.Marquee
	Known   map[model.Project]bool
	Sweep   model.Sweep
	History []model.Span
	// HaltedAt names another marquee that stopped the sweep everywhere.
	HaltedAt string
	Epoch    uint64

	Sent, Heard, Rows uint64 // as decide.Input has them
}

// Finding is what was decided about one orphan.
type Finding struct {
	Project model.Project
	Guard   decide.Guard // that kept it where it is; empty: it is being taken out of use
	Why     string
	Adopt   bool // it may be taken back into the records
}

// Note is something to tell people of.
type Note struct {
	What    What
	Project model.Project
	Why     string
	Late    bool // Failed: the operation was ended because its time was over
}

// What is told.
type What string

// Notes.
const (
	Swept    What = "swept"
	Restored What = "restored"
	Purged   What = "purged"
	Failed   What = "failed"
	Halted   What = "halted"
	Alarmed  What = "alarmed"
)

// Order is one operation to start. Its claim is in Plan.Sweep.Op, without id.
type Order struct {
	Op         decide.Op
	Project    model.Project
	Playground model.PlaygroundID
}

// Plan is what to do.
type Plan struct {
	Sweep    model.Sweep // as it is to be kept
	Findings []Finding   // by project
	Notes    []Note
	Order    *Order // nil: nothing
}

// Decide says what to do about the orphans of a marquee after one look.
func Decide(in Input) Plan {
	d := &decision{Input: in, plan: Plan{Sweep: clone(in.Sweep)}}
	projects, seen := in.Look.Projects()
	if !seen || in.Marquee.Admin != model.AdminActive || in.Marquee.Reach == model.ReachQuarantined {
		return d.plan
	}
	if in.Sent > in.Heard || in.Heard > in.Rows { // a row made meanwhile would be taken for missing
		return d.plan
	}
	d.settle()
	d.find(projects)
	d.halt()
	d.judge()
	if d.plan.Sweep.Op.IsZero() && !d.working {
		d.order()
	}
	for i := range d.plan.Findings {
		f := &d.plan.Findings[i]
		if f.Guard == "" && (d.plan.Order == nil || d.plan.Order.Project != f.Project) {
			f.Guard, f.Why = decide.GuardBudget, "one operation at a time, and one orphan in a pass"
		}
	}
	return d.plan
}

func clone(s model.Sweep) model.Sweep {
	s.Suspects, s.Aside = slices.Clone(s.Suspects), slices.Clone(s.Aside)
	return s
}

type decision struct {
	Input
	plan    Plan
	orphans []orphan
	hosted  int // projects with a directory
	working bool
}

// orphan is one as the look shows it.
type orphan struct {
	project model.Project
	dir     observe.Directory
	found   Finding
	ran     bool
	volumes []string
}

func (d *decision) tell(what What, p model.Project, why string) {
	d.plan.Notes = append(d.plan.Notes, Note{What: what, Project: p, Why: why})
}

// settle writes the end of the operation in flight, as the host tells it.
func (d *decision) settle() {
	s := &d.plan.Sweep
	op := s.Op
	if op.IsZero() {
		return
	}
	ops, _ := d.Look.Project(op.Project).Ops()
	for _, o := range ops {
		switch {
		case o.ID != op.ID:
		case o.Running:
			return
		case o.Lost:
			d.ended("it left no exit status", false)
			return
		case o.Exit != 0:
			d.ended(exitText(o.Exit), o.Exit == decide.ExitLate)
			return
		default:
			d.done()
			return
		}
	}
	if d.Now.Sub(op.Started) >= d.Policy.Lost {
		d.ended("the host does not know of it", false)
	}
}

// exitText is what the runner's exit statuses mean here.
func exitText(status int) string {
	switch status {
	case 65:
		return "exit status 65: its directory is not there, or is not proven ours"
	case 69:
		return "exit status 69: the Docker daemon did not answer"
	case 73:
		return "exit status 73: its directory could not be moved or removed; some of it may belong to another user, or be a mount"
	case 76:
		return "exit status 76: a checkout holds work that is nowhere else"
	case decide.ExitLate:
		return "exit status 124: it took too long"
	}
	return fmt.Sprintf("exit status %d", status)
}

func (d *decision) done() {
	s := &d.plan.Sweep
	op := s.Op
	s.Op = model.SweepOp{}
	switch op.Kind {
	case model.OpSweep:
		s.Suspects = slices.DeleteFunc(s.Suspects, func(x model.Suspect) bool { return x.Project == op.Project })
		s.Aside = append(without(s.Aside, op.Project), model.Aside{Project: op.Project, Playground: op.Playground, At: d.Now, Ran: op.Ran, Volumes: op.Volumes})
		d.tell(Swept, op.Project, "set aside for "+d.Policy.Keep.String())
	case model.OpRestore:
		s.Aside = without(s.Aside, op.Project)
		d.tell(Restored, op.Project, "its directory is back")
	default:
		s.Aside = without(s.Aside, op.Project)
		d.tell(Purged, op.Project, "its directory is gone; its volumes are left")
	}
}

func without(list []model.Aside, p model.Project) []model.Aside {
	return slices.DeleteFunc(list, func(a model.Aside) bool { return a.Project == p })
}

// ended notes an operation that did not do its work; late: its time was over.
func (d *decision) ended(why string, late bool) {
	s := &d.plan.Sweep
	op := s.Op
	s.Op = model.SweepOp{}
	d.plan.Notes = append(d.plan.Notes, Note{What: Failed, Project: op.Project, Why: string(op.Kind) + ": " + why, Late: late})
	for i := range s.Suspects {
		if s.Suspects[i].Project == op.Project && op.Kind == model.OpSweep {
			s.Suspects[i].Failed++
			s.Suspects[i].Strikes = model.Strikes{} // an hour, and two looks more
		}
	}
	for i := range s.Aside {
		if s.Aside[i].Project == op.Project && op.Kind != model.OpSweep {
			s.Aside[i] = s.Aside[i].Fail(string(op.Kind)+": "+why, d.Now)
		}
	}
}

// find lists what no record knows of, and says of each what stands in its way
// by itself.
func (d *decision) find(projects []model.Project) {
	for _, project := range projects {
		look := d.Look.Project(project)
		ops, _ := look.Ops()
		d.working = d.working || slices.ContainsFunc(ops, func(o observe.Op) bool { return o.Running })
		dir, seen := look.Directory()
		if dir.Exists || !seen {
			d.hosted++
		}
		if d.Known[project] {
			continue
		}
		if o, ours := d.orphan(project, look, dir, seen); ours {
			d.orphans = append(d.orphans, o)
		}
	}
}

func (d *decision) orphan(project model.Project, look observe.ProjectLook, dir observe.Directory, seen bool) (orphan, bool) {
	o := orphan{project: project, dir: dir, found: Finding{Project: project}}
	containers, _ := look.Containers()
	volumes, _ := look.Volumes()
	for _, v := range volumes {
		o.volumes = append(o.volumes, v.Name)
	}
	mine := d.Marquee.Identity.Installation
	refuse := func(g decide.Guard, why string) { o.found.Guard, o.found.Why = g, why }
	dirt, why := look.Dirt()
	switch {
	case !seen:
		refuse(decide.GuardPartial, "its directory could not be read")
		return o, true
	case !dir.Exists:
		refuse(GuardMarker, fmt.Sprintf("no directory; %d containers, %d volumes are left", len(containers), len(volumes)))
		return o, len(containers)+len(volumes) > 0
	case dir.HasMarker && dir.Marker.Installation != mine:
		return o, false
	case !d.owned(dir, project):
		refuse(decide.GuardForeign, "its owner marker is missing, malformed or somebody else's, or it lies elsewhere")
		return o, true
	}
	o.found.Adopt = true
	for _, c := range containers {
		o.ran = o.ran || c.State == "running"
	}
	others, _ := look.Foreign()
	stranger := slices.ContainsFunc(containers, func(c observe.Container) bool { return c.Playground != dir.Marker.Playground }) ||
		slices.ContainsFunc(volumes, func(v observe.Volume) bool { return v.Playground != dir.Marker.Playground })
	switch {
	case dir.Marker.Epoch > d.Epoch || !model.Wrote(d.History, d.Rows, dir.Marker):
		refuse(GuardUnproven, fmt.Sprintf("its marker, of epoch %d, was not written by the history of these records", dir.Marker.Epoch))
	case len(others) > 0 || stranger:
		refuse(decide.GuardForeign, "others use its name")
	case dirt == observe.Dirty:
		refuse(decide.GuardDirty, why)
	case dirt != observe.Clean:
		refuse(decide.GuardDirt, why)
	}
	return o, true
}

// owned asks for the same proof as for a playground with a record.
func (d *decision) owned(dir observe.Directory, project model.Project) bool {
	root, err := model.NewLayout(d.Marquee.Root)
	return err == nil && root.Contains(dir.Path) && path.Base(dir.Path) == project.String() && dir.HasMarker &&
		dir.Marker.Owns(d.Marquee.Identity.Installation, project.ID(), project)
}

// halt stops everything if the host shows what the records do not know of.
func (d *decision) halt() {
	var names []string
	for _, o := range d.orphans {
		if o.found.Guard == GuardUnproven {
			names = append(names, o.project.String())
		}
	}
	if len(names) == 0 || d.plan.Sweep.Halt != (model.Halt{}) {
		return
	}
	slices.Sort(names)
	more := ""
	if n := len(names) - 5; n > 0 {
		names, more = names[:5], fmt.Sprintf(" and %d more", n)
	}
	why := "the records are older than the host, or of another history: they did not write the markers of " + strings.Join(names, ", ") + more
	d.plan.Sweep.Halt = model.Halt{At: d.Now, Why: why}
	d.tell(Halted, model.Project{}, why)
}

// judge counts the looks, and says of each orphan what happens to it.
func (d *decision) judge() {
	s := &d.plan.Sweep
	standing := map[model.Project]model.Suspect{}
	for _, x := range s.Suspects {
		standing[x.Project] = x
	}
	s.Suspects = nil
	candidates := 0
	for _, o := range d.orphans {
		if o.found.Adopt {
			candidates++
		}
	}
	many := d.many(candidates)
	for i := range d.orphans {
		o := &d.orphans[i]
		if o.found.Guard == "" {
			o.found.Guard, o.found.Why = d.watch(standing[o.project], o.project, many)
		}
		d.plan.Findings = append(d.plan.Findings, o.found)
	}
	if many != "" && s.Alarm != many {
		d.tell(Alarmed, model.Project{}, many)
	}
	s.Alarm = many
}

// many says that there are more orphans than a few forgotten ones.
func (d *decision) many(n int) string {
	share := cmp.Or(d.plan.Sweep.Arming.Share, DefaultShare)
	switch {
	case n > d.Policy.AtOnce:
		return fmt.Sprintf("%d orphans at once, more than %d: nothing is swept; adopt them, or destroy them by hand", n, d.Policy.AtOnce)
	case n*100 > share*d.hosted:
		return fmt.Sprintf("%d of %d projects are orphans, more than %d %%: nothing is swept; adopt them, or arm the sweep with a larger share", n, d.hosted, share)
	}
	return ""
}

// watch counts this look for an orphan that nothing by itself protects, and
// returns what keeps it where it is.
func (d *decision) watch(x model.Suspect, p model.Project, many string) (decide.Guard, string) {
	s := &d.plan.Sweep
	if len(s.Suspects) >= d.Policy.Suspects {
		return GuardMany, "more suspects than are watched"
	}
	x.Project = p
	if x.Strikes.Count < 2 {
		x.Strikes = x.Strikes.Add("orphan", d.Look.To(), d.Policy.MinAge, d.Policy.Memory)
	}
	s.Suspects = append(s.Suspects, x)
	switch {
	case many != "":
		return GuardMany, many
	case d.HaltedAt != "" || s.Halt != (model.Halt{}):
		return GuardHalted, cmp.Or(s.Halt.Why, "marquee "+d.HaltedAt+" shows what the records do not know of")
	case x.Strikes.Count < 2:
		return decide.GuardOneLook, fmt.Sprintf("seen first at %s; a second look after %s decides", x.Strikes.Since.UTC().Format(time.RFC3339), d.Policy.MinAge)
	case !d.armed():
		return GuardUnarmed, "arm the sweep to have it set aside"
	case len(s.Aside) >= d.Policy.Aside:
		return GuardFull, fmt.Sprintf("%d projects are set aside already", len(s.Aside))
	}
	return "", ""
}

func (d *decision) armed() bool {
	a := d.plan.Sweep.Arming
	return !a.At.IsZero() && d.Now.Before(a.Until) && !d.Now.Before(a.At)
}

// order picks the one operation of this pass: what a person wants back first,
// then what has to go, then one orphan, the one that is known longest.
func (d *decision) order() {
	s := &d.plan.Sweep
	rested := func(a model.Aside) bool {
		return a.Tried.IsZero() || d.Now.Sub(a.Tried) >= model.Backoff(a.Failed-1, d.Policy.Again, d.Policy.Slowest)
	}
	for _, a := range s.Aside {
		if a.Restore {
			d.claim(decide.Restore{}, orphan{project: a.Project, dir: observe.Directory{Marker: model.Marker{Playground: a.Playground}}})
			return
		}
	}
	if !d.armed() || d.HaltedAt != "" || s.Halt != (model.Halt{}) {
		return
	}
	old := -1 // of those that have to go, the one that was tried longest ago
	for i, a := range s.Aside {
		if d.Now.Sub(a.Since()) >= d.Policy.Keep && rested(a) && (old < 0 || a.Tried.Before(s.Aside[old].Tried)) {
			old = i
		}
	}
	if old >= 0 {
		a := s.Aside[old]
		d.claim(decide.Purge{}, orphan{project: a.Project, dir: observe.Directory{Marker: model.Marker{Playground: a.Playground}}})
		return
	}
	best := -1
	since := map[model.Project]time.Time{}
	for _, x := range s.Suspects {
		since[x.Project] = x.Strikes.Since
	}
	for i, o := range d.orphans {
		if o.found.Guard == "" && (best < 0 || since[o.project].Before(since[d.orphans[best].project])) {
			best = i
		}
	}
	if best >= 0 {
		d.claim(decide.Sweep{}, d.orphans[best])
	}
}

func (d *decision) claim(op decide.Op, o orphan) {
	kind := decide.VerbOf(op).Kind()
	d.plan.Order = &Order{Op: op, Project: o.project, Playground: o.dir.Marker.Playground}
	d.plan.Sweep.Op = model.SweepOp{
		Op: model.Op{Kind: kind, Started: d.Now, Epoch: d.Epoch}, Project: o.project, Playground: o.dir.Marker.Playground, Ran: o.ran, Volumes: o.volumes,
	}
}
