package branch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// Git is what a marquee says of repositories, by sessions that change nothing.
type Git interface {
	Remote(ctx context.Context, payload []byte) (commit string, err error)
	Branches(ctx context.Context, payload []byte) ([]string, error)
	Tree(ctx context.Context, p model.Project, checkout string, paths ...string) (commit string, list []runner.Entry, err error)
	Blobs(ctx context.Context, p model.Project, checkout string, files []runner.Entry) ([][]byte, error)
}

// Config wires a Follower.
type Config struct {
	Store        records.Store
	Sealer       records.Sealer
	Installation model.InstallationID
	Policy       model.Policy
	Logger       *slog.Logger
	Host         func(m records.Marquee) Git
	// Begin starts the job of a playground; Kick has a marquee looked at.
	Begin func(m model.MarqueeID, p model.PlaygroundID)
	Kick  func(m model.MarqueeID)
	// Followed is told what came of asking a server and of going forward. May be nil.
	Followed func(what, result string)
	// MaxStored bounds the definitions of an owner in bytes.
	MaxStored int
}

// Follower has playgrounds follow their branches. It is safe for concurrent use.
type Follower struct {
	Config
	Worker *work.Worker // set after New, since the worker asks the Follower too

	mu     sync.Mutex
	heard  map[model.PlaygroundID]Heard
	tidied time.Time // when those that are gone were last dropped from it
	asking map[lane]bool
}

// New makes a Follower.
func New(c Config) *Follower {
	if c.Followed == nil {
		c.Followed = func(string, string) {}
	}
	return &Follower{Config: c, heard: map[model.PlaygroundID]Heard{}, asking: map[lane]bool{}}
}

// payload is what a marquee is given to reach a repository.
func (f *Follower) payload(tx state.Reader, p *records.Playground, marker []byte) ([]byte, error) {
	src := p.Source
	files := []work.PackedFile{
		{Name: "branch/name", Data: []byte(src.Checkout)}, {Name: "branch/url", Data: []byte(src.Repository)},
		{Name: "branch/ref", Data: []byte(src.Branch)}, {Name: "branch/depth", Data: fmt.Append(nil, src.Depth)},
	}
	if marker != nil {
		files = append(files, work.PackedFile{Name: ".fuse/owner.json", Data: marker})
	}
	if u, err := url.Parse(src.Repository); err == nil && u.Scheme == "http" && credential.Loopback(u.Hostname()) {
		files = append(files, work.PackedFile{Name: "branch/plain"})
	}
	if src.Submodules {
		files = append(files, work.PackedFile{Name: "branch/submodules"})
	}
	if src.Force {
		files = append(files, work.PackedFile{Name: "branch/force"})
	}
	if p.Claimed && src.Secret != "" {
		return nil, fleet.Errorf(fleet.CodeForbidden, "playground %s was adopted, and only its marker says that it is %s's: secret %s is not used for it", p.Name, p.Owner, src.Secret).
			With(fleet.DetailRemedy, "have its owner say again by which branch it goes, with the same name, repository and secret")
	}
	secret, err := credential.GitCredential(tx, f.Sealer, p.Owner, src)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(secret)) {
		files = append(files, work.PackedFile{Name: "branch/" + name, Data: secret[name]})
	}
	return work.Pack(files)
}

// result is what came of having a checkout go forward.
type result struct {
	problem records.Problem
	why     string
	failure *model.Failure // of a playground that has nothing else
}

// fetch has the marquee make the checkout, or has it go forward.
func (f *Follower) fetch(ctx context.Context, t work.Task) (r result, err error) {
	var broken error
	end, err := t.Operate(ctx, work.StepBranch, decide.Branch{}, func(tx state.Reader, p *records.Playground, marker model.Marker) ([]byte, error) {
		raw, err := marker.Encode()
		if err != nil {
			return nil, err
		}
		payload, err := f.payload(tx, p, raw)
		broken = err
		return payload, err
	})
	if broken != nil {
		failure := model.Failure{Class: model.ClassUser, Category: model.CategoryCloneFailed, Step: model.StepClone, Text: broken.Error()}
		return result{records.ProblemFetch, broken.Error(), &failure}, nil //nolint:nilerr // what is broken is the result
	}
	if err != nil {
		return r, err
	}
	failure := work.FailureOf(end, model.StepClone)
	if failure == nil {
		f.Followed("fetch", "ok")
		return result{}, nil
	}
	r = result{records.ProblemFetch, failure.Text, failure}
	if problem, ok := map[int]records.Problem{
		runner.StatusWork: records.ProblemWork, runner.StatusGone: records.ProblemGone,
		runner.StatusForced: records.ProblemForced, runner.StatusElsewhere: records.ProblemElsewhere,
	}[end.Status]; ok && !end.Lost {
		r.problem, r.why = problem, strings.TrimPrefix(lastLine(end.Text), "runner: ")
		failure.Class, failure.Category, failure.Text = model.ClassUser, model.CategoryCloneFailed, r.why
	}
	f.Followed("fetch", string(r.problem))
	return r, nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	if len(line) > 300 {
		line = strings.ToValidUTF8(line[:300], "") + "…"
	}
	return line
}

// Define makes the first definition of a playground out of its branch.
func (f *Follower) Define(ctx context.Context, t work.Task, p records.Playground) (*model.Failure, error) {
	r, err := f.fetch(ctx, t)
	if err != nil || r.failure != nil {
		return r.failure, err
	}
	d, err := f.read(ctx, p)
	if err != nil {
		if refused := refusal(err); refused != nil {
			return &model.Failure{Class: model.ClassUser, Category: model.CategoryInvalid, Step: model.StepRender, Text: refused.Error()},
				t.Change(ctx, func(tx *state.Tx, row *records.Playground) error {
					row.Source.Head, row.Source.Refused = d.commit, d.commit
					f.trouble(tx, row, records.ProblemRefused, refused.Error(), d.commit)
					return nil
				})
		}
		return nil, err
	}
	made, err := records.Make(f.Sealer, &p, d.version)
	if err != nil {
		return nil, err
	}
	err = t.Change(ctx, func(tx *state.Tx, row *records.Playground) error {
		if err := f.adopt(tx, row, made, d.commit); err != nil {
			return refuse(err)
		}
		return nil
	})
	if refused := refusal(err); refused != nil { // it has no room, or a name is another's
		return &model.Failure{Class: model.ClassUser, Category: model.CategoryInvalid, Step: model.StepRender, Text: refused.Error()}, nil //nolint:nilerr // it is told as the playground's failure
	}
	return nil, err
}

// adopt writes what a commit defines into the record.
func (f *Follower) adopt(tx *state.Tx, row *records.Playground, made records.Made, commit string) error {
	if err := fits(tx, row.Owner, made.Size(), f.MaxStored); err != nil {
		return err
	}
	src := &row.Source
	if src.Head != commit {
		src.ChangedAt = tx.Now()
		records.Tell(tx, row, records.Note{
			Type: fleet.EventPlaygroundBranchMoved, Reason: records.ByLoop(fleet.RuleSettled, src.Branch),
			Payload: map[string]string{"branch": src.Branch, "from": src.Head, "to": commit},
		})
	}
	f.mended(tx, row)
	src.Head, src.Commit, src.Refused, src.Remote, src.Force = commit, commit, "", "", false
	return made.Want(tx, row)
}

// trouble notes why a playground does not follow, and tells of it once.
func (f *Follower) trouble(tx *state.Tx, row *records.Playground, problem records.Problem, why, remote string) {
	src := &row.Source
	if src.Problem != problem {
		src.ProblemAt = tx.Now()
		records.Tell(tx, row, records.Note{
			Type: fleet.EventPlaygroundBranchTrouble, Reason: records.ByLoop(fleet.RuleRefused, string(problem)), Error: why,
			Payload: map[string]string{"branch": src.Branch, "problem": string(problem), "commit": remote},
		})
	} else if src.Remote != remote || problem == records.ProblemFetch {
		src.ProblemAt = tx.Now()
	}
	src.Problem, src.Why, src.Remote = problem, why, remote
}

// mended drops a problem that is over.
func (f *Follower) mended(tx *state.Tx, row *records.Playground) {
	src := &row.Source
	if src.Problem == "" {
		return
	}
	records.Tell(tx, row, records.Note{
		Type: fleet.EventPlaygroundBranchMended, Reason: records.ByLoop(fleet.RuleSettled, string(src.Problem)),
		Payload: map[string]string{"branch": src.Branch, "problem": string(src.Problem)},
	})
	src.Problem, src.Why, src.ProblemAt, src.Remote = "", "", time.Time{}, ""
}

// fits refuses what would make an owner's definitions take too much room.
func fits(tx *state.Tx, owner string, more, most int) error {
	stored := more
	for _, p := range records.Playgrounds.All(tx) {
		if p.Owner == owner {
			stored += records.Stored(tx, p.ID)
		}
	}
	if most == 0 || stored <= most {
		return nil
	}
	return fleet.Errorf(fleet.CodePayloadTooLarge, "the definitions of %s would take %d bytes", owner, stored).
		With(fleet.DetailLimit, fmt.Sprint(most)).With(fleet.DetailRemedy, "destroy playgrounds, or put large files into an image")
}

// Variable fills in one variable: with a value or with what a secret holds.
type Variable struct {
	Value  string `json:"value,omitempty"`
	Secret string `json:"secret,omitempty"`
}

// SealVariables makes what a record keeps of variables.
func SealVariables(s records.Sealer, id model.PlaygroundID, v map[string]Variable) ([]byte, error) {
	if len(v) == 0 {
		return nil, nil
	}
	raw, err := json.Marshal(v) //nolint:gosec // it is sealed in the next lines
	if err != nil {
		return nil, fmt.Errorf("encode variables: %w", err)
	}
	sealed, err := s.Seal(records.SealKindVariables, string(id), raw)
	if err != nil {
		return nil, fmt.Errorf("seal variables: %w", err)
	}
	return sealed, nil
}

// variables are the values that a source fills in.
func (f *Follower) variables(tx state.Reader, p *records.Playground) (map[string]string, error) {
	out := map[string]string{}
	if lost := p.Source.Lost; len(lost) > 0 {
		return nil, refuse(fleet.Errorf(fleet.CodeConflict, "its variables were lost with the records: %s", strings.Join(lost, ", ")).
			With(fleet.DetailRemedy, "give them again: fuse playground follow --name "+p.Name+" with --var and --secret-var"))
	}
	if p.Source.VariablesSealed == nil {
		return out, nil
	}
	raw, err := f.Sealer.Open(records.SealKindVariables, string(p.ID), p.Source.VariablesSealed)
	if err != nil {
		return nil, fmt.Errorf("variables of %s: %w", p.ID, err)
	}
	var all map[string]Variable
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, errors.New("variables cannot be read")
	}
	for name, v := range all {
		out[name] = v.Value
		if v.Secret == "" {
			continue
		}
		s, err := credential.Find(tx, p.Owner, v.Secret)
		if err != nil {
			return nil, refuse(err)
		}
		value, err := s.Open(f.Sealer)
		if err != nil {
			return nil, err
		}
		out[name] = string(value)
	}
	return out, nil
}
