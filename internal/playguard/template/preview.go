package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Limits of previews.
const (
	MaxPreviews    = 50 // of an owner
	MostDefault    = 10
	MostAtMost     = 50
	MaxPatterns    = 20
	seekEvery      = 5 * time.Minute
	endsIn         = time.Hour     // what a playground has left when its branch is gone
	notBefore      = 2 * seekEvery // what it has left at least while nobody knows
	maxBranches    = 2000
	keptLeftOut    = 20
	mostFailed     = 20 // branches that cannot get a playground in one round
	longestPattern = 200
	ownersAtOnce   = 8
	ownerTime      = time.Minute // of an owner in one round
)

// Preview is a preview's document.
type Preview struct {
	ID       string            `json:"id"`
	Owner    string            `json:"owner"`
	Name     string            `json:"name"`
	Template string            `json:"template"`
	Branches []string          `json:"branches"`
	Most     int               `json:"most"`
	Life     time.Duration     `json:"life,omitempty"`
	Values   map[string]string `json:"values,omitempty"`
	Secrets  map[string]string `json:"secrets,omitempty"`

	LeftOut   []string  `json:"left_out,omitempty"`
	From      string    `json:"from,omitempty"` // branch that the next round begins at; empty is the first
	LookedAt  time.Time `json:"looked_at,omitzero"`
	Failure   string    `json:"failure,omitempty"`
	UpdatedAt time.Time `json:"updated_at"`

	Playgrounds int `json:"-"` // that it has now
}

// Previews is the collection.
var Previews = state.NewCollection[Preview]("playground_previews")

// Check refuses what cannot be a preview.
func (p Preview) Check() error {
	switch {
	case !namePattern.MatchString(p.Name):
		return fleet.Invalid("name", "1 to 40 lower-case letters, digits and dashes", "give another name", "%.80q is not one", p.Name)
	case len(p.Branches) == 0 || len(p.Branches) > MaxPatterns:
		return fleet.Invalid("branches", fmt.Sprintf("1 to %d patterns", MaxPatterns), "such as feature/*", "has %d", len(p.Branches))
	case p.Most < 1 || p.Most > MostAtMost:
		return fleet.Invalid("most", fmt.Sprintf("1 to %d", MostAtMost), "narrow the patterns, or make two previews", "is %d", p.Most)
	case p.Life < 0 || p.Life > 0 && p.Life < time.Hour:
		return fleet.Invalid("life", "at least 1h", "", "is %s", p.Life)
	}
	for _, b := range p.Branches {
		if _, err := path.Match(strings.TrimPrefix(b, "!"), "x"); err != nil || len(b) > longestPattern || strings.Trim(b, "!") == "" {
			return fleet.Invalid("branches", "patterns such as feature/*", "", "%.80q is not one", b)
		}
	}
	return nil
}

// SetPreview makes or changes a preview.
func (s *Service) SetPreview(ctx context.Context, owner string, p Preview) (Preview, error) {
	if p.Most == 0 {
		p.Most = MostDefault
	}
	if err := p.Check(); err != nil {
		return p, err
	}
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		t, err := find(tx, owner, p.Template)
		if err != nil {
			return err
		}
		if _, err := t.Fill(p.Values, p.Secrets); err != nil {
			return err
		}
		p.ID, p.Owner, p.UpdatedAt = strings.ToLower(uid.New()), owner, tx.Now()
		n := 0
		for _, o := range Previews.All(tx) {
			if o.Owner != owner {
				continue
			}
			n++
			if o.Name == p.Name {
				p.ID = o.ID
				n--
			}
		}
		if n >= MaxPreviews {
			return fleet.Errorf(fleet.CodeConflict, "%s has %d previews", owner, n).With(fleet.DetailLimit, fmt.Sprint(MaxPreviews)).
				With(fleet.DetailRemedy, "remove one: fuse playground preview rm NAME")
		}
		p.Playgrounds = len(of(tx, p))
		return Previews.Put(tx, p.ID, &p)
	})
	if err == nil {
		s.soon(p.ID)
	}
	return p, err
}

// ListPreviews lists the previews that sees lets through.
func (s *Service) ListPreviews(sees func(owner string) bool) (out []Preview, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		for _, p := range Previews.All(tx) {
			if sees(p.Owner) {
				v := *p
				v.Playgrounds = len(of(tx, v))
				out = append(out, v)
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b Preview) int { return strings.Compare(a.Owner+"\x00"+a.Name, b.Owner+"\x00"+b.Name) })
	return out, err
}

// RemovePreview forgets a preview. Its playgrounds stay, as any other's.
func (s *Service) RemovePreview(ctx context.Context, owner, name string) error {
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		for _, p := range Previews.All(tx) {
			if p.Owner == owner && p.Name == name {
				return Previews.Delete(tx, p.ID)
			}
		}
		return fleet.Errorf(fleet.CodeNotFound, "there is no preview %.80q", name).With(fleet.DetailScope, "preview")
	})
	return err
}

// of lists a preview's playgrounds.
func of(tx state.Reader, p Preview) (out []records.Playground) {
	for _, row := range records.Playgrounds.All(tx) {
		if row.Owner == p.Owner && row.Source.Preview == p.Name {
			out = append(out, *row)
		}
	}
	return out
}

// seeker remembers when repositories are looked through.
type seeker struct {
	mu  sync.Mutex
	now map[string]bool // previews that are looked through at the next chance
}

func (k *seeker) soon(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now == nil {
		k.now = map[string]bool{}
	}
	k.now[id] = true
}

func (k *seeker) take(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.now[id]
	delete(k.now, id)
	return was
}

// Seek has the previews of a repository looked through at the next chance, by
// whichever address their templates name it.
func (s *Service) Seek(owner, repository string) {
	_ = s.Store.View(func(tx *state.ReadTx) error { // the closure never fails
		for _, p := range Previews.All(tx) {
			if t, err := find(tx, p.Owner, p.Template); err == nil && p.Owner == owner && records.Place(t.Repository) == records.Place(repository) {
				s.soon(p.ID)
			}
		}
		return nil
	})
}

// Run looks repositories through until ctx ends.
func (s *Service) Run(ctx context.Context, logger *slog.Logger, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var due []Preview
		if err := s.Store.View(func(tx *state.ReadTx) error {
			for _, p := range Previews.All(tx) {
				if s.take(p.ID) || time.Since(p.LookedAt) >= seekEvery {
					due = append(due, *p)
				}
			}
			return nil
		}); err != nil {
			logger.Warn("previews could not be read", slog.Any("error", err))
		}
		s.rounds(ctx, logger, due)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// rounds looks the repositories of each owner through one after the other: a
// server that does not answer keeps nobody else waiting for long.
func (s *Service) rounds(ctx context.Context, logger *slog.Logger, due []Preview) {
	slices.SortFunc(due, func(a, b Preview) int { return a.LookedAt.Compare(b.LookedAt) })
	byOwner := map[string][]Preview{}
	for _, p := range due {
		byOwner[p.Owner] = append(byOwner[p.Owner], p)
	}
	var g errgroup.Group
	g.SetLimit(ownersAtOnce)
	for _, list := range byOwner {
		g.Go(func() error {
			s.lookAfter(ctx, list, logger)
			return nil
		})
	}
	_ = g.Wait() // none of them fails
}

// lookAfter goes through the previews of one owner; what there is no time for
// comes in the next round.
func (s *Service) lookAfter(ctx context.Context, list []Preview, logger *slog.Logger) {
	late := time.Now().Add(ownerTime)
	for _, p := range list {
		if ctx.Err() != nil {
			return
		}
		if time.Now().After(late) {
			s.soon(p.ID)
			continue
		}
		if err := s.Round(ctx, p); err != nil && ctx.Err() == nil {
			logger.Info("a preview could not be looked after", slog.String("preview", p.Name), slog.Any("error", err))
		}
	}
}

// Round looks one repository through and does what follows.
func (s *Service) Round(ctx context.Context, p Preview) error {
	var t Template
	var rows []records.Playground
	if err := s.Store.View(func(tx *state.ReadTx) error {
		row, err := find(tx, p.Owner, p.Template)
		if err != nil {
			return err
		}
		if s.Acting != nil && !s.Acting(tx)(p.Owner, fleet.RoleUser) {
			return fleet.Errorf(fleet.CodeForbidden, "no API key acts for %s any more: nothing new is made, and what is there stays", p.Owner)
		}
		t, rows = *row, of(tx, p)
		return nil
	}); err != nil {
		return s.looked(ctx, p, nil, err)
	}
	branches, err := s.Branch.Branches(ctx, p.Owner, t.Marquee, records.Source{Repository: t.Repository, Secret: t.Secret, KnownHosts: t.KnownHosts})
	if err == nil {
		err = believable(branches)
	}
	if err != nil {
		return errors.Join(s.ends(ctx, p, Plan{Unsure: ending(rows)}), s.looked(ctx, p, nil, err))
	}
	plan := Decide(Seen{Now: time.Now(), Preview: p, Branches: branches, Playgrounds: rows})
	if err := s.ends(ctx, p, plan); err != nil {
		return err
	}
	var failed error
	var left []string
	left, p.From, failed = fill(plan, func(branch string) error {
		_, err := s.launch(ctx, t, Launch{
			Name: NameOf(p.Name, branch), Branch: branch, Values: p.Values, Secrets: p.Secrets, Preview: p.Name, Owner: p.Owner, Expires: lifeOf(p),
		})
		return err
	})
	return s.looked(ctx, p, left, failed)
}

// believable refuses lists that show no whole repository: nothing is concluded from
// what is not in them.
func believable(branches []string) error {
	switch {
	case len(branches) == 0:
		return fleet.Errorf(fleet.CodeConflict, "the repository shows no branch").With(fleet.DetailRemedy, "push one; what is there stays until then")
	case len(branches) > maxBranches:
		return fleet.Errorf(fleet.CodeConflict, "the repository has more than %d branches", maxBranches).With(fleet.DetailLimit, fmt.Sprint(maxBranches)).
			With(fleet.DetailRemedy, "delete branches that are merged, or follow single ones: fuse playground follow")
	}
	return nil
}

// fill makes as many as there is room for. A branch that cannot get one, since its
// name is taken, leaves its place to the next. left are those that were not tried,
// from is where the next round goes on if too many could not.
func fill(plan Plan, launch func(branch string) error) (left []string, from string, err error) {
	room, failed := len(plan.Make), 0
	left = slices.Concat(plan.Make, plan.LeftOut)
	for len(left) > 0 && room > 0 && failed < mostFailed {
		b := left[0]
		left = left[1:]
		switch e := launch(b); {
		case e == nil:
			room--
		case err == nil:
			err = fmt.Errorf("branch %s: %w", b, e)
			fallthrough
		default:
			failed++
		}
	}
	if failed > 1 {
		err = fmt.Errorf("%w; and %d more branches", err, failed-1)
	}
	if failed == mostFailed && len(left) > 0 {
		from = left[0]
	}
	return left, from, err
}

// some are the first names of a list, and how many more there are: no branch has a
// space in its name.
func some(list []string) []string {
	if len(list) <= keptLeftOut {
		return list
	}
	return append(slices.Clone(list[:keptLeftOut]), fmt.Sprintf("and %d more", len(list)-keptLeftOut))
}

func lifeOf(p Preview) string {
	if p.Life == 0 {
		return ""
	}
	return p.Life.String()
}

// ends writes when playgrounds end. One whose branch is gone has an hour left, in
// which each look that shows the branch takes it back: it is warned of, and kept
// while there is work in it, as with any expiry.
func (s *Service) ends(ctx context.Context, p Preview, plan Plan) error {
	if len(plan.End)+len(plan.Keep)+len(plan.Life)+len(plan.Unsure) == 0 {
		return nil
	}
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		change := func(id model.PlaygroundID, fn func(row *records.Playground)) error {
			row, ok := records.Playgrounds.Get(tx, string(id))
			if !ok || row.Source.Preview != p.Name || row.Intent == model.IntentGone {
				return nil
			}
			v := *row
			fn(&v)
			return records.PutPlayground(tx, v)
		}
		for _, id := range plan.End {
			if err := change(id, func(row *records.Playground) {
				row.Expiry, row.Source.Ended = model.Until(tx.Now().Add(endsIn), tx.Now()), true
			}); err != nil {
				return err
			}
		}
		for _, id := range plan.Keep {
			if err := change(id, func(row *records.Playground) {
				row.Expiry, row.Source.Ended = model.Expiry{}, false
			}); err != nil {
				return err
			}
		}
		for _, id := range plan.Unsure {
			if err := change(id, func(row *records.Playground) {
				if !row.Expiry.IsZero() { // else somebody said since that it has no end
					row.Expiry.At = latest(row.Expiry.At, tx.Now().Add(notBefore))
				}
			}); err != nil {
				return err
			}
		}
		for id, at := range plan.Life {
			if err := change(id, func(row *records.Playground) {
				row.Expiry = model.Until(latest(at, tx.Now().Add(min(endsIn, p.Life))), tx.Now())
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// looked writes what came of looking.
func (s *Service) looked(ctx context.Context, was Preview, leftOut []string, failure error) error {
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := Previews.Get(tx, was.ID)
		if !ok {
			return nil
		}
		p := *row
		p.LookedAt, p.Failure, p.From = tx.Now(), "", was.From
		if failure != nil {
			p.Failure = failure.Error()
			p.Failure = strings.ToValidUTF8(p.Failure[:min(len(p.Failure), 500)], "")
		}
		if failure == nil || leftOut != nil {
			p.LeftOut = some(leftOut)
		}
		return Previews.Put(tx, p.ID, &p)
	})
	if err != nil {
		return err
	}
	return failure
}
