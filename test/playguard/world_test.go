package playguard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/playguard/rig"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// station is one Docker daemon with a host for each Compose in front of it,
// and what must not be touched there. One row at a time has it.
type station struct {
	watch      *rig.Watch
	bystanders *rig.Bystanders
	benches    map[rig.Flavour]*bench
}

func newStation(t *testing.T, d *dockertest.Daemon, flavours ...rig.Flavour) *station {
	t.Helper()
	s := &station{watch: rig.NewWatch(t, d), benches: map[rig.Flavour]*bench{}}
	var roots []string
	for _, f := range flavours {
		b := &bench{station: s, host: rig.NewHost(t, d, f, string(f))}
		s.benches[f] = b
		roots = append(roots, b.host.Root)
	}
	s.bystanders = rig.AddBystanders(t, d, roots...)
	return s
}

// bench is one host of a station, which many rows use, one after the other.
type bench struct {
	*station
	host *rig.Host
	rows int
}

// world is what one row has: an installation of its own on the bench's host.
type world struct {
	*rig.Reconciler
	t      *testing.T
	host   *rig.Host
	docker *dockertest.Daemon
	bench  *bench
	before string
	began  time.Time
	with   []*world // other installations that the row also is
}

func (b *bench) world(t *testing.T) *world {
	t.Helper()
	b.rows++
	w := &world{t: t, bench: b, host: b.host, docker: b.host.Docker, began: time.Now()}
	w.Reconciler = rig.NewReconciler(t, b.host, model.InstallationID(fmt.Sprintf("%si%d", t.Name()[strings.IndexByte(t.Name(), '/')+1:][:2], b.rows)))
	w.before = b.bystanders.Inventory(w.Runner.Installation)
	return w
}

// check is the oracle: bystanders are as they were, and nothing was taken away
// without an operation of the current epoch.
func (w *world) check() {
	w.t.Helper()
	if diff := rig.Diff(w.before, w.bench.bystanders.Inventory(w.Runner.Installation)); diff != "" {
		w.t.Errorf("a bystander changed:\n%s", diff)
	}
	for _, e := range rig.Unexplained(w.bench.watch.Since(w.t, w.began), w.spans()) {
		w.t.Errorf("without an operation of ours: %s", e)
	}
}

// spans are the operations of everybody in the row.
func (w *world) spans() []rig.Span {
	spans := w.Ledger.Spans()
	for _, o := range w.with {
		spans = append(spans, o.spans()...)
	}
	return spans
}

// rebase accepts what a fault of the row itself did to the bystanders.
func (w *world) rebase() { w.before = w.bench.bystanders.Inventory(w.Runner.Installation) }

const forever = `[sh, -c, 'trap "exit 0" TERM; sleep 100000 & wait']`

// service is one service of a compose file. It keeps a file in its volume.
func service(name, extra string) string {
	return fmt.Sprintf("  %s:\n    image: %s\n    command: %s\n    network_mode: none\n    volumes: ['%s:/data']\n%s", name, dockertest.Image, forever, name, extra)
}

// file is a compose file of services with a volume each.
func file(services ...string) string { return fileOf(services, "") }

func fileOf(services []string, extra string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for _, s := range services {
		b.WriteString(service(s, extra))
	}
	b.WriteString("volumes:\n")
	for _, s := range services {
		fmt.Fprintf(&b, "  %s:\n", s)
	}
	return b.String()
}

// untouched fails if a step writes a state or does anything on the host.
func (w *world) untouched(steps []decide.Step) {
	w.t.Helper()
	for _, s := range steps {
		if s.Playground != "" && (s.Works() || s.Writes()) {
			w.t.Errorf("something was concluded from a look that shows nothing: %s", s)
		}
	}
}

// blind does a pass that must see nothing, for this reason, and must leave
// every record as it was.
func (w *world) blind(verdict observe.Verdict, reasons ...observe.Reason) []decide.Step {
	w.t.Helper()
	before := fmt.Sprint(w.Rows)
	steps := w.Pass()
	if w.Last.Verdict() != verdict || !slices.Contains(reasons, w.Last.Reason()) {
		w.t.Errorf("the look is %s (%s: %s), want %s (%v)", w.Last.Verdict(), w.Last.Reason(), w.Last.Detail(), verdict, reasons)
	}
	w.untouched(steps)
	if after := fmt.Sprint(w.Rows); after != before {
		w.t.Errorf("a record changed:\nwas %s\nis  %s", before, after)
	}
	return steps
}

// sees does a pass that must see everything.
func (w *world) sees() []decide.Step {
	w.t.Helper()
	steps := w.Pass()
	if w.Last.Verdict() != observe.Seen {
		w.t.Fatalf("the look is %s: %s %s", w.Last.Verdict(), w.Last.Reason(), w.Last.Detail())
	}
	return steps
}

func (w *world) state(id model.PlaygroundID, want model.State) {
	w.t.Helper()
	if p, ok := w.Rows[id]; p.State != want || !ok {
		w.t.Errorf("%s is %q (%s %+v), want %s", id, p.State, p.Reason, p.Failure, want)
	}
}

// running fails unless Docker itself shows exactly one running container of
// each service, and nothing else of the project.
func (w *world) running(p model.Playground, services ...string) {
	w.t.Helper()
	var want []string
	for _, s := range services {
		want = append(want, s+" running")
	}
	slices.Sort(want)
	if have := w.host.Containers(p.Project); !slices.Equal(have, want) {
		w.t.Errorf("the host has %q, want %q", have, want)
	}
}

func refusedBy(steps []decide.Step, id model.PlaygroundID, g decide.Guard) bool {
	return slices.ContainsFunc(steps, func(s decide.Step) bool { return s.Playground == id && s.Act == decide.Act(decide.Refuse{Guard: g}) })
}

func ruled(steps []decide.Step, r decide.Rule) bool {
	return slices.ContainsFunc(steps, func(s decide.Step) bool { return s.Rule == r })
}

// does reports whether a step starts such an operation.
func does(steps []decide.Step, kind model.OpKind) bool {
	return slices.ContainsFunc(steps, func(s decide.Step) bool {
		r, ok := s.Act.(decide.Remote)
		return ok && decide.VerbOf(r.Op).Kind() == kind
	})
}

// docker is something that a person does on the host itself.
func (w *world) hand(p model.Playground, args ...string) {
	w.t.Helper()
	w.Ledger.ByHand(p.Project.String(), func() {
		if _, err := w.docker.Docker(args...); err != nil {
			w.t.Fatal(err)
		}
	})
}

// ids lists the project's containers.
func (w *world) ids(p model.Playground) []string {
	w.t.Helper()
	return w.host.IDs(p.Project)
}
