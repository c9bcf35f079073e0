package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// order is one operation that is wanted.
type order struct {
	playground model.PlaygroundID
	step       decide.Step // its Act is a Remote; what it costs is charged with the claim
	// still is asked in the transaction that claims: whether the record is what
	// the order was given for.
	still func(p *records.Playground) error
	name  string // of the job's step; empty outside of jobs
	// payload makes what the operation is given; nil: files get the definition.
	payload Payload
}

// End is how an operation ended.
type End struct {
	Lost   bool
	Status int
	Text   string
}

// Operate carries out a step of a pass, decided on the record of that revision.
func (w *Worker) Operate(ctx context.Context, s Site, step decide.Step, revision uint64) (End, error) {
	return w.run(ctx, s, order{playground: step.Playground, step: step, still: func(p *records.Playground) error {
		if p.Revision != revision {
			return records.ErrMoved
		}
		return nil
	}})
}

// busyTime is how long a marquee may say that it is busy, with an operation
// that was left behind, and busyPause the time between the tries.
const (
	busyTime  = 6 * time.Minute
	busyPause = 5 * time.Second
)

// run takes the marquee's turn, claims, starts and follows an operation.
func (w *Worker) run(ctx context.Context, s Site, o order) (End, error) {
	select {
	case s.Ops <- struct{}{}:
	case <-ctx.Done():
		return End{}, context.Cause(ctx)
	}
	defer func() { <-s.Ops }()
	t := try{id: strings.ToLower(uid.New())}
	for begun := time.Now(); ; {
		end, err := w.once(ctx, s, o, t)
		if !errors.Is(err, runner.ErrBusy) {
			return end, err
		}
		t.again = true
		if time.Since(begun) < busyTime {
			if err = pause(ctx, busyPause); err == nil {
				continue
			}
		}
		return End{}, errors.Join(err, w.gaveUp(ctx, o.playground, t.id))
	}
}

// try is one of the tries of an operation. People are told of the first that it was
// started, and of the last how it ended.
type try struct {
	id    string
	again bool
}

func (w *Worker) once(ctx context.Context, s Site, o order, t try) (End, error) {
	p, req, err := w.claim(ctx, s, o, t)
	if err != nil {
		if t.again { // it ends with the refusal before
			err = errors.Join(err, w.gaveUp(ctx, o.playground, t.id))
		}
		return End{}, err
	}
	call, cancel, err := w.lead(ctx)
	if err != nil {
		return End{}, err
	}
	err = s.Host.Start(call, req)
	cancel()
	if err != nil && refused(err) {
		quiet := errors.Is(err, runner.ErrBusy)
		if !quiet {
			w.Ended(req.Verb.Kind(), EndedRefused)
		}
		if uerr := w.unclaim(ctx, p, req.Op, err, quiet); uerr != nil {
			return End{}, errors.Join(err, uerr)
		}
		return End{}, err
	}
	// Without an answer it may have begun all the same.
	return w.follow(ctx, s, p.ID, req, err == nil)
}

// claim writes that an operation is about to be asked for.
func (w *Worker) claim(ctx context.Context, s Site, o order, t try) (p records.Playground, req runner.Request, err error) {
	remote, ok := o.step.Act.(decide.Remote)
	if !ok {
		return p, req, fmt.Errorf("step %s starts no operation", o.step)
	}
	verb := decide.VerbOf(remote.Op)
	req = runner.Request{Op: t.id, Epoch: s.Epoch, Verb: verb, Limit: w.limit(verb.Kind())}
	_, err = w.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(o.playground))
		if !ok {
			return records.ErrMoved
		}
		if err := o.still(row); err != nil {
			return err
		}
		if err := InUse(tx, s.Marquee); err != nil {
			return err
		}
		if !row.Op.IsZero() {
			return records.ErrMoved
		}
		p = *row
		p.Playground, _ = decide.Apply(p.Playground, o.step, w.Policy, decide.Stamp{At: tx.Now(), OpID: req.Op, Epoch: s.Epoch})
		p.Step = o.name
		if o.payload != nil {
			if req.Payload, err = o.payload(tx, &p, w.marker(tx, s, p)); err != nil {
				return err
			}
		} else if verb.Kind() == model.OpFiles {
			version, err := records.OpenVersion(tx, w.Sealer, p.ID, p.Desired)
			if err != nil {
				return err
			}
			login, err := w.login(tx, &p)
			if err != nil {
				return err
			}
			p.Auth = digestOf(login)
			if req.Payload, err = payload(version, w.marker(tx, s, p), login); err != nil {
				return err
			}
		}
		if row, ok := records.Marquees.Get(tx, string(p.Marquee)); ok && removes(verb.Kind()) && row.Policy[compose.DangerHostMount] == compose.Allow {
			req.Payload = runner.ByDaemon
		}
		op := records.Operation{
			ID: req.Op, Playground: p.ID, Marquee: p.Marquee, Kind: verb.Kind(), Why: string(o.step.Rule), Epoch: s.Epoch,
			Volumes: verb.Volumes(), StartedAt: tx.Now(),
		}
		if !t.again {
			records.Tell(tx, &p, records.Note{
				Type: fleet.EventPlaygroundOperationStarted, Reason: records.ByLoop(fleet.RuleSettled, o.step.Why), Payload: told(op),
			})
		}
		return errors.Join(records.PutOperation(tx, op), records.PutPlayground(tx, p))
	})
	req.Project, req.Playground = p.Project, p.ID
	return p, req, err
}

func told(op records.Operation) events.PlaygroundOperation {
	return events.PlaygroundOperation{
		ID: op.ID, Kind: string(op.Kind), Marquee: string(op.Marquee), Epoch: op.Epoch, Volumes: op.Volumes,
		Status: op.Status, Lost: op.Lost, Refused: op.Refused,
	}
}

func (w *Worker) marker(tx *state.Tx, s Site, p records.Playground) model.Marker {
	m := model.Marker{
		Kind: model.KindPlayground, Installation: w.Installation, Marquee: s.Marquee, Playground: p.ID,
		Project: p.Project, Epoch: s.Epoch, CreatedAt: p.CreatedAt, Revision: tx.Revision() + 1, Name: p.Name, Owner: p.Owner,
		Branch: p.Source.Marked(), Expires: p.Expiry.At,
	}
	if row, ok := records.Marquees.Get(tx, string(s.Marquee)); ok {
		m.Installation, m.Lineage = row.Known(w.Installation), row.Lineage(s.Epoch)
	}
	return m
}

// limit is how long an operation may take on the host.
func (w *Worker) limit(k model.OpKind) time.Duration {
	switch k {
	case model.OpUp:
		return w.Policy.UpTimeout
	case model.OpPull, model.OpBranch:
		return w.Policy.PullTimeout
	}
	return w.Policy.DownTimeout
}

// unclaim writes that a marquee did not begin an operation; quietly, if it is to be
// asked again.
func (w *Worker) unclaim(ctx context.Context, p records.Playground, id string, why error, quiet bool) error {
	_, err := w.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(p.ID))
		if !ok || row.Op.ID != id {
			return nil
		}
		q := *row
		q.Op = model.Op{}
		if op, ok := records.GetOperation(tx, p.ID, id); ok {
			op.EndedAt, op.Refused, op.Text = tx.Now(), true, clip(why.Error())
			if err := records.PutOperation(tx, op); err != nil {
				return err
			}
			if !quiet {
				tellRefused(tx, &q, op)
			}
		}
		return records.PutPlayground(tx, q)
	})
	return err
}

func tellRefused(tx *state.Tx, p *records.Playground, op records.Operation) {
	records.Tell(tx, p, records.Note{
		Type: fleet.EventPlaygroundOperationEnded, Reason: records.ByLoop(fleet.RuleRefused, ""), Error: op.Text, Payload: told(op),
	})
}

// tellTime bounds how long it is tried to tell of an end while the server itself ends.
const tellTime = 5 * time.Second

// gaveUp tells of an operation that is not asked for again that it ended.
func (w *Worker) gaveUp(ctx context.Context, id model.PlaygroundID, op string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTime)
	defer cancel()
	_, err := w.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(id))
		last, known := records.GetOperation(tx, id, op)
		if !ok || !known || !last.Refused {
			return nil
		}
		w.Ended(last.Kind, EndedRefused)
		tellRefused(tx, row, last)
		return nil
	})
	return err
}

// follow asks for an operation until it has ended, and writes that down. One
// that the marquee does not know, though nobody heard it refuse, is lost after
// a while: a start may still be on the way.
func (w *Worker) follow(ctx context.Context, s Site, id model.PlaygroundID, req runner.Request, begun bool) (End, error) {
	deadline := time.Now().Add(req.Limit + w.Policy.StaleFast)
	asked := time.Now()
	defer w.progress.Delete(id)
	for overtaken := false; ; {
		if err := w.inUse(s); err != nil { // its claim stands until the marquee is back
			return End{}, err
		}
		overtaken = overtaken || w.Overtake(ctx, s, id, req.Op)
		pr, err := s.Host.Poll(ctx, req.Op)
		w.said(id, pr)
		switch {
		case err != nil:
		case pr.Known && !pr.Running:
			return w.settle(ctx, id, req.Op, End{Lost: pr.Lost, Status: pr.Status, Text: pr.ErrText})
		case !pr.Known && (begun || time.Since(asked) > w.Policy.StaleFast):
			return w.settle(ctx, id, req.Op, End{Lost: true})
		}
		if end, done := w.ended(id, req.Op); done { // a pass saw its end first
			return end, nil
		}
		if time.Now().After(deadline) {
			return End{}, ErrUnknown
		}
		if err := pause(ctx, w.Policy.HealthInterval); err != nil {
			return End{}, err
		}
	}
}

// Overtaken reports whether an operation is at work that brings a playground up
// which people want stopped or gone by now.
func Overtaken(p model.Playground) bool {
	switch p.Op.Kind {
	case model.OpUp, model.OpPull, model.OpBranch:
		return p.Intent == model.IntentStopped || p.Intent == model.IntentGone
	}
	return false
}

// Overtake tells a playground's operation to end if it is overtaken; true if it was
// told. Its end is followed, or seen, like any other.
func (w *Worker) Overtake(ctx context.Context, s Site, id model.PlaygroundID, op string) bool {
	overtaken := false
	_ = w.Store.View(func(tx *state.ReadTx) error { // the closure never fails
		p, ok := records.Playgrounds.Get(tx, string(id))
		overtaken = ok && p.Op.ID == op && Overtaken(p.Playground) && InUse(tx, s.Marquee) == nil
		return nil
	})
	host, can := s.Host.(Canceller)
	if !overtaken || !can {
		return false
	}
	call, cancel, err := w.lead(ctx)
	if err != nil {
		return false
	}
	defer cancel()
	if err := host.Cancel(call, s.Epoch, op); err != nil {
		w.Logger.Warn("an operation that nobody wants could not be cancelled", "marquee", s.Marquee, "playground", id, "operation", op, "error", err)
		return false
	}
	return true
}

// ended reports what is written of an operation that somebody else settled.
func (w *Worker) ended(p model.PlaygroundID, id string) (end End, done bool) {
	_ = w.Store.View(func(tx *state.ReadTx) error { // the closure never fails
		if op, ok := records.GetOperation(tx, p, id); !ok || !op.EndedAt.IsZero() {
			end, done = End{Lost: op.Lost || !ok, Status: op.Status, Text: op.Text}, true
		}
		return nil
	})
	return end, done
}

func (w *Worker) settle(ctx context.Context, p model.PlaygroundID, id string, end End) (End, error) {
	_, err := w.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(p))
		if !ok || row.Op.ID != id {
			return nil
		}
		q := *row
		if err := w.Settle(tx, &q, id, end); err != nil {
			return err
		}
		return records.PutPlayground(tx, q)
	})
	return end, err
}

// Settle writes the end of an operation into its playground's record, which the
// caller puts, and into its own.
func (w *Worker) Settle(tx *state.Tx, p *records.Playground, id string, end End) error {
	before, step := p.Playground, decide.Step{Playground: p.ID, Rule: decide.RuleOp, Act: decide.Settle{Op: id, Lost: end.Lost, Exit: end.Status}}
	p.Playground, _ = decide.Apply(p.Playground, step, w.Policy, decide.Stamp{At: tx.Now()})
	records.Ended(tx, before, p, step, before.Op.Epoch)
	op, ok := records.GetOperation(tx, p.ID, id)
	if !ok {
		return nil
	}
	op.EndedAt, op.Lost, op.Status = tx.Now(), end.Lost, end.Status
	if !end.Lost && end.Status != 0 {
		op.Text = clip(telling(end.Text))
	}
	limit := w.limit(op.Kind)
	tooLate := late(op, limit)
	if tooLate && op.Text == "" {
		op.Text = fmt.Sprintf("its time of %s was over", limit)
	}
	w.Ended(op.Kind, result(op.Lost, op.Status, tooLate))
	records.Tell(tx, p, records.Note{
		Type: fleet.EventPlaygroundOperationEnded, Reason: records.ByLoop(fleet.RuleSettled, ""), Error: op.Text, Payload: told(op),
	})
	if tooLate {
		overran(w.Logger, tx, p, op, limit)
	}
	if err := records.PutOperation(tx, op); err != nil {
		return err
	}
	return destroyGivenUp(tx, p, op)
}

// destroyTries is how many destroys in a row may fail before people are told.
// It is tried on.
const destroyTries = 5

func removes(kind model.OpKind) bool { return kind == model.OpDestroy || kind == model.OpReclaim }

func destroys(op records.Operation) bool { return removes(op.Kind) }

func destroyGivenUp(tx *state.Tx, p *records.Playground, last records.Operation) error {
	if !destroys(last) || !last.Lost && last.Status == 0 || last.Status == decide.ExitHolds {
		return nil
	}
	failed := 0
	for _, op := range slices.Backward(records.Operations(tx, p.ID)) {
		if !destroys(op) || !op.Lost && op.Status == 0 {
			break
		}
		failed++
	}
	if failed < destroyTries && last.Status != decide.ExitLeft { // which no try changes
		return nil
	}
	return tx.UpsertDeadLetter(fleet.DeadLetter{
		Kind: fleet.DeadLetterPlaygroundDestruction, EntityID: string(p.ID),
		Reason: fmt.Sprintf("%d destroys in a row failed, the last with status %d: %s", failed, last.Status, last.Text),
	})
}

// trouble finds the lines by which Compose says what went wrong, among those
// by which it says what goes on.
var trouble = []string{"error", "failed", "cannot", "denied", "no such", "not found", "no space", "invalid", "unhealthy", "conflict"}

// telling puts the most telling line of a command's error text first.
func telling(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range slices.Backward(lines) {
		low := strings.ToLower(lines[i])
		if slices.ContainsFunc(trouble, func(w string) bool { return strings.Contains(low, w) }) {
			return strings.TrimSpace(lines[i]) + "\n" + text
		}
	}
	return strings.TrimSpace(lines[len(lines)-1]) + "\n" + text
}

// clip takes the first line of a text, within bounds.
func clip(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 300 {
		line = strings.ToValidUTF8(line[:300], "") + "…"
	}
	return line
}
