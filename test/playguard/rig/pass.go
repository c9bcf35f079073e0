package rig

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Ledger is the table of operations, and the lease: what two reconcilers of
// one marquee share.
type Ledger struct {
	mu    sync.Mutex
	epoch uint64
	spans []Span
}

// Take takes the lease, from whoever has it.
func (l *Ledger) Take() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
	return l.epoch
}

// Spans are the operations so far.
func (l *Ledger) Spans() []Span {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.spans)
}

func (l *Ledger) begin(s Span) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Current, s.From, s.To = l.epoch, time.Now(), time.Now().Add(time.Hour)
	i := len(l.spans)
	l.spans = append(l.spans, s)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.spans[i].To = time.Now()
	}
}

// ByHand does something to a project from outside, or to anything if project
// is empty: what comes of it is not ours.
func (l *Ledger) ByHand(project string, do func()) {
	end := l.begin(Span{Op: "by hand", Project: project})
	defer end()
	do()
}

// Reconciler does passes over one host with the product's own look, decision
// and runner. Records are in memory and the clock is the test's.
type Reconciler struct {
	Host    *Host
	Runner  runner.Host
	Ledger  *Ledger
	Epoch   uint64
	Policy  model.Policy
	Marquee model.Marquee
	Now     time.Time
	Rows    map[model.PlaygroundID]model.Playground
	Jobs    map[model.PlaygroundID]decide.Job
	Last    observe.Look
	Limits  sshx.Timeouts
	Tricks  bool // what is defined are jobs
	// Patience is how often a look that was too slow is made again: a busy machine may
	// make it so.
	Patience int

	t     testing.TB
	conn  *sshx.Conn
	files map[model.PlaygroundID][]byte
	ops   int
	tag   string
}

// NewReconciler enrolls the host for an installation and pins what it is.
func NewReconciler(t testing.TB, h *Host, installation model.InstallationID) *Reconciler {
	t.Helper()
	r := &Reconciler{
		Host: h, Runner: runner.Host{Layout: h.Layout, Installation: installation}, Ledger: &Ledger{}, Policy: model.DefaultPolicy(),
		Now: time.Now(), Rows: map[model.PlaygroundID]model.Playground{}, Jobs: map[model.PlaygroundID]decide.Job{},
		Patience: 5, t: t, files: map[model.PlaygroundID][]byte{}, tag: "a",
	}
	r.Policy.EventSlack = 5 * time.Minute // a daemon may take long to start on a busy machine
	r.Epoch = r.Ledger.Take()
	t.Cleanup(r.Disconnect)
	if err := r.Runner.Enroll(t.Context(), r.Conn()); err != nil {
		t.Fatal(err)
	}
	r.Marquee = model.Marquee{ID: "mq1", Address: h.Link.Address, User: h.SSH.User, Root: h.Root, Admin: model.AdminActive, Reach: model.ReachOK}
	r.Accept()
	return r
}

// Accept pins what the host is now.
func (r *Reconciler) Accept() {
	r.t.Helper()
	r.look(r.t.Context(), model.Identity{})
	claimed, ok := r.Last.Claimed()
	if !ok {
		r.t.Fatalf("the host gives no whole answer: %s %s", r.Last.Reason(), r.Last.Detail())
	}
	r.Marquee.Identity = claimed
}

// Rival is a second reconciler of the same marquee and records, which takes
// the lease.
func (r *Reconciler) Rival() *Reconciler {
	o := *r
	o.conn, o.tag = nil, r.tag+"b"
	o.Epoch = r.Ledger.Take()
	r.t.Cleanup(o.Disconnect)
	return &o
}

// Conn is the one connection, made when it is needed.
func (r *Reconciler) Conn() *sshx.Conn {
	r.t.Helper()
	c, err := r.dial(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *Reconciler) dial(ctx context.Context) (*sshx.Conn, error) {
	if r.conn == nil {
		c, err := sshx.Dial(ctx, r.Host.Target(), r.Limits)
		if err != nil {
			return nil, err
		}
		r.conn = c
	}
	return r.conn, nil
}

// Disconnect gives the connection up.
func (r *Reconciler) Disconnect() {
	if r.conn != nil {
		r.conn.Close()
		r.conn = nil
	}
}

// Look makes one round trip, which takes as long as it takes and ends now by
// the test's clock. A connection that it lost is given up.
func (r *Reconciler) Look(ctx context.Context) observe.Trip {
	trip := r.trip(ctx)
	trip.From, trip.To = r.Now.Add(trip.From.Sub(trip.To)), r.Now
	return trip
}

func (r *Reconciler) trip(ctx context.Context) observe.Trip {
	from := time.Now()
	c, err := r.dial(ctx)
	if err != nil {
		return observe.Trip{Nonce: strings.Repeat("0", 32), Ending: sshx.EndingOf(err), Stderr: []byte(err.Error()), From: from, To: time.Now()}
	}
	trip := r.Runner.Observe(ctx, c)
	if trip.Ending != observe.EndedExit {
		r.Disconnect()
	}
	return trip
}

// Pass looks, decides and acts, waits for the end of what it started, and
// returns what it decided.
func (r *Reconciler) Pass() []decide.Step {
	r.t.Helper()
	return r.Act(r.Decide(r.t.Context()))
}

// look looks until that is not too slow, or patience ends.
func (r *Reconciler) look(ctx context.Context, pin model.Identity) {
	for n := r.Patience; ; n-- {
		r.Last = observe.Conclude(r.Look(ctx), pin)
		if n <= 0 || !r.slow() {
			return
		}
	}
}

// slow reports whether the look was ended by its time, as a whole or for one of the
// projects, or met a list that changed.
func (r *Reconciler) slow() bool {
	switch r.Last.Verdict() {
	case observe.Unseen:
		return r.Last.Reason() == observe.ReasonTimeout
	case observe.Partial:
		return r.Last.Reason() == observe.ReasonParse
	}
	all, _ := r.Last.Projects()
	return slices.ContainsFunc(all, func(p model.Project) bool {
		l := r.Last.Project(p)
		list, ok := l.Checkouts()
		return l.Verdict() != observe.Seen || !ok || slices.ContainsFunc(list, func(c observe.Checkout) bool { return strings.Contains(c.Why, "could not be looked at in time") })
	})
}

// Decide looks and decides.
func (r *Reconciler) Decide(ctx context.Context) []decide.Step {
	r.look(ctx, r.Marquee.Identity)
	in := decide.Input{Now: r.Now, Policy: r.Policy, Marquee: r.Marquee, Look: r.Last, Jobs: r.Jobs, Epoch: r.Epoch, Seed: 1}
	for _, p := range r.Rows {
		in.Playgrounds = append(in.Playgrounds, p)
	}
	return decide.Decide(in)
}

// Act carries steps out.
func (r *Reconciler) Act(steps []decide.Step) []decide.Step {
	r.t.Helper()
	for _, s := range steps {
		r.Marquee = decide.ApplyMarquee(r.Marquee, s, r.Now)
		p, ok := r.Rows[s.Playground]
		if !ok {
			continue
		}
		stamp := decide.Stamp{At: r.Now, Epoch: r.Epoch}
		if remote, isRemote := s.Act.(decide.Remote); isRemote {
			stamp.OpID = r.nextOp()
			if !r.operate(p, stamp.OpID, remote.Op) {
				continue
			}
		}
		p, ok = decide.Apply(p, s, r.Policy, stamp)
		if !ok {
			delete(r.Rows, s.Playground)
			continue
		}
		r.Rows[p.ID] = p
		if p.State == model.StatePending && s.Works() {
			r.Job(p.ID)
		}
	}
	return steps
}

// operate runs one operation to its end; false if the host refused it.
func (r *Reconciler) operate(p model.Playground, id string, op decide.Op) bool {
	r.t.Helper()
	end, err := r.Start(p, id, op)
	defer end()
	if errors.Is(err, runner.ErrSuperseded) {
		return false
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.Wait(id)
	return true
}

func (r *Reconciler) nextOp() string {
	r.ops++
	return fmt.Sprintf("op-%s-%d-%d", r.tag, r.Epoch, r.ops)
}

// Start starts an operation, and writes it into the ledger before that. end
// notes when it had ended.
func (r *Reconciler) Start(p model.Playground, id string, op decide.Op) (end func(), err error) {
	verb := decide.VerbOf(op)
	end = r.Ledger.begin(Span{Op: id, Project: p.Project.String(), Kind: verb.Kind(), Volumes: verb.Volumes(), Epoch: r.Epoch})
	req := runner.Request{Op: id, Epoch: r.Epoch, Project: p.Project, Playground: p.ID, Verb: verb, Limit: r.Policy.UpTimeout}
	if verb.Kind() == model.OpFiles {
		req.Payload = r.files[p.ID]
	}
	c, err := r.dial(r.t.Context())
	if err != nil {
		return end, err
	}
	return end, r.Runner.Start(r.t.Context(), c, req)
}

// Wait waits for the end of an operation, over as many connections as it takes.
func (r *Reconciler) Wait(id string) runner.Progress {
	r.t.Helper()
	for late := time.After(5 * time.Minute); ; {
		if c, err := r.dial(r.t.Context()); err == nil {
			pr, err := r.Runner.Poll(r.t.Context(), c, id)
			if err == nil && pr.Known && !pr.Running {
				return pr
			}
			if err != nil {
				r.Disconnect()
			}
		}
		select {
		case <-time.After(100 * time.Millisecond): // each time is a process on the host
		case <-late:
			r.t.Fatalf("operation %s does not end", id)
		}
	}
}

// Define gives a playground its compose file, as a person's up does.
func (r *Reconciler) Define(id model.PlaygroundID, file string) model.Playground {
	r.t.Helper()
	project, err := model.NewProject("app", id)
	if err != nil {
		r.t.Fatal(err)
	}
	policy := compose.Policy{}
	for _, d := range compose.Dangers() {
		policy[d] = compose.Allow
	}
	out, err := compose.Render(compose.Input{File: []byte(file), Installation: r.Runner.Installation, Playground: id, Project: project, Policy: policy, Job: r.Tricks})
	if err != nil {
		r.t.Fatal(err)
	}
	p, ok := r.Rows[id]
	if !ok {
		p = model.Playground{ID: id, Marquee: r.Marquee.ID, Project: project, Player: "alice"}
	}
	p.Intent, p.IntentSince, p.State, p.StateSince = model.IntentUp, r.Now, model.StatePending, r.Now
	p.Owed, p.Services, p.Desired = model.ActionCreate, out.Services, out.Digest
	if ok {
		p.Owed = model.ActionRollout
	}
	r.Rows[id] = p
	marker, err := model.Marker{
		Kind: model.KindPlayground, Installation: r.Runner.Installation, Marquee: r.Marquee.ID, Playground: id, Project: project, Epoch: r.Epoch, Lineage: "rig", Revision: 1,
	}.Encode()
	if err != nil {
		r.t.Fatal(err)
	}
	r.files[id] = archive(r.t, out.File, marker)
	return p
}

func archive(t testing.TB, file, marker []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	put := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	put(tar.Header{Name: "compose.yml", Mode: 0o600}, file)
	put(tar.Header{Name: ".fuse/", Typeflag: tar.TypeDir, Mode: 0o700}, nil)
	put(tar.Header{Name: ".fuse/owner.json", Mode: 0o600}, marker)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Job does what the creation job does: files, then up. What it comes to is for
// the next look.
func (r *Reconciler) Job(id model.PlaygroundID) (failure string) {
	r.t.Helper()
	p := r.Rows[id]
	p.State, p.StateSince = model.StateInProgress, r.Now
	r.Rows[id] = p
	ops := []decide.Op{decide.Files{}, decide.Up{}}
	if p.Trick != nil && p.Trick.Attempt > 1 {
		ops = []decide.Op{decide.Files{}, decide.Down{}, decide.Up{}}
	}
	for _, op := range ops {
		name := r.nextOp()
		end, err := r.Start(p, name, op)
		if err != nil {
			end()
			return err.Error()
		}
		pr := r.Wait(name)
		end()
		if pr.Status != 0 || pr.Lost {
			p.State, p.Failure = model.StateError, model.Classify(model.Symptom{Status: pr.Status, Stderr: pr.ErrText, Step: model.StepUp})
			r.Rows[id] = p
			return strings.TrimSpace(pr.ErrText)
		}
	}
	p.Op, p.AppliedAt, p.Owed = model.Op{}, r.Now, ""
	r.Rows[id], r.Jobs[id] = p, decide.JobNone
	return ""
}

// Up defines a playground, brings it up and sees it running.
func (r *Reconciler) Up(id model.PlaygroundID, file string) model.Playground {
	r.t.Helper()
	r.Define(id, file)
	if failure := r.Job(id); failure != "" {
		r.t.Fatal(failure)
	}
	for end := time.Now().Add(2 * time.Minute); ; { // until this life of the host is noted
		r.Pass()
		p := r.Rows[id]
		if p.State == model.StateRunning && p.LastUp.BootID != "" {
			break
		}
		if time.Now().After(end) {
			r.t.Fatalf("%s is %s after its up: %s %+v", id, p.State, p.Reason, p.Failure)
		}
	}
	r.Later(r.Policy.ApplyGrace + time.Second)
	return r.Rows[id]
}

// Later moves the clock.
func (r *Reconciler) Later(d time.Duration) { r.Now = r.Now.Add(d) }

// Passes does passes as far apart as two looks have to be to count, until one
// sets nothing in motion, and returns what all of them decided. A few that see
// nothing, as on a busy machine, are not the end.
func (r *Reconciler) Passes(most int) (all []decide.Step) {
	r.t.Helper()
	for blind := 0; most > 0; most-- {
		steps := r.Pass()
		all = append(all, steps...)
		r.Later(r.Policy.StrikeGap + time.Second)
		if r.Last.Verdict() != observe.Seen && blind < 3 {
			blind++
			most++
			continue
		}
		if !slices.ContainsFunc(steps, func(s decide.Step) bool {
			_, strike := s.Act.(decide.Strike)
			_, settle := s.Act.(decide.Settle)
			return strike || settle || s.Works() || s.Writes()
		}) {
			return all
		}
	}
	return all
}

// Clean removes what the installation has on the host, from outside.
func (r *Reconciler) Clean() {
	r.t.Helper()
	r.Ledger.ByHand("", func() {
		r.Host.api.remove(model.LabelInstallation, string(r.Runner.Installation))
		r.Host.api.remove(model.LabelWitness, string(r.Runner.Installation))
		markers, err := filepath.Glob(filepath.Join(r.Host.Root, "playgrounds", "*", ".fuse", "owner.json"))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, m := range markers {
			text, err := os.ReadFile(m)
			if err == nil && strings.Contains(string(text), `"`+string(r.Runner.Installation)+`"`) {
				err = os.RemoveAll(filepath.Dir(filepath.Dir(m)))
			}
			if err != nil {
				r.t.Fatal(err)
			}
		}
	})
}
