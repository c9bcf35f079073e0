package quota

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/settings"
)

// Store is the part of the state owner that a Book uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Config makes a Book. Store and Logger are needed for its verbs; Charge does
// without.
type Config struct {
	Store  Store
	Logger *slog.Logger
	// Defaults are the limits of owners that have none of their own; zero is
	// no limit. The holder of the server's own token has no defaults.
	Defaults Amounts
	// KeyOwner finds the owner of an API key; nil knows no keys.
	KeyOwner func(tx *state.ReadTx, id string) (owner string, ok bool)
	// More dimensions than those of environments, such as snapshots.
	More []Dimension
}

// Book knows the limits and what is held. It is safe for concurrent use.
type Book struct {
	cfg        Config
	dimensions []Dimension
}

// New makes a Book.
func New(cfg Config) *Book {
	if cfg.KeyOwner == nil {
		cfg.KeyOwner = func(*state.ReadTx, string) (string, bool) { return "", false }
	}
	return &Book{cfg, slices.Concat(environmentDimensions, cfg.More)}
}

// Payer is who asks for something.
type Payer struct {
	Owner string
	KeyID string // empty: no API key
	// Except is an environment that asks again for what it holds already, when
	// it moves or resumes: it does not count against itself.
	Except string
}

// Charge refuses what would take the payer's owner or API key over a limit. It
// has to be asked in the Update that adds the row which will be counted: that
// is what makes it hold under any number of callers. The error is
// quota_exceeded around fleet.ErrQuotaExceeded, or forbidden where the limit is
// less than what is asked for, so that waiting cannot help.
func (b *Book) Charge(tx *state.ReadTx, p Payer, ask Amounts) error {
	scopes := []Scope{{KindOwner, p.Owner}}
	if p.KeyID != "" {
		scopes = append(scopes, Scope{KindKey, p.KeyID})
	}
	for _, s := range scopes {
		limits := b.limits(tx, s)
		if len(limits) == 0 {
			continue
		}
		used := b.usage(tx, s, p)
		for _, d := range b.dimensions {
			limit, limited := limits[d.Name]
			if n := ask[d.Name]; limited && n > 0 && used[d.Name]+n > limit {
				return exceeded(s, &d, used[d.Name], n, limit)
			}
		}
	}
	return nil
}

// limits are those that count for a scope: its own before the defaults.
func (b *Book) limits(tx *state.ReadTx, s Scope) Amounts {
	out := Amounts{}
	if s.Kind == KindOwner && s.Name != fleet.OwnerMaster {
		for name, n := range b.cfg.Defaults {
			if n > 0 {
				out[name] = n
			}
		}
	}
	for name, n := range own(tx, s) {
		if n == fleet.NoLimit {
			delete(out, name)
		} else {
			out[name] = n
		}
	}
	return out
}

// own are the limits that were set for a scope, NoLimit among them.
func own(tx state.Reader, s Scope) Amounts {
	if doc, ok := settings.Documents.Get(tx, s.setting()); ok && doc.Quota != nil {
		return doc.Quota.Limits
	}
	return nil
}

// usage is what a scope holds. It looks at the owner's environments only, of
// which there is an index.
func (b *Book) usage(tx *state.ReadTx, s Scope, p Payer) Amounts {
	used := Amounts{}
	for vm := range tx.VMs().ByOwner(p.Owner, "") {
		if vm.ID != p.Except && (s.Kind == KindOwner || vm.KeyID == s.Name) {
			b.add(used, vm)
		}
	}
	b.addCounted(tx, used, s)
	return used
}

func (b *Book) add(used Amounts, vm *fleet.VM) {
	for _, d := range b.dimensions {
		if d.Of != nil {
			used[d.Name] += d.Of(vm)
		}
	}
}

func (b *Book) addCounted(tx *state.ReadTx, used Amounts, s Scope) {
	for _, d := range b.dimensions {
		if d.Count != nil {
			used[d.Name] += d.Count(tx, s)
		}
	}
}

// Line is one dimension of an entry.
type Line struct {
	Dimension, Unit string
	Used            int64
	Limit           int64 // fleet.NoLimit: none
	Default         bool  // the limit is the server's default, or there is none of the scope's own
}

// Entry is a scope with what it holds and may hold.
type Entry struct {
	Scope Scope
	Owner string // of the key, or the owner itself
	Lines []Line // every dimension, in the same order always
}

func (b *Book) entry(tx *state.ReadTx, s Scope, owner string, used Amounts) Entry {
	e := Entry{Scope: s, Owner: owner}
	limits, set := b.limits(tx, s), own(tx, s)
	for _, d := range b.dimensions {
		limit, limited := limits[d.Name]
		if !limited {
			limit = fleet.NoLimit
		}
		_, mine := set[d.Name]
		e.Lines = append(e.Lines, Line{d.Name, d.Unit, used[d.Name], limit, !mine})
	}
	return e
}

// List gives an entry for every owner that holds something or has limits of its
// own, and for every API key that has some, by scope. Only those whose owner
// sees allows are in it.
func (b *Book) List(sees func(owner string) bool) ([]Entry, error) {
	var out []Entry
	err := b.cfg.Store.View(func(tx *state.ReadTx) error {
		owners := map[Scope]string{}
		used := map[Scope]Amounts{}
		for name := range settings.Documents.Prefix(tx, settingPrefix) {
			s, err := ParseScope(name[len(settingPrefix):])
			if owner, ok := b.ownerOf(tx, s); err == nil && ok && sees(owner) {
				owners[s], used[s] = owner, Amounts{}
			}
		}
		for vm := range tx.VMs().All() {
			if !sees(vm.Owner) {
				continue
			}
			s := Scope{KindOwner, vm.Owner}
			if used[s] == nil {
				owners[s], used[s] = vm.Owner, Amounts{}
			}
			b.add(used[s], vm)
			if k := (Scope{KindKey, vm.KeyID}); vm.KeyID != "" && used[k] != nil {
				b.add(used[k], vm)
			}
		}
		for s := range used {
			b.addCounted(tx, used[s], s)
			out = append(out, b.entry(tx, s, owners[s], used[s]))
		}
		return nil
	})
	slices.SortFunc(out, func(a, b Entry) int { return compare(a.Scope, b.Scope) })
	return out, err
}

// Get gives one entry; one whose owner sees does not allow is not found.
func (b *Book) Get(id string, sees func(owner string) bool) (Entry, error) {
	s, err := ParseScope(id)
	if err != nil {
		return Entry{}, err
	}
	var e Entry
	err = b.cfg.Store.View(func(tx *state.ReadTx) error {
		owner, ok := b.ownerOf(tx, s)
		if !ok || !sees(owner) {
			return notFound(s)
		}
		e = b.entry(tx, s, owner, b.usage(tx, s, Payer{Owner: owner}))
		return nil
	})
	return e, err
}

func (b *Book) ownerOf(tx *state.ReadTx, s Scope) (string, bool) {
	if s.Kind == KindOwner {
		return s.Name, true
	}
	return b.cfg.KeyOwner(tx, s.Name)
}

// Set changes limits of a scope: NoLimit lifts the default, nil goes back to
// it. Dimensions that are not named stay as they are.
func (b *Book) Set(ctx context.Context, id string, change map[string]*int64, actor string) (Entry, error) {
	s, err := ParseScope(id)
	if err != nil {
		return Entry{}, err
	}
	if err := b.checkChange(change); err != nil {
		return Entry{}, err
	}
	var e Entry
	_, err = b.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		owner, ok := b.ownerOf(&tx.ReadTx, s)
		if !ok {
			return notFound(s)
		}
		q := fleet.Quota{Limits: maps.Clone(own(tx, s)), UpdatedBy: actor, UpdatedAt: tx.Now()}
		if q.Limits == nil {
			q.Limits = Amounts{}
		}
		for name, n := range change {
			if n == nil {
				delete(q.Limits, name)
			} else {
				q.Limits[name] = *n
			}
		}
		if err := store(tx, s, &q, actor); err != nil {
			return err
		}
		e = b.entry(&tx.ReadTx, s, owner, b.usage(&tx.ReadTx, s, Payer{Owner: owner}))
		return nil
	})
	if err == nil {
		b.cfg.Logger.Info("quota set", slog.String("scope", s.String()), slog.String("actor", actor))
	}
	return e, err
}

func store(tx *state.Tx, s Scope, q *fleet.Quota, actor string) error {
	tx.Emit(event(fleet.EventQuotaSet, s, actor, q.Limits))
	return settings.Documents.Put(tx, s.setting(), &fleet.Setting{Quota: q})
}

// Remove takes the limits of a scope away, so that the defaults count. Those of
// a key that is gone can be removed too.
func (b *Book) Remove(ctx context.Context, id, actor string) error {
	s, err := ParseScope(id)
	if err != nil {
		return err
	}
	_, err = b.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		if own(tx, s) == nil {
			return notFound(s)
		}
		tx.Emit(event(fleet.EventQuotaRemoved, s, actor, nil))
		return settings.Documents.Delete(tx, s.setting())
	})
	if err == nil {
		b.cfg.Logger.Info("quota removed", slog.String("scope", s.String()), slog.String("actor", actor))
	}
	return err
}
