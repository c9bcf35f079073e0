package sweep_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/sweep"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	nonce = "00112233445566778899aabbccddeeff"
	inst  = model.InstallationID("inst1")
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// thing is one project on the host.
type thing struct {
	name                     string
	marker                   *model.Marker // nil: none, or none that can be read
	dir, torn                bool          // it has a directory; that cannot be read
	path                     string        // if it is not where it should be
	runs, volume, containers bool
	stranger                 bool // a container of somebody else uses the name
	wrongOwner               bool // its container carries another playground's label
	git                      string
}

// desk is a host, its records, and what was decided so far.
type desk struct {
	t       interface{ Fatal(args ...any) }
	now     time.Time
	things  []thing
	known   map[model.Project]bool
	sweep   model.Sweep
	history []model.Span
	halted  string
	epoch   uint64
	rows    uint64
	blind   bool
	ops     []string
	names   int
	exits   map[string]string // of operations, by project; 0 otherwise
	// What happened on the host.
	swept, purged, restored []string
}

func newDesk(t interface{ Fatal(args ...any) }) *desk {
	return &desk{t: t, now: noon, known: map[model.Project]bool{}, history: []model.Span{{Epoch: 3, Lineage: "a", From: 1}}, epoch: 3, rows: 1000}
}

func project(t interface{ Fatal(args ...any) }, name string) model.Project {
	p, err := model.ParseProject(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// good is an ordinary playground of ours.
func (d *desk) good(name string) thing {
	p := project(d.t, name)
	return thing{name: name, dir: true, runs: true, containers: true, volume: true, marker: &model.Marker{
		Kind: model.KindPlayground, Installation: inst, Marquee: "m1", Playground: p.ID(), Project: p, Epoch: 3, CreatedAt: noon.Add(-time.Hour * 48), Lineage: "a", Revision: 10,
	}}
}

// house adds ordinary playgrounds that have records.
func (d *desk) house(n int) *desk {
	for i := range n {
		t := d.good(fmt.Sprintf("home--h%d", i))
		d.things = append(d.things, t)
		d.known[project(d.t, t.name)] = true
	}
	return d
}

func (d *desk) look() observe.Look {
	id := model.Identity{Installation: inst, MachineID: "m", DaemonID: "d", DataRoot: "/data", Witness: string(inst)}
	trip := observe.Trip{Nonce: nonce, From: d.now.Add(-time.Second), To: d.now, Ending: observe.EndedExit}
	if d.blind {
		trip.Ending = observe.EndedDial
		return observe.Conclude(trip, id)
	}
	var containers, foreign, volumes, projects strings.Builder
	var each []observe.Part
	for _, th := range d.things {
		pid := string(project(d.t, th.name).ID())
		if th.wrongOwner {
			pid = "somebody"
		}
		labels := fmt.Sprintf(`{%q:%q,%q:%q,"com.docker.compose.project":%q,"com.docker.compose.service":"web"}`, model.LabelInstallation, inst, model.LabelPlayground, pid, th.name)
		state := "exited"
		if th.runs {
			state = "running"
		}
		if th.containers {
			fmt.Fprintf(&containers, `{"id":"c%s","name":"/x","state":%q,"exit":0,"health":"","restart":"no","finished":"0001-01-01T00:00:00Z","labels":%s}`+"\n", th.name, state, labels)
		}
		if th.volume {
			fmt.Fprintf(&volumes, `{"name":"%s_data","labels":%s}`+"\n", th.name, labels)
		}
		if th.stranger {
			fmt.Fprintf(&foreign, "f%s %s\n", th.name, th.name)
		}
		if !th.dir {
			continue
		}
		projects.WriteString(th.name + "\n")
		marker := []byte("torn")
		if th.marker != nil {
			marker, _ = th.marker.Encode()
		}
		path := th.path
		if path == "" {
			path = "/opt/fuse/playgrounds/" + th.name
		}
		status := 0
		if th.torn {
			status = 1
		}
		each = append(each, observe.Part{Name: "marker:" + th.name, Status: status, Out: marker}, observe.Part{Name: "files:" + th.name, Out: []byte("path=" + path + "\ncompose=\n")})
		if th.git == "" {
			each = append(each, observe.Part{Name: "checkouts:" + th.name})
			continue
		}
		each = append(each, observe.Part{Name: "checkouts:" + th.name, Out: []byte("src\n")}, observe.Part{Name: "git:" + th.name + ":src", Out: []byte(th.git)})
	}
	parts := append([]observe.Part{
		{Name: "host", Out: fmt.Appendf(nil, "installation=%s\nmachine_id=m\nboot_id=b\nclock=%d\nuptime=9\nepoch=%d\ndisk_free=1\nodd_dirs=0\n", inst, d.now.Unix(), d.epoch)},
		{Name: "daemon", Out: fmt.Appendf(nil, "id=d\nroot=/data\nwitness=%s\nversion=28\nstorage=x\nstarted=1\n", inst)},
		{Name: "compose", Out: []byte("flavour=v2\nversion=2.40.3\n")}, {Name: "containers", Out: []byte(containers.String())},
		{Name: "foreign", Out: []byte(foreign.String())}, {Name: "volumes", Out: []byte(volumes.String())},
		{Name: "ops", Out: []byte(strings.Join(d.ops, ""))}, {Name: "projects", Out: []byte(projects.String())},
	}, each...)
	frame, err := observe.Encode(nonce, parts)
	if err != nil {
		d.t.Fatal(err)
	}
	trip.Stdout = frame
	return observe.Conclude(trip, id)
}

func (d *desk) input() sweep.Input {
	return sweep.Input{
		Now: d.now, Policy: sweep.DefaultPolicy(), Look: d.look(), Known: d.known, Sweep: d.sweep, History: d.history, HaltedAt: d.halted, Epoch: d.epoch,
		Sent: d.rows, Heard: d.rows, Rows: d.rows,
		Marquee: model.Marquee{ID: "m1", Root: "/opt/fuse", Admin: model.AdminActive, Reach: model.ReachOK, Identity: model.Identity{
			Installation: inst, MachineID: "m", DaemonID: "d", DataRoot: "/data", Witness: string(inst)}},
	}
}

// pass decides, keeps what was decided, and does on the host what it asks for.
func (d *desk) pass() sweep.Plan {
	plan := sweep.Decide(d.input())
	d.sweep = plan.Sweep
	if o := plan.Order; o != nil {
		d.names++
		d.sweep.Op.ID = fmt.Sprintf("op%d", d.names)
		name := o.Project.String()
		switch o.Op.(type) {
		case decide.Sweep:
			d.swept = append(d.swept, name)
			for i := range d.things {
				if d.things[i].name == name {
					d.things[i].dir, d.things[i].containers, d.things[i].runs = false, false, false
				}
			}
		case decide.Restore:
			d.restored = append(d.restored, name)
			for i := range d.things {
				if d.things[i].name == name {
					d.things[i].dir = true
				}
			}
		case decide.Purge:
			d.purged = append(d.purged, name)
		}
		d.ops = append(d.ops, fmt.Sprintf("%s %s %s %d %s\n", d.sweep.Op.ID, name, d.sweep.Op.Kind, d.epoch, cmp.Or(d.exits[name], "0")))
	}
	return plan
}

func (d *desk) after(wait time.Duration) *desk {
	d.now = d.now.Add(wait)
	return d
}

func (d *desk) arm() *desk {
	d.sweep.Arming = model.Arming{By: "ann", Why: "x", At: d.now, Until: d.now.Add(7 * 24 * time.Hour), Share: sweep.DefaultShare}
	return d
}

func guardOf(p sweep.Plan, name string) decide.Guard {
	for _, f := range p.Findings {
		if f.Project.String() == name {
			return f.Guard
		}
	}
	return "not found"
}

// The life of an orphan: seen, seen again an hour later, set aside, gone a day
// later. Its volume is never named in an operation, and stays.
func TestLifeOfAnOrphan(t *testing.T) {
	d := newDesk(t).house(9)
	d.things = append(d.things, d.good("lost--x1"))
	if g := guardOf(d.pass(), "lost--x1"); g != decide.GuardOneLook {
		t.Fatalf("at first sight: %q", g)
	}
	if g := guardOf(d.after(59*time.Minute).pass(), "lost--x1"); g != decide.GuardOneLook {
		t.Fatalf("within the hour: %q", g)
	}
	if g := guardOf(d.after(2*time.Minute).pass(), "lost--x1"); g != sweep.GuardUnarmed || len(d.swept) != 0 {
		t.Fatalf("not armed: %q, swept %v", g, d.swept)
	}
	if p := d.arm().after(time.Minute).pass(); p.Order == nil || len(d.swept) != 1 {
		t.Fatalf("armed: %+v", p)
	}
	p := d.after(time.Minute).pass()
	if len(p.Sweep.Aside) != 1 || !p.Sweep.Op.IsZero() || !p.Sweep.Aside[0].Ran || !slices.Equal(p.Sweep.Aside[0].Volumes, []string{"lost--x1_data"}) {
		t.Fatalf("%+v", p.Sweep)
	}
	if g := guardOf(p, "lost--x1"); g != sweep.GuardMarker {
		t.Fatalf("its volume: %q", g)
	}
	d.after(23*time.Hour + 58*time.Minute).pass()
	if len(d.purged) != 0 {
		t.Fatal("purged within a day")
	}
	d.after(2 * time.Minute).pass()
	if p := d.after(time.Minute).pass(); len(d.purged) != 1 || len(p.Sweep.Aside) != 0 || len(d.swept) != 1 {
		t.Fatalf("after a day: %v %+v", d.purged, p.Sweep)
	}
}

// Each of these keeps an orphan where it is, however long it is there.
func TestWhatProtects(t *testing.T) {
	clean := "repository=yes\nhead=yes\nbusy=\nchanged=0\nunpushed=0\nstashes=0\n"
	spoil := func(from, to string) string { return strings.Replace(clean, from, to, 1) }
	for name, c := range map[string]struct {
		change func(d *desk, th *thing)
		guard  decide.Guard
	}{
		"nothing":                  {func(*desk, *thing) {}, ""},
		"a clean checkout":         {func(_ *desk, th *thing) { th.git = clean }, ""},
		"changed files":            {func(_ *desk, th *thing) { th.git = spoil("changed=0", "changed=1") }, decide.GuardDirty},
		"unpushed commits":         {func(_ *desk, th *thing) { th.git = spoil("unpushed=0", "unpushed=1") }, decide.GuardDirty},
		"a stash":                  {func(_ *desk, th *thing) { th.git = spoil("stashes=0", "stashes=1") }, decide.GuardDirty},
		"a rebase":                 {func(_ *desk, th *thing) { th.git = spoil("busy=", "busy=rebase-merge") }, decide.GuardDirty},
		"no repository":            {func(_ *desk, th *thing) { th.git = spoil("repository=yes", "repository=no") }, decide.GuardDirty},
		"git that does not answer": {func(_ *desk, th *thing) { th.git = "nonsense\n" }, decide.GuardDirt},
		"no marker":                {func(_ *desk, th *thing) { th.marker = nil }, decide.GuardForeign},
		"another kind":             {func(_ *desk, th *thing) { th.marker.Kind = "agent" }, decide.GuardForeign},
		"another playground":       {func(_ *desk, th *thing) { th.marker.Playground = "x2" }, decide.GuardForeign},
		"another installation":     {func(_ *desk, th *thing) { th.marker.Installation = "inst2" }, "not found"},
		"a link elsewhere":         {func(_ *desk, th *thing) { th.path = "/home/ann/lost--x1" }, decide.GuardForeign},
		"a link to a sibling":      {func(_ *desk, th *thing) { th.path = "/opt/fuse/playgrounds/home--h1" }, decide.GuardForeign},
		"an unreadable directory":  {func(_ *desk, th *thing) { th.torn = true }, decide.GuardPartial},
		"no directory":             {func(_ *desk, th *thing) { th.dir = false }, sweep.GuardMarker},
		"containers of others":     {func(_ *desk, th *thing) { th.stranger = true }, decide.GuardForeign},
		"labels of another":        {func(_ *desk, th *thing) { th.wrongOwner = true }, decide.GuardForeign},
		"a newer epoch":            {func(_ *desk, th *thing) { th.marker.Epoch = 4 }, sweep.GuardUnproven},
		"another lineage":          {func(_ *desk, th *thing) { th.marker.Lineage = "b" }, sweep.GuardUnproven},
		"a newer revision":         {func(_ *desk, th *thing) { th.marker.Revision = 1001 }, sweep.GuardUnproven},
		"a marker of before":       {func(_ *desk, th *thing) { th.marker.Lineage, th.marker.Revision = "", 0 }, sweep.GuardUnproven},
		"a record":                 {func(d *desk, th *thing) { d.known[project(d.t, th.name)] = true }, "not found"},
		"a halt":                   {func(d *desk, _ *thing) { d.sweep.Halt = model.Halt{At: noon, Why: "x"} }, sweep.GuardHalted},
		"a halt elsewhere":         {func(d *desk, _ *thing) { d.halted = "other" }, sweep.GuardHalted},
		"an arming that is over":   {func(d *desk, _ *thing) { d.sweep.Arming.Until = noon }, sweep.GuardUnarmed},
		"an operation at work":     {func(d *desk, _ *thing) { d.ops = []string{"o1 home--h1 up 3 running\n"} }, decide.GuardBudget},
		"a full store of them":     {func(d *desk, _ *thing) { d.sweep.Aside = make([]model.Aside, 50) }, sweep.GuardFull},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t).house(9).arm()
			th := d.good("lost--x1")
			c.change(d, &th)
			d.things = append(d.things, th)
			for i := range d.sweep.Aside {
				d.sweep.Aside[i] = model.Aside{Project: project(t, fmt.Sprintf("old--o%d", i)), At: noon.Add(100 * time.Hour)}
			}
			var p sweep.Plan
			for range 6 {
				p = d.after(30 * time.Minute).pass()
				if p.Order != nil {
					break
				}
			}
			if (c.guard == "") != (len(d.swept) == 1) || guardOf(p, "lost--x1") != c.guard {
				t.Errorf("guard %q, want %q; swept %v", guardOf(p, "lost--x1"), c.guard, d.swept)
			}
		})
	}
}

// A look that is none changes nothing, and a row that may have been made while
// the host was listed is never taken for missing.
func TestOnlyALookCounts(t *testing.T) {
	d := newDesk(t).house(9).arm()
	d.things = append(d.things, d.good("lost--x1"))
	d.pass()
	before := d.sweep
	d.blind = true
	if p := d.after(2 * time.Hour).pass(); p.Order != nil || len(p.Findings) != 0 || len(p.Sweep.Suspects) != len(before.Suspects) {
		t.Errorf("blind: %+v", p)
	}
	d.blind = false
	in := d.input()
	in.Rows = in.Heard - 1
	if p := sweep.Decide(in); p.Order != nil || len(p.Findings) != 0 {
		t.Errorf("rows older than the look: %+v", p)
	}
	// It is gone for one look, or has a record again: it begins anew.
	d.known[project(t, "lost--x1")] = true
	if p := d.pass(); len(p.Sweep.Suspects) != 0 {
		t.Errorf("%+v", p.Sweep)
	}
}

// More orphans than a few forgotten ones are an alarm, told once, and none of
// them is swept.
func TestManyIsAnAlarm(t *testing.T) {
	for _, c := range []struct {
		homes, orphans, share int
		many                  bool
	}{{9, 1, 20, false}, {4, 1, 20, false}, {3, 1, 20, true}, {3, 1, 50, false}, {20, 3, 20, false}, {50, 4, 20, true}, {50, 4, 100, true}, {0, 1, 100, false}} {
		d := newDesk(t).house(c.homes).arm()
		d.sweep.Arming.Share = c.share
		for i := range c.orphans {
			d.things = append(d.things, d.good(fmt.Sprintf("lost--x%d", i)))
		}
		alarms := 0
		for range 10 {
			for _, n := range d.after(40 * time.Minute).pass().Notes {
				if n.What == sweep.Alarmed {
					alarms++
				}
			}
		}
		if c.many != (alarms == 1) || c.many != (len(d.swept) == 0) || !c.many && len(d.swept) != c.orphans {
			t.Errorf("%+v: %d alarms, swept %v", c, alarms, d.swept)
		}
	}
}

// Records that are older than the host stop the sweep for good, until a person
// says that they count.
func TestHalt(t *testing.T) {
	d := newDesk(t).house(9).arm()
	old, stray := d.good("lost--x1"), d.good("later--x2")
	stray.marker.Lineage = "b"
	d.things = append(d.things, old, stray)
	p := d.pass()
	if len(p.Notes) != 1 || p.Notes[0].What != sweep.Halted || !strings.Contains(p.Notes[0].Why, "later--x2") {
		t.Fatalf("%+v", p.Notes)
	}
	d.known[project(t, "later--x2")] = true // it was adopted; the halt stands
	for range 5 {
		if p := d.after(time.Hour).pass(); p.Order != nil || len(p.Notes) != 0 || guardOf(p, "lost--x1") != sweep.GuardHalted {
			t.Fatalf("%+v", p)
		}
	}
	d.sweep.Halt = model.Halt{}
	if d.pass(); len(d.swept) != 1 {
		t.Error("it does not go on when a person has said so")
	}
}

// A person's wish to have something back needs no arming and bows to no halt.
func TestRestore(t *testing.T) {
	d := newDesk(t).house(9).arm()
	d.things = append(d.things, d.good("lost--x1"))
	d.pass()
	d.after(2 * time.Hour).pass()
	d.after(time.Minute).pass()
	d.sweep.Arming, d.sweep.Halt = model.Arming{}, model.Halt{At: d.now, Why: "x"}
	d.after(48 * time.Hour).pass()
	if len(d.purged) != 0 {
		t.Fatal("purged while nothing may be")
	}
	d.sweep.Aside[0].Restore = true
	d.pass()
	if p := d.after(time.Minute).pass(); len(d.restored) != 1 || len(p.Sweep.Aside) != 0 {
		t.Fatalf("%+v", p.Sweep)
	}
}

// An operation that failed, or that the host does not know, is tried again, and
// never at once.
func TestFailures(t *testing.T) {
	for _, end := range []string{"76", "lost", ""} {
		d := newDesk(t).house(9).arm()
		d.things = append(d.things, d.good("lost--x1"))
		d.pass()
		plan := sweep.Decide(d.after(2 * time.Hour).input())
		d.sweep = plan.Sweep
		d.sweep.Op.ID = "op1"
		if end != "" {
			d.ops = []string{"op1 lost--x1 sweep 3 " + end + "\n"}
		}
		p := d.after(3 * time.Minute).pass()
		if len(p.Notes) != 1 || p.Notes[0].What != sweep.Failed || p.Order != nil || p.Sweep.Suspects[0].Failed != 1 {
			t.Fatalf("%q: %+v", end, p)
		}
		d.after(50 * time.Minute).pass()
		if len(d.swept) != 0 {
			t.Errorf("%q: tried again within the hour", end)
		}
		if d.after(20 * time.Minute).pass(); len(d.swept) != 1 {
			t.Errorf("%q: never tried again", end)
		}
	}
}

// Whatever happens: nothing that a record knows of, that is dirty or not proven
// ours is ever asked for; one operation at a time, one orphan in a pass; nothing
// while it is not armed or halted; nothing within an hour of its first sight;
// and what was set aside is not removed within a day.
func TestNothingElseIsEverSwept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDesk(t).house(rapid.IntRange(0, 12).Draw(t, "homes"))
		seen := map[string]time.Time{} // how long each has been a clean orphan, without a break
		aside := map[string]time.Time{}
		for step := range rapid.IntRange(5, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 14).Draw(t, "what") {
			case 0, 1:
				th := d.good(fmt.Sprintf("o%d--x%d", step, step))
				switch rapid.IntRange(0, 6).Draw(t, "flaw") {
				case 0:
					th.git = "repository=yes\nhead=yes\nbusy=\nchanged=2\nunpushed=0\nstashes=0\n"
				case 1:
					th.marker.Lineage = "b"
				case 2:
					th.marker = nil
				case 3:
					th.stranger = true
				}
				d.things = append(d.things, th)
			case 2:
				d.arm()
				d.sweep.Halt = model.Halt{}
			case 3:
				d.sweep.Arming = model.Arming{}
			case 4:
				d.blind = !d.blind
			case 5:
				if n := len(d.things); n > 0 {
					d.known[project(t, d.things[rapid.IntRange(0, n-1).Draw(t, "row")].name)] = true
				}
			case 6:
				if n := len(d.things); n > 0 {
					delete(d.known, project(t, d.things[rapid.IntRange(0, n-1).Draw(t, "forgotten")].name))
				}
			case 7:
				if n := len(d.sweep.Aside); n > 0 {
					d.sweep.Aside[rapid.IntRange(0, n-1).Draw(t, "back")].Restore = true
				}
			}
			d.after(time.Duration(rapid.IntRange(1, 5000).Draw(t, "wait")) * time.Second)
			before, now := d.sweep, d.now
			clean := map[string]bool{}
			for _, th := range d.things {
				ok := !d.known[project(t, th.name)] && th.dir && th.git == "" && th.marker != nil && th.marker.Lineage == "a" && !th.stranger
				clean[th.name] = ok
				if !ok && !d.blind {
					delete(seen, th.name)
				} else if _, was := seen[th.name]; ok && !was && !d.blind {
					seen[th.name] = now
				}
			}
			p := d.pass()
			if p.Order == nil {
				continue
			}
			name := p.Order.Project.String()
			armed := !before.Arming.At.IsZero() && now.Before(before.Arming.Until) && p.Sweep.Halt == (model.Halt{})
			if !before.Op.IsZero() && len(p.Notes) == 0 {
				t.Fatalf("two operations: %+v %+v", before.Op, p)
			}
			switch p.Order.Op.(type) {
			case decide.Sweep:
				if !clean[name] || !armed || d.blind || now.Sub(seen[name]) < time.Hour {
					t.Fatalf("%s is swept: clean %v armed %v, known for %s", name, clean[name], armed, now.Sub(seen[name]))
				}
				aside[name] = now
			case decide.Purge:
				if !armed || now.Sub(aside[name]) < 24*time.Hour {
					t.Fatalf("%s is purged after %s, armed %v", name, now.Sub(aside[name]), armed)
				}
			case decide.Restore:
				delete(seen, name)
			default:
				t.Fatalf("%+v", p.Order)
			}
			if v := decide.VerbOf(p.Order.Op); len(v.Volumes()) != 0 {
				t.Fatal("the sweep names volumes")
			}
		}
	})
}

// What cannot be removed waits longer each time, and keeps neither what can from
// going nor an orphan from being set aside.
func TestPurgesThatFailAreNotInTheWay(t *testing.T) {
	d := newDesk(t).house(9).arm()
	d.exits = map[string]string{}
	for i := range 20 {
		p := project(t, fmt.Sprintf("old--o%02d", i))
		d.sweep.Aside = append(d.sweep.Aside, model.Aside{Project: p, Playground: p.ID(), At: noon.Add(-48 * time.Hour)})
		if i < 19 {
			d.exits[p.String()] = "76"
		}
	}
	d.things = append(d.things, d.good("lost--x1"))
	for range 90 {
		d.after(time.Minute).pass()
	}
	if !slices.Contains(d.purged, "old--o19") || len(d.swept) != 1 {
		t.Errorf("asked to purge %v, swept %v", d.purged, d.swept)
	}
	for range 24 * 60 {
		d.after(time.Minute).pass()
	}
	tries := 0
	for _, name := range d.purged {
		if name == "old--o00" {
			tries++
		}
	}
	if tries < 5 || tries > 12 {
		t.Errorf("one that cannot go was tried %d times in a day", tries)
	}
}

// A second pass over the same, with nothing done, changes nothing.
func TestFixedPoint(t *testing.T) {
	d := newDesk(t).house(9)
	d.things = append(d.things, d.good("lost--x1"), d.good("lost--x2"))
	d.pass()
	before := d.sweep
	p := d.after(time.Minute).pass()
	if p.Order != nil || len(p.Notes) != 0 || fmt.Sprint(p.Sweep) != fmt.Sprint(before) {
		t.Errorf("%+v\n%+v", before, p.Sweep)
	}
}
