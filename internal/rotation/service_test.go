package rotation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const tokenKind = "vm_token"

// guest is a host with one guest, as far as a rotation sees them.
type guest struct {
	provider.Provider

	mu     sync.Mutex
	number int64
	token  string
	cert   []byte
	calls  int
	answer func(applied bool) error // nil: success
	before error                    // if set, nothing is done
}

func (g *guest) Open(provider.Ref) provider.Environment { return &environment{g: g} }

type environment struct {
	provider.Environment
	g *guest
}

// Rotate does what a host does: by number, and once.
func (e *environment) Rotate(_ context.Context, number int64, c provider.Credentials) error {
	g := e.g
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	if g.before != nil {
		return g.before
	}
	if number < g.number {
		return fleet.Errorf(fleet.CodeConflict, "a later rotation has been done already").
			With(fleet.DetailRotation, strconv.FormatInt(g.number, 10))
	}
	g.number, g.token, g.cert = number, c.Token, c.CertPEM
	if g.answer != nil {
		return g.answer(true)
	}
	return nil
}

func (g *guest) fail(before error, answer func(bool) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.answer = before, answer
}

type hosts struct{ g *guest }

func (h hosts) Provider(id string) (provider.Provider, error) {
	if id != "h1" {
		return nil, fleet.ErrHostNotFound
	}
	return h.g, nil
}

// storeWithEnd is a store that fails after so many commits, as a process that
// is killed.
type storeWithEnd struct {
	*state.Store
	left int
}

var errKilled = errors.New("killed")

func (s *storeWithEnd) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	if s.left == 0 {
		return state.Commit{}, errKilled
	}
	s.left--
	return s.Store.Update(ctx, fn)
}

type world struct {
	t     *testing.T
	store *state.Store
	guest *guest
	seal  *secrets.Sealer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store, sealer := storetest.OpenSealed(t)
	w := &world{t: t, store: store, guest: &guest{token: "first"}, seal: sealer}
	sealed, err := w.seal.Seal(tokenKind, "uid1", []byte("first"))
	if err != nil {
		t.Fatal(err)
	}
	w.put(func(tx *state.Tx) error {
		if err := tx.PutHost(fleet.Host{ID: "h1", State: fleet.HostActive, Capacity: fleet.HostCapacity{VMCount: 9}}); err != nil {
			return err
		}
		return tx.PutVM(fleet.VM{ID: "fuse-1", UID: "uid1", Generation: 1, Owner: "x", TaskID: "1", HostID: "h1", State: fleet.VMStateProvisioning, AuthTokenSealed: sealed})
	})
	w.become(fleet.VMStateRunning)
	return w
}

func (w *world) put(fn func(*state.Tx) error) {
	w.t.Helper()
	if _, err := w.store.Update(context.WithoutCancel(w.t.Context()), fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) become(s fleet.VMState) {
	w.t.Helper()
	w.put(func(tx *state.Tx) error {
		vm, _ := tx.VMs().Get("fuse-1")
		changed := *vm
		changed.State = s
		return tx.PutVM(changed)
	})
}

// service is one process's.
func (w *world) service(store Store) *Service {
	w.t.Helper()
	s, err := New(Config{Store: store, Providers: hosts{w.guest}, Sealer: w.seal, Logger: slog.New(slog.DiscardHandler), TokenKind: tokenKind})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

func (w *world) row() fleet.VM {
	w.t.Helper()
	var row fleet.VM
	if err := w.store.View(func(tx *state.ReadTx) error {
		vm, ok := tx.VMs().Get("fuse-1")
		if !ok {
			return fleet.ErrVMNotFound
		}
		row = *vm
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return row
}

// agree checks that the store has the token that the guest takes, and that
// nothing is under way.
func (w *world) agree(rotations int64) {
	w.t.Helper()
	row := w.row()
	token, err := w.seal.Open(tokenKind, "uid1", row.AuthTokenSealed)
	if err != nil {
		w.t.Fatal(err)
	}
	w.guest.mu.Lock()
	defer w.guest.mu.Unlock()
	if string(token) != w.guest.token || rotations > 0 && !bytes.Equal(row.CertPEM, w.guest.cert) {
		w.t.Errorf("the store and the guest differ: %s and %s", token, w.guest.token)
	}
	if row.Rotation != rotations || len(row.PendingSealed) > 0 {
		w.t.Errorf("rotation %d, want %d; pending %v", row.Rotation, rotations, len(row.PendingSealed) > 0)
	}
}

// known checks that whatever the guest takes is in the store, sealed.
func (w *world) known() {
	w.t.Helper()
	row := w.row()
	token, err := w.seal.Open(tokenKind, "uid1", row.AuthTokenSealed)
	if err != nil {
		w.t.Fatal(err)
	}
	var next string
	if len(row.PendingSealed) > 0 {
		doc, err := w.seal.Open(SealKindPending, "uid1", row.PendingSealed)
		if err != nil {
			w.t.Fatal(err)
		}
		next = string(doc)
	}
	w.guest.mu.Lock()
	defer w.guest.mu.Unlock()
	if string(token) != w.guest.token && !strings.Contains(next, w.guest.token) {
		w.t.Error("the guest has a token that the store does not know")
	}
}

func (w *world) rotated() (events int) {
	w.t.Helper()
	all, err := w.store.Events(w.t.Context(), state.EventQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, ev := range all {
		if ev.Type == fleet.EventVMTokenRotated {
			if events++; ev.Reason == nil || ev.Reason.Actor != "user:x" || ev.UID != "uid1" || strings.Contains(fmt.Sprint(ev), w.guest.token) {
				w.t.Errorf("event %+v", ev)
			}
		}
	}
	return events
}

func TestRotate(t *testing.T) {
	w := newWorld(t)
	s := w.service(w.store)
	seen := map[string]bool{"first": true}
	for n := range int64(3) {
		if err := s.Rotate(t.Context(), "fuse-1", "user:x"); err != nil {
			t.Fatal(err)
		}
		w.agree(n + 1)
		if seen[w.guest.token] {
			t.Error("a token came again")
		}
		seen[w.guest.token] = true
	}
	if n := w.rotated(); n != 3 {
		t.Errorf("%d events", n)
	}
}

func TestWhoseTokenIsNotRotated(t *testing.T) {
	w := newWorld(t)
	s := w.service(w.store)
	other := auth.With(t.Context(), auth.Principal{Name: "y", Role: fleet.RoleUser})
	if err := s.Rotate(other, "fuse-1", "user:y"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("another's: %v", err)
	}
	if err := s.Rotate(t.Context(), "fuse-2", "user:x"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("unknown: %v", err)
	}
	for _, st := range []fleet.VMState{fleet.VMStateDraining, fleet.VMStateDestroying} {
		w.become(st)
		if err := s.Rotate(t.Context(), "fuse-1", "user:x"); fleet.CodeOf(err) != fleet.CodeConflict || !errors.Is(err, fleet.ErrVMNotRunning) {
			t.Errorf("%s: %v", st, err)
		}
	}
	if w.guest.calls != 0 {
		t.Errorf("the host was called %d times", w.guest.calls)
	}
	w.agree(0)
}

func noAnswer(bool) error {
	return fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "the host does not answer")
}

// Wherever a process dies, the next one brings the rotation to its end, and at
// no point does the guest have a token that the store does not know.
func TestACrashAtEachStep(t *testing.T) {
	for name, crash := range map[string]func(w *world) error{
		"before the claim": func(w *world) error {
			return w.service(&storeWithEnd{w.store, 0}).Rotate(w.t.Context(), "fuse-1", "user:x")
		},
		"claimed": func(w *world) error {
			w.guest.fail(errKilled, nil)
			return w.service(&storeWithEnd{w.store, 1}).Rotate(w.t.Context(), "fuse-1", "user:x")
		},
		"the host did it, its answer was lost": func(w *world) error {
			w.guest.fail(nil, noAnswer)
			return w.service(&storeWithEnd{w.store, 1}).Rotate(w.t.Context(), "fuse-1", "user:x")
		},
		"the host did it, nothing was settled": func(w *world) error {
			return w.service(&storeWithEnd{w.store, 1}).Rotate(w.t.Context(), "fuse-1", "user:x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if err := crash(w); err == nil {
					t.Fatal("no crash")
				}
				w.known()
				w.guest.fail(nil, nil)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- w.service(w.store).Run(ctx) }()
				synctest.Wait()
				want := int64(1)
				if name == "before the claim" {
					want = 0
				}
				w.agree(want)
				if n := w.rotated(); n != int(want) {
					t.Errorf("%d events", n)
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAHostThatIsAwayIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.service(w.store)
		w.guest.fail(noAnswer(false), nil)
		if err := s.Rotate(t.Context(), "fuse-1", "user:x"); fleet.CodeOf(err) != fleet.CodeUnavailable || !strings.Contains(details(err), "goes on by itself") {
			t.Errorf("host away: %v", err)
		}
		w.known()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		for _, conflict := range []error{
			// A host that is just back does not know its guests yet.
			fleet.Errorf(fleet.CodeConflict, "%w: it is unadopted", fleet.ErrVMNotRunning).With(fleet.DetailReason, "unadopted"),
			// One that takes nothing from this server says nothing of what it took before.
			fleet.Errorf(fleet.CodeConflict, "%w: it is a copy", fleet.ErrFenced).With(fleet.DetailReason, "other_store"),
			fleet.Errorf(fleet.CodeConflict, "%w: term 9", fleet.ErrStaleTerm).With(fleet.DetailReason, "stale_term"),
			fleet.Errorf(fleet.CodeConflict, "not claimed").With(fleet.DetailReason, "unclaimed"),
		} {
			w.guest.fail(conflict, nil)
			<-time.After(3 * retryEvery)
			if row := w.row(); len(row.PendingSealed) == 0 {
				t.Fatalf("the rotation was given up after %v", conflict)
			}
		}
		w.guest.fail(nil, nil)
		<-time.After(2 * retryEvery)
		w.agree(1)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func details(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fmt.Sprint(fe.Details)
	}
	return ""
}

func TestARefusalIsTakenBack(t *testing.T) {
	for _, code := range []fleet.Code{fleet.CodeUnimplemented, fleet.CodeConflict, fleet.CodeInvalidArgument} {
		w := newWorld(t)
		w.guest.fail(fleet.Errorf(code, "no"), nil)
		if err := w.service(w.store).Rotate(t.Context(), "fuse-1", "user:x"); fleet.CodeOf(err) != code {
			t.Errorf("%s: %v", code, err)
		}
		w.agree(1)
		if w.guest.token != "first" || w.rotated() != 0 {
			t.Errorf("%s: something was rotated", code)
		}
	}
}

// A store that was restored to a time before the guest's last rotations finds its
// count again, and until then nothing is answered that is not so.
func TestARestoredStoreCountsOn(t *testing.T) {
	w := newWorld(t)
	w.guest.number, w.guest.token = 7, "later"
	s := w.service(w.store)
	if err := s.Rotate(t.Context(), "fuse-1", "user:x"); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("the first: %v", err)
	}
	if row := w.row(); w.guest.token != "later" || len(row.PendingSealed) != 0 {
		t.Error("something was rotated")
	}
	if err := s.Rotate(t.Context(), "fuse-1", "user:x"); err != nil {
		t.Errorf("the second: %v", err)
	}
	w.agree(8)
}

// Many at once are one after another, and guest and store agree at the end.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	s := w.service(w.store)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := s.Rotate(t.Context(), "fuse-1", "user:x"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.agree(20)
	if n := w.rotated(); n != 20 {
		t.Errorf("%d events", n)
	}
}

// A caller that leaves does not stop a rotation.
func TestACallerThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.service(w.store)
		ctx, leave := context.WithCancel(t.Context())
		w.guest.fail(nil, func(bool) error { leave(); return nil })
		if err := s.Rotate(ctx, "fuse-1", "user:x"); err != nil && fleet.CodeOf(err) != fleet.CodeDeadlineExceeded {
			t.Errorf("the caller hears %v", err)
		}
		synctest.Wait()
		w.agree(1)
	})
}

// An environment that ends while its token is rotated stays ended.
func TestAnEndMeanwhile(t *testing.T) {
	w := newWorld(t)
	s := w.service(w.store)
	w.guest.fail(nil, func(bool) error {
		w.become(fleet.VMStateDestroying)
		w.put(func(tx *state.Tx) error { return tx.DeleteVM("fuse-1") })
		return nil
	})
	if err := s.Rotate(t.Context(), "fuse-1", "user:x"); err != nil {
		t.Error(err)
	}
	if w.rotated() != 0 {
		t.Error("an ended environment's token was rotated")
	}
}
