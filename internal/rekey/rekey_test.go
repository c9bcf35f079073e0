package rekey_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/rekey"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/sqlite"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type note struct {
	Sealed []byte `json:"sealed"`
}

var notes = state.NewCollection[note]("webhooks")

var columns = []rekey.Column{
	rekey.VMColumn("vm_token", func(vm *fleet.VM) *[]byte { return &vm.AuthTokenSealed }),
	rekey.VMColumn("vm_boot", func(vm *fleet.VM) *[]byte { return &vm.BootSealed }),
	rekey.HostColumn("host_token"),
	rekey.DocumentColumn("note", notes, func(n *note) *[]byte { return &n.Sealed }),
}

func key(t *testing.T, digit string) secrets.Key {
	t.Helper()
	k, err := secrets.ParseKey(strings.Repeat(digit, 64))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const vms = 300 // more than a batch

// world is a store on disk whose rows are sealed with one key.
type world struct {
	path string
}

func newWorld(t *testing.T, s *secrets.Sealer) world {
	t.Helper()
	w := world{filepath.Join(t.TempDir(), "fuse.db")}
	w.with(t, func(store *state.Store) {
		seal := func(kind, id string) []byte {
			out, err := s.Seal(kind, id, []byte(plain(kind, id)))
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			var errs []error
			for _, id := range []string{"a", "b"} {
				errs = append(errs, tx.PutHost(fleet.Host{ID: id, State: fleet.HostActive, TokenSealed: seal("host_token", id), Capacity: fleet.HostCapacity{VMCount: vms}}),
					notes.Put(tx, id, &note{Sealed: seal("note", id)}))
			}
			for i := range vms {
				uid := fmt.Sprintf("uid%04d", i)
				vm := fleet.VM{ID: fmt.Sprintf("fuse-%04d", i), UID: uid, Generation: 1, State: fleet.VMStateProvisioning, TaskID: uid, AuthTokenSealed: seal("vm_token", uid)}
				if i%2 == 0 {
					vm.BootSealed = seal("vm_boot", uid)
				}
				errs = append(errs, tx.PutVM(vm))
			}
			return errors.Join(errs...)
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := rekey.Check(t.Context(), store, s, columns); err != nil {
			t.Fatal(err)
		}
	})
	return w
}

func plain(kind, id string) string { return "secret of " + kind + " " + id }

// with opens the store as a process does, and closes it.
func (w world) with(t *testing.T, fn func(*state.Store)) {
	t.Helper()
	j := sqlite.New(sqlite.Config{Path: w.path})
	store, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	fn(store)
}

// opened counts what a sealer opens, and fails on what opens to something else.
func (w world) opened(t *testing.T, s *secrets.Sealer) (n, of int) {
	t.Helper()
	w.with(t, func(store *state.Store) {
		if err := store.View(func(tx *state.ReadTx) error {
			for _, c := range columns {
				for v := range c.After(tx, "") {
					if len(v.Sealed) == 0 {
						continue
					}
					of++
					text, err := s.Open(c.Kind, v.Bound, v.Sealed)
					if err != nil {
						continue
					}
					if n++; string(text) != plain(c.Kind, v.Bound) {
						t.Errorf("%s of %s opens to %q", c.Kind, v.Row, text)
					}
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
	return n, of
}

const values = vms + vms/2 + 4

func TestRekey(t *testing.T) {
	old, next := key(t, "a"), key(t, "b")
	w := newWorld(t, secrets.NewSealer(old))
	w.with(t, func(store *state.Store) {
		last := 0
		done, err := rekey.Run(t.Context(), store, secrets.NewSealer(next, old), columns, func(n int) {
			if n <= last || n-last > 256 {
				t.Errorf("%d done after %d", n, last)
			}
			last = n
		})
		if err != nil || done != values || last != values {
			t.Errorf("%d values of %d, told %d, %v", done, values, last, err)
		}
		if done, err := rekey.Run(t.Context(), store, secrets.NewSealer(next, old), columns, func(int) {}); done != 0 || err != nil {
			t.Errorf("once more: %d, %v", done, err)
		}
	})
	if n, of := w.opened(t, secrets.NewSealer(next)); n != values || of != values {
		t.Errorf("the new key opens %d of %d", n, of)
	}
	if n, _ := w.opened(t, secrets.NewSealer(old)); n != 0 {
		t.Errorf("the old key still opens %d", n)
	}
	w.with(t, func(store *state.Store) {
		if _, err := rekey.Check(t.Context(), store, secrets.NewSealer(next), columns); err != nil {
			t.Errorf("check with the new key: %v", err)
		}
		if _, err := rekey.Check(t.Context(), store, secrets.NewSealer(old), columns); err == nil || !strings.Contains(err.Error(), next.ID()) {
			t.Errorf("check with the old key: %v", err)
		}
	})
}

// stopping is a store that fails after so many commits, as a process that is
// killed: what it said before is durable.
type stopping struct {
	*state.Store
	left int
}

var errKilled = errors.New("killed")

func (s *stopping) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	if s.left == 0 {
		return state.Commit{}, errKilled
	}
	s.left--
	return s.Store.Update(ctx, fn)
}

// However far a rekey got, a server with both keys runs, one with the new key
// alone or the old key alone refuses, and the next rekey ends it.
func TestRekeyGoesOnAfterAnyStop(t *testing.T) {
	old, next := key(t, "a"), key(t, "b")
	ring := secrets.NewSealer(next, old)
	for commits := range 6 {
		w := newWorld(t, secrets.NewSealer(old))
		w.with(t, func(store *state.Store) {
			if _, err := rekey.Run(t.Context(), &stopping{store, commits}, ring, columns, func(int) {}); !errors.Is(err, errKilled) {
				t.Fatalf("after %d commits: %v", commits, err)
			}
		})
		w.with(t, func(store *state.Store) {
			for _, both := range []*secrets.Sealer{ring, secrets.NewSealer(old, next)} {
				if _, err := rekey.Check(t.Context(), store, both, columns); err != nil {
					t.Errorf("after %d commits, both keys: %v", commits, err)
				}
			}
			if _, err := rekey.Check(t.Context(), store, secrets.NewSealer(next), columns); err == nil {
				t.Errorf("after %d commits, the new key alone serves", commits)
			}
			if _, err := rekey.Check(t.Context(), store, secrets.NewSealer(old), columns); (err == nil) != (commits == 0) {
				t.Errorf("after %d commits, the old key alone: %v", commits, err)
			}
			if _, err := rekey.Run(t.Context(), store, ring, columns, func(int) {}); err != nil {
				t.Fatal(err)
			}
		})
		if n, of := w.opened(t, secrets.NewSealer(next)); n != values || of != values {
			t.Errorf("stopped after %d commits and done again: %d of %d", commits, n, of)
		}
	}
}

func TestAWrongKeyIsRefusedAndChangesNothing(t *testing.T) {
	right, wrong := key(t, "a"), key(t, "b")
	w := newWorld(t, secrets.NewSealer(right))
	w.with(t, func(store *state.Store) {
		before, _ := store.Head()
		for name, s := range map[string]*secrets.Sealer{
			"wrong": secrets.NewSealer(wrong), "none": secrets.NewClear(), "wrong, and clear": secrets.NewSealer(wrong).TakingClear(),
		} {
			_, err := rekey.Check(t.Context(), store, s, columns)
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), right.ID()) || !strings.Contains(err.Error(), s.KeyID()) {
				t.Errorf("%s: %v", name, err)
			}
			if strings.Contains(fmt.Sprint(err), right.Hex()) || strings.Contains(fmt.Sprint(err), wrong.Hex()) {
				t.Errorf("%s: the error holds a key", name)
			}
			if _, err := rekey.Run(t.Context(), store, s, columns, func(int) {}); err == nil {
				t.Errorf("%s: rekey runs", name)
			}
		}
		if after, _ := store.Head(); after != before {
			t.Errorf("refusals made %d commits", after-before)
		}
	})
}

// While nothing is sealed yet, the check value alone tells a wrong key.
func TestTheCanary(t *testing.T) {
	w := world{filepath.Join(t.TempDir(), "fuse.db")}
	check := func(s *secrets.Sealer) (err error) {
		w.with(t, func(store *state.Store) { _, err = rekey.Check(t.Context(), store, s, columns) })
		return err
	}
	if err := check(secrets.NewSealer(key(t, "a"))); err != nil {
		t.Fatal(err)
	}
	if err := check(secrets.NewSealer(key(t, "a"))); err != nil {
		t.Errorf("the same key: %v", err)
	}
	if err := check(secrets.NewSealer(key(t, "b"))); err == nil {
		t.Error("another key")
	}
	if err := check(secrets.NewClear()); err == nil {
		t.Error("no key")
	}
	if err := check(secrets.NewSealer(key(t, "b"), key(t, "a"))); err != nil {
		t.Errorf("both: %v", err)
	}
}

// From no encryption to a key: the server with the key refuses until a rekey,
// which alone may take what lies in the clear.
func TestRekeyFromTheClear(t *testing.T) {
	k := key(t, "a")
	w := newWorld(t, secrets.NewClear())
	w.with(t, func(store *state.Store) {
		_, err := rekey.Check(t.Context(), store, secrets.NewSealer(k), columns)
		var fe *fleet.Error
		if !errors.As(err, &fe) || !strings.Contains(fe.Details[fleet.DetailRemedy], "fuse server rekey") {
			t.Errorf("with a key: %v", err)
		}
		if n, err := rekey.Run(t.Context(), store, secrets.NewSealer(k).TakingClear(), columns, func(int) {}); err != nil || n != values {
			t.Errorf("%d, %v", n, err)
		}
	})
	if n, of := w.opened(t, secrets.NewSealer(k)); n != values || of != values {
		t.Errorf("%d of %d", n, of)
	}
}
