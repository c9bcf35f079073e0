package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/tracing"
)

// recipe does what the steps of a create say.
type recipe struct{ *core }

// step is one named part of a create. Undo runs when this step or a later one
// failed, in reverse order, and must cope with a step that did nothing or was
// not heard of again; nil where an earlier step's undo covers it. An undo that
// fails ends the undoing: what earlier steps made must outlive it.
type step struct {
	name string
	run  func(ctx context.Context, b *build) error
	undo func(ctx context.Context, b *build, cause error) error
}

// steps is a create from beginning to end. The first two run while the
// caller waits, the rest in the service's own time.
func (s *recipe) steps() []step {
	return []step{
		{name: StepCredentials, run: s.makeCredentials},
		{name: StepPlace, run: s.place, undo: s.undoPlace},
		{name: StepHostCreate, run: s.hostCreate, undo: s.undoHostCreate},
		{name: StepProfileFiles, run: s.uploadProfile},
		{name: StepCallerFiles, run: s.uploadCallerFiles},
		{name: StepExpose, run: s.expose},
		{name: StepStartupScript, run: s.startupScript},
		{name: StepSettle, run: s.settleCreate},
	}
}

// build is one create on its way. One goroutine at a time owns it.
type build struct {
	plan
	id, uid, taskID string
	owner, actor    string
	keyID           string            // of the API key that asks
	refused         map[string]string // hosts that would not make it, with why
	generation      int64
	idempotency     *state.Idempotency
	leave           func() // gives back its place among those in flight
	fork            *Fork  // nil: it begins by itself
	seed            Seed   // with an empty id: it begins with an image

	creds       secrets.VMCredentials
	tokenSealed []byte
	bootSealed  []byte
	hostID      string
	created     provider.Created
	startupLog  *fleet.StartupLog
	endpoints   []fleet.Endpoint
	record      fleet.BootRecord
	claimed     *fleet.VM // the row as the claim committed it
	vm          *fleet.VM // the row as last committed by this create
	began       time.Time
	begun       int // how many steps began
	progress    *progress
	span        tracing.Span // of the whole create
}

func (b *build) ref() provider.Ref {
	return provider.Ref{ID: b.id, UID: b.uid, Generation: b.generation, OpID: newULID()}
}

// redact takes the caller's secrets out of text.
func (b *build) redact(text string) string { return secrets.Redact(text, b.boot.Secrets) }

// advance runs steps up to and including the named one and stops at the first
// that fails.
func (s *creator) advance(ctx context.Context, b *build, last string) error {
	for b.begun < len(s.steps) {
		st := s.steps[b.begun]
		b.begun++
		if err := s.runStep(ctx, b, st); err != nil {
			return err
		}
		if st.name == last {
			return nil
		}
	}
	return fmt.Errorf("create has no step %q left", last)
}

func (s *creator) runStep(ctx context.Context, b *build, st step) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, span := tracing.Start(ctx, "create "+st.name)
	span.Set(tracing.VMID, b.id)
	defer func() {
		span.Set(tracing.HostID, b.hostID)
		span.End(err)
	}()
	defer s.recovered(b.id, st.name, &err)
	b.progress.emit(Progress{Step: st.name})
	start := time.Now()
	if err := failpoint.Hit("lifecycle.create." + st.name); err != nil {
		return err
	}
	if err := st.run(ctx, b); err != nil {
		return err
	}
	took := time.Since(start)
	b.record.Steps = append(b.record.Steps, fleet.StepTime{Step: st.name, Took: took})
	b.progress.emit(Progress{Step: st.name, Done: true, Took: took})
	return nil
}

// recovered turns a panic into the error of the step it happened in, so that
// the step is undone like any other failure.
func (s *core) recovered(id, name string, err *error) {
	if r := recover(); r != nil {
		s.log.Error("step panicked", slog.String("vm_id", id), slog.String("step", name),
			slog.String("stack", string(debug.Stack())))
		*err = fmt.Errorf("step %s panicked", name)
	}
}

// undo takes back what the begun steps made, last first. It reports what kept
// it from finishing; the row then says destroying and the loop goes on trying.
func (s *creator) undo(b *build, cause error) error {
	for i := b.begun - 1; i >= 0; i-- {
		if s.steps[i].undo == nil {
			continue
		}
		if err := s.undoStep(b, s.steps[i], cause); err != nil {
			return fmt.Errorf("undo %s: %w", s.steps[i].name, err)
		}
	}
	return nil
}

func (s *creator) undoStep(b *build, st step, cause error) (err error) {
	ctx, span := tracing.Start(b.span.In(s.base), "undo "+st.name)
	span.Set(tracing.VMID, b.id)
	defer func() { span.End(err) }()
	defer s.recovered(b.id, "undo "+st.name, &err)
	return st.undo(ctx, b, cause)
}

// progress passes steps on to a caller until the caller leaves.
type progress struct {
	mu sync.Mutex
	fn func(Progress) // guarded by mu
}

func (p *progress) emit(ev Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fn != nil {
		p.fn(ev)
	}
}

func (p *progress) detach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fn = nil
}
