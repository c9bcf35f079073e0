package freeze

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
)

// fake is a machine whose capture and copies are told apart by incarnation.
type fake struct {
	procs, fs   atomic.Bool // stand still
	starts      atomic.Bool // are held up
	incarnation atomic.Value
	told        int
	fail        error
}

func (k *fake) FreezeProcesses(ctx context.Context) (int, error) {
	if k.fail != nil {
		return 0, k.fail
	}
	k.procs.Store(true)
	return 3, ctx.Err()
}
func (k *fake) ThawProcesses() error { k.procs.Store(false); return nil }
func (k *fake) FreezeFilesystem(context.Context) error {
	k.fs.Store(k.fail == nil)
	return k.fail
}
func (k *fake) ThawFilesystem() error      { k.fs.Store(false); return nil }
func (k *fake) Tell() (int, error)         { k.told++; return 3, nil }
func (k *fake) Hold(context.Context) error { k.starts.Store(true); return nil }
func (k *fake) Let()                       { k.starts.Store(false) }

func machine(incarnation string) (*fake, *Freezer) {
	k := &fake{}
	k.incarnation.Store(incarnation)
	return k, New(Config{System: k, Starts: k, Incarnation: func() string { return k.incarnation.Load().(string) }})
}

var live = Request{Processes: true, Limit: time.Second, KeyHash: sha256.Sum256([]byte("key"))}

func TestTheCapturedMachineGoesOn(t *testing.T) {
	for name, end := range map[string]func(*Freezer) error{
		"released":   func(f *Freezer) error { _, err := f.Release(context.Background()); return err },
		"left alone": func(*Freezer) error { <-time.After(live.Limit + time.Millisecond); return nil },
		"released twice": func(f *Freezer) error {
			_, _ = f.Release(context.Background())
			_, err := f.Release(context.Background())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, f := machine("a")
				if _, err := f.Freeze(t.Context(), live); err != nil || !k.procs.Load() || !k.starts.Load() || !f.Frozen() {
					t.Fatalf("%v %v", err, k.procs.Load())
				}
				if err := end(f); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if k.procs.Load() || k.starts.Load() || f.Frozen() || k.told != 0 {
					t.Error("it stands still")
				}
				if err := f.Await(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// What was made from a capture is opened by renewal alone, whatever else comes.
func TestACopyIsShutUntilRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, f := machine("a")
		if _, err := f.Freeze(t.Context(), live); err != nil {
			t.Fatal(err)
		}
		k.incarnation.Store("b") // and from here on this is the copy
		if _, err := f.Release(t.Context()); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("released: %v", err)
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if !k.procs.Load() || !k.starts.Load() {
			t.Fatal("the watchdog opened a copy")
		}
		if _, _, err := f.Thaw(t.Context(), "g", nil); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("thawed before its renewal: %v", err)
		}
		broken := errors.New("no entropy")
		if err := f.Renew(t.Context(), "g", func() error { return broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		k.incarnation.Store("a") // even so
		if _, err := f.Release(t.Context()); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("released after a renewal that failed: %v", err)
		}
		k.incarnation.Store("b")
		if _, _, err := f.Thaw(t.Context(), "g", func() error { return broken }); !errors.Is(err, broken) || !k.procs.Load() {
			t.Errorf("thawed though its renewal failed: %v", err)
		}
		if err := f.Renew(t.Context(), "g", func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if told, _, err := f.Thaw(t.Context(), "g", func() error { return nil }); err != nil || told != 3 || k.procs.Load() || k.starts.Load() {
			t.Errorf("%d %v", told, err)
		}
		if _, _, err := f.Thaw(t.Context(), "g", func() error { return nil }); err != nil || k.told != 1 {
			t.Errorf("a repeat: %v, told %d times", err, k.told)
		}
		if f.Generation() != "g" || !f.Opens("key") || f.Opens("other") || f.Opens("") {
			t.Error("generation or key")
		}
	})
}

func TestOnlyTheHostOpensWhatTheHardwareDoesNotTellApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, f := machine("")
		if _, err := f.Freeze(t.Context(), live); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if !k.procs.Load() {
			t.Fatal("the watchdog opened what may be a copy")
		}
		if _, err := f.Release(t.Context()); err != nil || k.procs.Load() {
			t.Error(err)
		}
	})
}

func TestTheCapturedMachineIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, f := machine("a")
		renew := func() {
			t.Helper()
			if err := f.Renew(t.Context(), "g", func() error { t.Error("renewed"); return nil }); fleet.CodeOf(err) != fleet.CodeConflict {
				t.Error(err)
			}
		}
		renew()
		if _, err := f.Freeze(t.Context(), live); err != nil {
			t.Fatal(err)
		}
		renew()
		if _, err := f.Release(t.Context()); err != nil || k.procs.Load() {
			t.Error(err)
		}
	})
}

func TestFilesystemIsAlwaysThawed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, f := machine("a")
		if _, err := f.Freeze(t.Context(), Request{Filesystem: true}); err != nil || !k.fs.Load() || k.procs.Load() || k.starts.Load() {
			t.Fatal(err)
		}
		k.incarnation.Store("") // it makes no difference: no memory was captured
		<-time.After(DefaultLimit + time.Millisecond)
		synctest.Wait()
		if k.fs.Load() || f.Frozen() {
			t.Error("still frozen")
		}
		k.fail = ErrLate
		if _, err := f.Freeze(t.Context(), Request{Filesystem: true}); !errors.Is(err, ErrLate) || f.Frozen() {
			t.Error(err)
		}
		if _, err := f.Freeze(t.Context(), live); !errors.Is(err, ErrLate) || f.Frozen() || k.starts.Load() {
			t.Errorf("%v %v", err, k.procs.Load())
		}
	})
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	_, f := machine("a")
	for _, req := range []Request{{}, {Processes: true, Filesystem: true}, {Processes: true, Limit: time.Hour}} {
		if _, err := f.Freeze(t.Context(), req); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// Over any history the processes of a copy run only after a renewal that
// succeeded since it became one.
func TestNoCopyRunsUnrenewed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			k, f := machine("0")
			at, owed := 0, false // whether a renewal is owed
			for range rapid.IntRange(1, 30).Draw(r, "steps") {
				switch rapid.IntRange(0, 5).Draw(r, "step") {
				case 0:
					_, _ = f.Freeze(t.Context(), live)
				case 1:
					_, _ = f.Release(t.Context())
				case 2:
					<-time.After(rapid.SampledFrom([]time.Duration{time.Millisecond, 2 * time.Second}).Draw(r, "time"))
				case 3: // the machine is captured and this is the copy from now on
					if f.Frozen() {
						at++
						k.incarnation.Store(string(rune('0' + at)))
						owed = true
					}
				case 4:
					fail := rapid.Bool().Draw(r, "fails")
					ran := false
					err := f.Renew(t.Context(), "g", func() error {
						ran = true
						if fail {
							return ErrLate
						}
						return nil
					})
					if ran && err == nil {
						owed = false
					}
				case 5:
					_, _, _ = f.Thaw(t.Context(), "g", func() error {
						if owed {
							return ErrLate // the caller knows that the last renewal failed
						}
						return nil
					})
				}
				synctest.Wait()
				if owed && !k.procs.Load() {
					r.Fatal("a copy runs that was not renewed")
				}
				if k.procs.Load() != k.starts.Load() {
					r.Fatal("starts and processes do not agree")
				}
			}
			_, _ = f.Release(t.Context())
			<-time.After(time.Minute)
		})
	})
}
