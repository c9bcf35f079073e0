package work

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
)

// Rules by which work begins that no look asks for.
const (
	RuleBranch decide.Rule = "branch.follow"
	RuleAuth   decide.Rule = "auth.write"
	RuleMark   decide.Rule = "marker.write"
)

// Steps of jobs and tasks about what a playground is made from.
const (
	StepBranch = "branch"
	StepPull   = "pull"
	StepAuth   = "auth"
	StepMark   = "mark"
)

// Payload makes what an operation is given, in the transaction that claims it.
type Payload func(tx state.Reader, p *records.Playground, marker model.Marker) ([]byte, error)

// Task is work on one playground that somebody has claimed: operations and
// changes of the record count only while the claim stands.
type Task struct {
	Site Site
	ID   model.PlaygroundID

	w     *Worker
	still func(p *records.Playground) error
	rule  decide.Rule
}

// Maker makes the definition of a playground whose source is not a person's
// files. The failure is one of the playground; an error, that nothing is known.
type Maker interface {
	Define(ctx context.Context, t Task, p records.Playground) (*model.Failure, error)
}

// Task returns work on a playground outside of its job, while still says so of
// its record. Nothing else may be at work on it.
func (w *Worker) Task(s Site, id model.PlaygroundID, rule decide.Rule, still func(p *records.Playground) error) Task {
	return Task{s, id, w, still, rule}
}

// Operate runs one operation to its end.
func (t Task) Operate(ctx context.Context, name string, op decide.Op, payload Payload) (End, error) {
	return t.w.run(ctx, t.Site, order{
		playground: t.ID, still: t.still, name: name, payload: payload,
		step: decide.Step{Playground: t.ID, Rule: t.rule, Act: decide.Remote{Op: op}, Why: name},
	})
}

// Change writes to the record.
func (t Task) Change(ctx context.Context, fn func(tx *state.Tx, p *records.Playground) error) error {
	_, err := t.w.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(t.ID))
		if !ok {
			return records.ErrMoved
		}
		if err := t.still(row); err != nil {
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

// define has a playground whose definition is not yet made get one.
func (j *job) define(ctx context.Context, p *records.Playground) (*model.Failure, error) {
	if p.Source.IsZero() || p.Desired != "" || j.Maker == nil {
		return nil, nil
	}
	t := Task{j.site, j.id, j.Worker, j.mine, RuleJob}
	if f, err := j.Maker.Define(ctx, t, *p); f != nil || err != nil {
		return f, err
	}
	return nil, j.change(ctx, func(_ *state.Tx, row *records.Playground) error {
		*p = *row
		return nil
	})
}

// pull fetches the images of what the record wants, if it says so, before
// anything of what runs is touched.
func (j *job) pull(ctx context.Context, p records.Playground) (*model.Failure, error) {
	if p.Pull == "" {
		return nil, nil
	}
	t := Task{j.site, j.id, j.Worker, j.mine, RuleJob}
	end, err := t.Operate(ctx, StepPull, decide.Pull{}, func(tx state.Reader, p *records.Playground, _ model.Marker) ([]byte, error) {
		version, err := records.OpenVersion(tx, j.Sealer, p.ID, p.Desired)
		if err != nil {
			return nil, err
		}
		when := "missing"
		if p.Pull == model.PullAlways {
			when = "always"
		}
		var list strings.Builder
		for _, image := range compose.Images(version.Compose) {
			fmt.Fprintf(&list, "%s %s\n", when, image)
		}
		login, err := j.login(tx, p)
		if err != nil {
			return nil, err
		}
		return Pack(append([]PackedFile{{Name: "images", Data: []byte(list.String())}}, login...))
	})
	return failureOf(end, err, model.StepPull)
}

// failureOf says how an operation failed, if it did.
func failureOf(end End, err error, as model.FailedStep) (*model.Failure, error) {
	var f model.Failure
	switch {
	case errors.Is(err, runner.ErrNotOurs):
		f = model.Failure{Class: model.ClassUnknown, Category: model.CategoryUnknown, Step: as, Text: clip(err.Error())}
	case errors.Is(err, records.ErrMissing):
		f = model.Failure{Class: model.ClassUser, Category: model.CategoryInvalid, Step: model.StepRender, Text: clip(err.Error())}
	case err != nil:
		return nil, err
	case end.Lost:
		f = model.Classify(model.Symptom{Cause: model.CauseInterrupted, Step: as, Stderr: "the operation ended without a word, as when its host goes down"})
	case end.Status != 0:
		f = model.Classify(model.Symptom{Status: end.Status, Step: as, Stderr: telling(end.Text)})
	default:
		return nil, nil
	}
	return &f, nil
}

// FailureOf is the failure of an operation of a task; nil if it went well.
func FailureOf(end End, as model.FailedStep) *model.Failure {
	f, _ := failureOf(end, nil, as) // there is no error to hand on
	return f
}

// login is what a marquee is given for the registries of a playground.
func (w *Worker) login(tx state.Reader, p *records.Playground) ([]PackedFile, error) {
	if w.Auth == nil {
		return nil, nil
	}
	config, err := w.Auth(tx, p)
	if err != nil || config == nil {
		return nil, err
	}
	return []PackedFile{{Name: "docker-config/config.json", Data: config}}, nil
}

// said remembers the last line of an operation under way.
func (w *Worker) said(id model.PlaygroundID, pr runner.Progress) {
	lines := strings.Split(strings.TrimSpace(pr.ErrText), "\n")
	if line := strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "runner: "); pr.Running && line != "" {
		w.progress.Store(id, clip(line))
	}
}

// Progress is what the operation under way on a playground said last, as far as
// this process follows it.
func (w *Worker) Progress(id model.PlaygroundID) string {
	text, _ := w.progress.Load(id)
	line, _ := text.(string)
	return line
}

// digestOf names what a marquee is given; empty for nothing.
func digestOf(login []PackedFile) string {
	if len(login) == 0 {
		return ""
	}
	sum := sha256.Sum256(login[0].Data)
	return hex.EncodeToString(sum[:])
}

// Owes names the registry credentials that a marquee should have for a playground,
// as the record's Auth names those that it has; empty for none.
func (w *Worker) Owes(tx state.Reader, p *records.Playground) (string, error) {
	login, err := w.login(tx, p)
	return digestOf(login), err
}

// WriteAuth gives a marquee what it should have for a playground's registries, or
// takes it away.
func (t Task) WriteAuth(ctx context.Context) (End, error) {
	var digest string
	end, err := t.Operate(ctx, StepAuth, decide.Auth{}, func(tx state.Reader, p *records.Playground, _ model.Marker) ([]byte, error) {
		login, err := t.w.login(tx, p)
		if err != nil {
			return nil, err
		}
		digest = digestOf(login)
		return Pack(append([]PackedFile{{Name: "auth"}}, login...))
	})
	if err != nil || end.Lost || end.Status != 0 {
		return end, err
	}
	return end, t.Change(ctx, func(_ *state.Tx, p *records.Playground) error {
		p.Auth = digest
		return nil
	})
}

// Mark has the marquee keep the owner marker as the record has it now.
func (t Task) Mark(ctx context.Context) (End, error) {
	return t.Operate(ctx, StepMark, decide.Mark{}, func(_ state.Reader, _ *records.Playground, m model.Marker) ([]byte, error) {
		raw, err := m.Encode()
		if err != nil {
			return nil, err
		}
		return Pack([]PackedFile{{Name: ".fuse/owner.json", Data: raw}})
	})
}

// PackedFile is a file of a payload, for the runner alone to read.
type PackedFile struct {
	Name string
	Data []byte
}

// Pack makes the archive that an operation is given.
func Pack(files []PackedFile) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	var err error
	made := map[string]bool{}
	for _, f := range files {
		for _, dir := range slices.Backward(parents(f.Name)) {
			if !made[dir] {
				made[dir] = true
				err = errors.Join(err, w.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o700}))
			}
		}
		if err = errors.Join(err, w.WriteHeader(&tar.Header{Name: f.Name, Mode: 0o600, Size: int64(len(f.Data))})); err == nil {
			_, err = w.Write(f.Data)
		}
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("pack a payload: %w", err)
	}
	return buf.Bytes(), nil
}
