package work

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Rules by which jobs act.
const (
	RuleJob      decide.Rule = "job.step"
	RuleDone     decide.Rule = "job.done"
	RuleFailed   decide.Rule = "job.failed"
	RuleRollback decide.Rule = "job.rollback"
)

// Steps of a job, as the record shows them.
const (
	stepFiles    = "files"
	stepDown     = "down"
	stepUp       = "up"
	stepHealth   = "health"
	stepRollback = "rollback"
)

// job brings a playground to what its record wants.
type job struct {
	*Worker
	site Site
	id   model.PlaygroundID
	name string // what the record's Job says while it is this one's
}

// Job makes what a pending playground is owed: its files, then up, until it is
// healthy. A definition that does not come up where another one was at work
// gives way to that. One that is not pending, or that another job claims first,
// is left alone. The error is why the job stopped without an end to write.
func (w *Worker) Job(ctx context.Context, s Site, id model.PlaygroundID) error {
	select { // an operation that is still followed ends first
	case s.Ops <- struct{}{}:
		<-s.Ops
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	j := &job{w, s, id, uid.New()}
	p, err := j.begin(ctx)
	if err != nil {
		return err
	}
	failure, err := j.define(ctx, &p)
	if failure == nil && err == nil {
		failure, err = j.make(ctx, p)
	}
	switch {
	case err != nil:
		return err
	case failure != nil && failure.Step == model.StepPull && p.Applied != "" && p.Owed == model.ActionRollout:
		return j.stay(ctx, *failure)
	case failure == nil:
		return j.done(ctx, p.Applied != "" && p.Applied != p.Desired, "")
	case p.Applied != "" && p.Applied != p.Desired:
		return j.rollback(ctx, *failure)
	}
	return j.fail(ctx, *failure)
}

// begin claims the record.
func (j *job) begin(ctx context.Context) (p records.Playground, err error) {
	_, err = j.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(j.id))
		if !ok || row.State != model.StatePending || !row.Op.IsZero() {
			return records.ErrMoved
		}
		if err := InUse(tx, j.site.Marquee); err != nil {
			return err
		}
		p = *row
		p.Job = j.name
		j.move(tx, &p, decide.Step{Rule: RuleJob, Act: decide.Move{From: p.State, To: model.StateInProgress}, Why: string(p.Owed)})
		return records.PutPlayground(tx, p)
	})
	return p, err
}

// move applies a change of state, and tells of it.
func (j *job) move(tx *state.Tx, p *records.Playground, s decide.Step) {
	s.Playground = p.ID
	p.Playground, _ = decide.Apply(p.Playground, s, j.Policy, decide.Stamp{At: tx.Now(), Epoch: j.site.Epoch})
	records.Moved(tx, p, s, j.site.Epoch)
}

// mine reports whether the record is still this job's. Who asks for something
// else takes it away.
func (j *job) mine(p *records.Playground) error {
	if p.Job != j.name || p.State != model.StateInProgress {
		return records.ErrMoved
	}
	return nil
}

func (j *job) still() error {
	return j.Store.View(func(tx *state.ReadTx) error {
		p, ok := records.Playgrounds.Get(tx, string(j.id))
		if !ok {
			return records.ErrMoved
		}
		if err := InUse(tx, j.site.Marquee); err != nil {
			return err
		}
		return j.mine(p)
	})
}

// change writes to the record if it is still this job's.
func (j *job) change(ctx context.Context, fn func(tx *state.Tx, p *records.Playground) error) error {
	_, err := j.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(j.id))
		if !ok {
			return records.ErrMoved
		}
		if err := j.mine(row); err != nil {
			return err
		}
		p := *row
		if err := fn(tx, &p); err != nil {
			return err
		}
		return records.PutPlayground(tx, p)
	})
	return err
}

// make brings up what the record wants.
func (j *job) make(ctx context.Context, p records.Playground) (*model.Failure, error) {
	steps := []struct {
		name string
		op   decide.Op
		as   model.FailedStep
	}{{stepFiles, decide.Files{}, ""}, {stepDown, decide.Down{}, model.StepDown}, {stepUp, decide.Up{}, model.StepUp}}
	if f, err := j.pull(ctx, p); f != nil || err != nil {
		return f, err
	}
	for _, s := range steps {
		if s.name == stepDown && p.Owed != model.ActionHardRestart && !triedBefore(p) {
			continue
		}
		if f, err := j.operation(ctx, s.name, s.op, s.as); f != nil || err != nil {
			return f, err
		}
		if s.name == stepDown && p.Trick != nil {
			if err := j.cleared(ctx); err != nil {
				return nil, err
			}
		}
	}
	if err := j.change(ctx, func(_ *state.Tx, p *records.Playground) error {
		p.Step = stepHealth
		return nil
	}); err != nil {
		return nil, err
	}
	if p.Trick != nil { // it runs to its end; nobody waits for its health
		return nil, j.still()
	}
	return j.gate(ctx, j.site, goalOf(p), j.still)
}

// triedBefore reports whether containers of an earlier attempt of a trick are to
// go first.
func triedBefore(p records.Playground) bool {
	return p.Trick != nil && p.Trick.Attempt > 1 && p.Trick.Cleared != p.Trick.Attempt
}

// cleared writes that what is there from now on is the present attempt's: a job that
// goes on with it takes nothing of it away.
func (j *job) cleared(ctx context.Context) error {
	return j.change(ctx, func(_ *state.Tx, p *records.Playground) error {
		t := *p.Trick
		t.Cleared = t.Attempt
		p.Trick = &t
		return nil
	})
}

// operation runs one step and says how it failed, if it did.
func (j *job) operation(ctx context.Context, name string, op decide.Op, as model.FailedStep) (*model.Failure, error) {
	end, err := j.run(ctx, j.site, order{
		playground: j.id, still: j.mine, name: name,
		step: decide.Step{Playground: j.id, Rule: RuleJob, Act: decide.Remote{Op: op}, Why: name},
	})
	return failureOf(end, err, as)
}

// done writes that it runs.
func (j *job) done(ctx context.Context, newDefinition bool, why string) error {
	return j.change(ctx, func(tx *state.Tx, p *records.Playground) error {
		digest := p.Desired
		p.Job, p.Step = "", ""
		if newDefinition {
			p.LastRollout = &records.Rollout{At: tx.Now(), Digest: digest, Result: records.RolloutDone}
			records.Tell(tx, p, records.Note{
				Type: fleet.EventPlaygroundRolledOut, Reason: records.ByLoop(fleet.RuleSettled, ""), Payload: map[string]string{"digest": digest},
			})
		}
		j.move(tx, p, decide.Step{Rule: RuleDone, Act: decide.Move{From: p.State, To: model.StateRunning}, Why: why})
		return nil
	})
}

// fail writes that it could not be made. What is temporary is tried again by
// the loop.
func (j *job) fail(ctx context.Context, f model.Failure) error {
	return j.change(ctx, func(tx *state.Tx, p *records.Playground) error {
		p.Job, p.Step = "", ""
		j.move(tx, p, decide.Step{Rule: RuleFailed, Act: decide.Move{From: p.State, To: model.StateError, Failure: f}, Why: f.Text})
		return nil
	})
}

// rollback goes back to the definition that was at work before. The record
// wants that one from here on, whatever becomes of this job.
func (j *job) rollback(ctx context.Context, failure model.Failure) error {
	var p records.Playground
	err := j.change(ctx, func(tx *state.Tx, row *records.Playground) error {
		if err := j.back(tx, row, failure); err != nil {
			return err
		}
		row.Owed, row.Step = model.ActionRetryCompose, stepRollback
		p = *row
		return nil
	})
	if err != nil {
		return err
	}
	for _, op := range []decide.Op{decide.Files{}, decide.Up{}} {
		if f, err := j.operation(ctx, stepRollback, op, model.StepUp); err != nil {
			return err
		} else if f != nil {
			return j.fail(ctx, also(*f, failure))
		}
	}
	f, err := j.gate(ctx, j.site, goalOf(p), j.still)
	switch {
	case err != nil:
		return err
	case f != nil:
		return j.fail(ctx, also(*f, failure))
	}
	return j.done(ctx, false, "the new definition did not come up: "+failure.Text)
}

// back writes that a definition did not come up, and that the one before is
// wanted.
func (j *job) back(tx *state.Tx, row *records.Playground, failure model.Failure) error {
	before, err := records.OpenVersion(tx, j.Sealer, row.ID, row.Applied)
	if err != nil {
		return err
	}
	row.LastRollout = &records.Rollout{At: tx.Now(), Digest: row.Desired, Result: records.RolloutFailed, Failure: failure}
	records.Tell(tx, row, records.Note{
		Type: fleet.EventPlaygroundRolloutFailed, Reason: records.ByLoop(fleet.RuleSettled, string(failure.Category)), Error: failure.Text,
		Payload: map[string]string{"digest": row.Desired, "stays": row.Applied, "category": string(failure.Category)},
	})
	row.Desired, row.Services, row.Volumes = before.Digest, before.Services, before.Volumes
	if failure.Temporary() {
		row.Source.Commit = "" // its branch is read again, once that may help
	}
	return nil
}

// stay goes back to the definition that was at work before where nothing of it
// was touched yet.
func (j *job) stay(ctx context.Context, failure model.Failure) error {
	if err := j.change(ctx, func(tx *state.Tx, row *records.Playground) error { return j.back(tx, row, failure) }); err != nil {
		return err
	}
	return j.done(ctx, false, "nothing was touched, for images could not be pulled: "+failure.Text)
}

// also tells of both failures.
func also(f, first model.Failure) model.Failure {
	f.Text = clip(fmt.Sprintf("%s; that was after a rollout had failed: %s", strings.TrimSuffix(f.Text, "."), first.Text))
	return f
}

// Ordinary reports whether an end of work without a result is nothing to be
// logged as an error.
func Ordinary(err error) (level slog.Level, ordinary bool) {
	switch {
	case errors.Is(err, records.ErrMoved), errors.Is(err, runner.ErrSuperseded), errors.Is(err, context.Canceled):
		return slog.LevelInfo, true
	case errors.Is(err, ErrLost), errors.Is(err, ErrUnknown), errors.Is(err, fleet.ErrNotLeader):
		return slog.LevelWarn, true
	}
	return slog.LevelError, false
}
