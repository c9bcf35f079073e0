package rekey

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/settings"
)

// Store is the part of the state owner that is used.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Value is one sealed value of a column.
type Value struct {
	Row    string // id of the row
	Bound  string // id that it was sealed with
	Sealed []byte // empty: the row has none
}

// Column is one kind of sealed value. Each service whose rows hold some has
// one; what no column covers stays under its old key.
type Column struct {
	Kind string // that it was sealed with
	// After lists the rows' values by row id, from the row after that id on.
	After func(tx *state.ReadTx, id string) iter.Seq[Value]
	// Swap replaces the value of a row, if it still is the old one.
	Swap func(tx *state.Tx, row string, old, sealed []byte) error
}

// The check value's setting, and the kind that it is sealed with.
const canaryID, canaryKind = "encryption", "canary"

var canaryText = []byte("the key of this store opens this")

// batch is how many values one commit moves.
const batch = 256

// Report is what lies sealed, by the id of its key.
type Report struct {
	Values map[string]int
}

// Others counts what another key than that one has sealed.
func (r Report) Others(keyID string) (n int) {
	for id, of := range r.Values {
		if id != keyID {
			n += of
		}
	}
	return n
}

// String lists keys and counts.
func (r Report) String() string {
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(r.Values)) {
		parts = append(parts, fmt.Sprintf("%d with key %s", r.Values[id], id))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// Check refuses a sealer that cannot open everything that the state holds, by
// key id for each value and by opening the canary, which is written at the
// first start. Call it before anything is served.
func Check(ctx context.Context, store Store, s *secrets.Sealer, columns []Column) (Report, error) {
	report := Report{Values: map[string]int{}}
	var held *fleet.EncryptionCheck
	missing := map[string]int{}
	err := store.View(func(tx *state.ReadTx) error {
		if doc, ok := settings.Documents.Get(tx, canaryID); ok {
			held = doc.Encryption
		}
		for _, c := range columns {
			for v := range c.After(tx, "") {
				if len(v.Sealed) == 0 {
					continue
				}
				id := keyID(v.Sealed)
				report.Values[id]++
				if !s.Opens(v.Sealed) {
					missing[id]++
				}
			}
		}
		return nil
	})
	if err != nil {
		return report, fmt.Errorf("check the encryption key: %w", err)
	}
	if len(missing) > 0 {
		return report, wrongKey(s, Report{missing}.String())
	}
	if held == nil {
		return report, putCanary(ctx, store, s)
	}
	if !s.Opens(held.Sealed) {
		return report, wrongKey(s, "its check value with key "+held.KeyID)
	}
	if plain, err := s.Open(canaryKind, canaryID, held.Sealed); err != nil || !bytes.Equal(plain, canaryText) {
		return report, wrongKey(s, "its check value with another key of that id")
	}
	return report, nil
}

func wrongKey(s *secrets.Sealer, sealed string) error {
	e := fleet.Errorf(fleet.CodeInvalidArgument, "the encryption key is not the one of this state: it holds %s; the configured key is %s", sealed, s.KeyID())
	if strings.HasSuffix(sealed, "key "+secrets.ClearKeyID) {
		return e.With(fleet.DetailRemedy, "fuse server rekey encrypts what was stored without encryption; or start with --insecure-no-encryption")
	}
	return e.With(fleet.DetailRemedy, "start with that key (the file key of the data directory, or TOKEN_ENCRYPTION_KEY), or name it in TOKEN_ENCRYPTION_KEY_OLD")
}

func putCanary(ctx context.Context, store Store, s *secrets.Sealer) error {
	sealed, err := s.Seal(canaryKind, canaryID, canaryText)
	if err != nil {
		return fmt.Errorf("seal the check value: %w", err)
	}
	_, err = store.Update(ctx, func(tx *state.Tx) error {
		return settings.Documents.Put(tx, canaryID, &fleet.Setting{Encryption: &fleet.EncryptionCheck{KeyID: s.KeyID(), Sealed: sealed}})
	})
	if err != nil {
		return fmt.Errorf("store the check value of the encryption key: %w", err)
	}
	return nil
}

// Run seals everything with the sealer's current key that another one sealed,
// a bounded number of values a commit, and tells after each how many are done.
// Interrupted, it goes on where it was: what is done is told by its key id. It
// refuses at the beginning, before anything changes, if a key is missing.
func Run(ctx context.Context, store Store, s *secrets.Sealer, columns []Column, progress func(done int)) (done int, err error) {
	if _, err := Check(ctx, store, s, columns); err != nil {
		return 0, err
	}
	for _, c := range columns {
		for after, more := "", true; more; {
			var n int
			if n, after, more, err = step(ctx, store, s, c, after); err != nil {
				return done, fmt.Errorf("rekey %s: %w", c.Kind, err)
			}
			if done += n; n > 0 {
				progress(done)
			}
			if err := failpoint.Hit("rekey.batch"); err != nil {
				return done, err
			}
		}
	}
	// Last: while it is under the old key, the rekey is not complete.
	return done, putCanary(ctx, store, s)
}

// step moves the next values of one column after a row.
func step(ctx context.Context, store Store, s *secrets.Sealer, c Column, after string) (n int, last string, more bool, err error) {
	type change struct {
		row      string
		old, new []byte
	}
	var changes []change
	last = after
	err = store.View(func(tx *state.ReadTx) error {
		for v := range c.After(tx, after) {
			if len(changes) == batch {
				more = true
				return nil
			}
			last = v.Row
			out, changed, err := s.Reseal(c.Kind, v.Bound, v.Sealed)
			if err != nil {
				return fmt.Errorf("row %s: %w", v.Row, err)
			}
			if changed {
				changes = append(changes, change{v.Row, v.Sealed, out})
			}
		}
		return nil
	})
	if err != nil || len(changes) == 0 {
		return 0, last, more, err
	}
	_, err = store.Update(ctx, func(tx *state.Tx) error {
		for _, ch := range changes {
			if err := c.Swap(tx, ch.row, ch.old, ch.new); err != nil {
				return err
			}
		}
		return nil
	})
	return len(changes), last, more, err
}

func keyID(sealed []byte) string {
	if id, ok := secrets.KeyIDOf(sealed); ok {
		return id
	}
	return "unknown (" + strconv.Itoa(len(sealed)) + " bytes)"
}
