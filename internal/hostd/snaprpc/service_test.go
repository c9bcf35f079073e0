package snaprpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/admit"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/raise"
	"github.com/fusevm/fuse/internal/hostd/snapstore"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// world is a host of one VM, its driver and its guest.
type world struct {
	takes time.Duration // of a restore, a pause and a resumption
	driver.Driver
	driver.Snapshotter

	renewErr, keepErr, thawErr, undoErr error
	beginErr, resumeErr                 error

	live   bool
	paused bool
	late   bool // time is up as the machine is to go on
	ended  chan struct{}
	cancel context.CancelFunc
	state  string // runs NAME, stands, ended CAUSE
	ran    bool   // processes of the revived machine ran
	awake  int
	undone int
}

type machine struct {
	driver.Instance
	name string
	w    *world
}

func (m *machine) Guest() driver.Guest   { return &agent{w: m.w} }
func (m *machine) Close() error          { return nil }
func (m *machine) Done() <-chan struct{} { return m.w.ended }

type agent struct {
	driver.Guest
	w *world
}

func (a *agent) Renew(context.Context, string, guestwire.Renewal) (guestwire.Renewed, error) {
	out := guestwire.Renewed{Now: time.Now()}
	for _, name := range fleet.CertificateNames[:len(fleet.CertificateNames)-1] {
		out.Items = append(out.Items, fleet.Renewal{Name: name})
	}
	return out, a.w.renewErr
}

func (a *agent) Thaw(context.Context, string, string) (int, time.Duration, error) {
	if a.w.late {
		a.w.cancel()
	}
	a.w.ran = a.w.thawErr == nil
	return 1, time.Second, a.w.thawErr
}

func (a *agent) WriteFiles(context.Context, []fleet.GuestFile) error { return nil }

func (w *world) revived(before driver.Instance) (driver.Revived, error) {
	return driver.Revived{
		Instance: &machine{name: "next", w: w}, Live: w.live, ThawKey: "key", Before: before,
		Keep: func(context.Context) error { return w.keepErr },
		Undo: func(context.Context) error { w.undone++; return w.undoErr },
	}, nil
}

// read is the long part of a driver's verb: half of it is done at once.
func (w *world) read(ctx context.Context, step func(string)) {
	if w.takes > 0 {
		step("seed")
		driver.Tick(ctx, "memory")(50, 100)
		<-time.After(w.takes)
	}
}

func (w *world) Restore(ctx context.Context, _ driver.VM, _ driver.Artifact, step func(string)) (driver.Revived, error) {
	w.read(ctx, step)
	if w.beginErr != nil {
		return driver.Revived{}, w.beginErr
	}
	return w.revived(&machine{name: "before", w: w})
}

func (w *world) Resume(ctx context.Context, _ driver.VM, step func(string)) (driver.Revived, error) {
	w.read(ctx, step)
	if w.resumeErr != nil {
		return driver.Revived{}, w.resumeErr
	}
	return w.revived(nil)
}

func (w *world) Pause(ctx context.Context, _ driver.VM, step func(string)) (driver.SnapshotInfo, error) {
	w.read(ctx, step)
	return driver.SnapshotInfo{}, w.beginErr
}

func (w *world) Once(ctx context.Context, _ *hostwirev1.Fence, _ *hostwirev1.Ref, op Op) (Outcome, error) {
	vm := VM{
		VM: driver.VM{ID: "vm", UID: "u"}, Instance: &machine{name: "before", w: w},
		Runs:   func(inst driver.Instance) { w.state = "runs " + inst.(*machine).name },
		Stands: func() { w.state = "stands" },
		Ended:  func(cause, _ string) { w.state = "ended " + cause },
		Unsure: func() { w.state = "unsure" },
		Wake:   func() (func(), error) { w.awake++; return func() { w.awake-- }, nil },
	}
	if w.paused {
		vm.Instance = nil
	}
	ctx, w.cancel = context.WithCancel(ctx)
	defer w.cancel()
	return op.Do(ctx, vm)
}

func (w *world) CreateFrom(_ context.Context, _ *hostwirev1.CreateVMRequest, src raise.Source, _ func(string) error) (*hostwirev1.CreateVMResult, error) {
	w.read(driver.Telling(context.Background(), src.Tell), func(string) {})
	return nil, errors.New("not here")
}
func (w *world) Fenced(*hostwirev1.Fence) error { return nil }
func (w *world) Complete() (bool, string)       { return true, "" }

// Whatever fails, it is known what runs, and no process ran that must not.
func TestGoingOnOrBack(t *testing.T) {
	broken, over := errors.New("broken"), make(chan struct{})
	lost := errors.Join(broken, driver.ErrUnsure)
	close(over)
	for name, tt := range map[string]struct {
		world  world
		state  string
		fails  bool
		undone int
		awake  int
	}{
		"restored":                       {world: world{live: true}, state: "runs next"},
		"restored by a boot":             {world: world{}, state: "runs next"},
		"restore: not renewed":           {world: world{live: true, renewErr: broken}, state: "runs before", fails: true, undone: 1},
		"restore: not kept":              {world: world{live: true, keepErr: broken}, state: "runs before", fails: true, undone: 1},
		"restore: booted and not kept":   {world: world{keepErr: broken}, state: "runs before", fails: true, undone: 1},
		"restore: does not go on":        {world: world{live: true, thawErr: broken}, state: "ended thaw_failed", fails: true},
		"restore: neither here nor back": {world: world{live: true, renewErr: broken, undoErr: broken}, state: "unsure", fails: true, undone: 1},
		"restore: goes on later":         {world: world{live: true, thawErr: broken, late: true}, state: "unsure", fails: true},
		"restore: not undone":            {world: world{live: true, beginErr: lost}, state: "unsure", fails: true},
		"restore: ended, and not undone": {world: world{live: true, beginErr: lost, ended: over}, fails: true},
		"resume: not undone":             {world: world{live: true, paused: true, resumeErr: lost}, state: "unsure", fails: true, awake: 1},
		"resumed":                        {world: world{live: true, paused: true}, state: "runs next", awake: 1},
		"resume: not renewed":            {world: world{live: true, paused: true, renewErr: broken}, state: "stands", fails: true, undone: 1},
		"resume: not kept":               {world: world{live: true, paused: true, keepErr: broken}, state: "stands", fails: true, undone: 1},
		"resume: does not go on":         {world: world{live: true, paused: true, thawErr: broken}, state: "ended thaw_failed", fails: true},
		"resume: goes on later":          {world: world{live: true, paused: true, thawErr: broken, late: true}, state: "unsure", fails: true, awake: 1},
		"resume: neither here nor back":  {world: world{live: true, paused: true, renewErr: broken, undoErr: broken}, state: "unsure", fails: true, undone: 1, awake: 1},
		"resume: what runs already":      {world: world{live: true}, state: ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := tt.world
			store, err := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			kind := fleet.SnapshotKindDisk
			if w.live {
				kind = fleet.SnapshotKindLive
			}
			if _, err := store.Begin(snapstore.Record{ID: "s", FleetID: "f", VMID: "vm", UID: "u"}); err != nil {
				t.Fatal(err)
			}
			if _, err := store.Written("s", driver.SnapshotInfo{Kind: kind}); err != nil {
				t.Fatal(err)
			}
			s := &Service{Host: &w, Driver: &w, Store: store, Log: slog.New(slog.DiscardHandler)}
			var out Outcome
			if name[:6] == "resume" {
				out, err = s.Resume(t.Context(), &hostwirev1.Fence{FleetId: "f"}, nil)
			} else {
				out, err = s.Restore(t.Context(), &hostwirev1.RestoreVMRequest{Fence: &hostwirev1.Fence{FleetId: "f"}, SnapshotId: "s", Kind: string(kind)}, nil)
			}
			got := []any{w.state, err != nil, w.undone, w.awake}
			if diff := cmp.Diff([]any{tt.state, tt.fails, tt.undone, tt.awake}, got); diff != "" {
				t.Errorf("%s (%v)", diff, err)
			}
			if errors.Is(err, hostwire.ErrUnsure) != (tt.state == "unsure") {
				t.Errorf("it is told that %v", err)
			}
			if w.ran && tt.fails {
				t.Error("processes ran in a machine that does not count")
			}
			if !tt.fails && w.live && tt.state != "" && (out.Certificate == nil || len(out.Certificate.Lacks()) > 0) {
				t.Errorf("certificate %+v", out.Certificate)
			}
		})
	}
}

// Who waits for a restore is told its phases, and nothing after the answer.
func TestARestoreTellsHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{live: true, takes: 900 * time.Millisecond}
		store, err := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if _, err := store.Begin(snapstore.Record{ID: "s", FleetID: "f", VMID: "vm", UID: "u"}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Written("s", driver.SnapshotInfo{Kind: fleet.SnapshotKindLive}); err != nil {
			t.Fatal(err)
		}
		s := &Service{Host: w, Driver: w, Store: store, Log: slog.New(slog.DiscardHandler)}
		var told []*hostwirev1.SnapshotProgress
		req := &hostwirev1.RestoreVMRequest{
			Fence: &hostwirev1.Fence{FleetId: "f"}, Ref: &hostwirev1.Ref{VmId: "vm"}, SnapshotId: "s", Kind: string(fleet.SnapshotKindLive),
		}
		if _, err := s.Restore(t.Context(), req, func(p *hostwirev1.SnapshotProgress) error {
			told = append(told, p)
			return nil
		}); err != nil {
			t.Error(err)
		}
		halfway(t, told)
		if len(s.taking) != 0 {
			t.Errorf("left %v", s.taking)
		}
	})
}

// halfway wants what a reading tells while it takes 0.9 s: bytes and a rate.
func halfway(t *testing.T, told []*hostwirev1.SnapshotProgress) {
	t.Helper()
	if len(told) < 3 {
		t.Fatalf("told %v", told)
	}
	for _, p := range told {
		if p.GetPhase() != "memory" || p.GetDoneBytes() != 50 || p.GetTotalBytes() != 100 || p.GetBytesPerSecond() <= 0 {
			t.Errorf("told %v", p)
		}
	}
}

// Work with a VM has a capture's place in no case, and that of a repeat only until
// the repeat is there.
func TestWorkIsKnownByItsOwnName(t *testing.T) {
	s, capture := &Service{}, &taking{}
	defer s.enter("snap", capture)()
	fence, ref := &hostwirev1.Fence{FleetId: "f"}, &hostwirev1.Ref{Uid: "snap"}
	_, _, left := s.told(t.Context(), vmKey(fence, ref))
	_, again, leave := s.told(t.Context(), vmKey(fence, ref))
	left()
	if s.taking["snap"] != capture || s.taking[vmKey(fence, ref)] != again {
		t.Errorf("known are %v", s.taking)
	}
	if leave(); len(s.taking) != 1 {
		t.Errorf("left are %v", s.taking)
	}
}

// Who follows a VM is told how far a pause, a resumption and a making from a
// snapshot are, and nothing of another VM's.
func TestAVMIsFollowed(t *testing.T) {
	fence, ref := &hostwirev1.Fence{FleetId: "f"}, &hostwirev1.Ref{VmId: "vm", Uid: "u"}
	for name, do := range map[string]func(ctx context.Context, s *Service) error{
		"pause":  func(ctx context.Context, s *Service) error { _, err := s.Pause(ctx, fence, ref); return err },
		"resume": func(ctx context.Context, s *Service) error { _, err := s.Resume(ctx, fence, ref); return err },
		"fork": func(ctx context.Context, s *Service) error {
			req := &hostwirev1.CreateVMFromSnapshotRequest{Create: &hostwirev1.CreateVMRequest{Fence: fence, Ref: ref}, SnapshotId: "s"}
			if err := (handler{s}).CreateVMFromSnapshot(ctx, connect.NewRequest(req), nil); err == nil || err.Error() != "not here" {
				return fmt.Errorf("made: %w", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{live: true, takes: 900 * time.Millisecond, paused: name == "resume"}
				s := &Service{Host: w, Driver: w, Store: &snapstore.Store{}, Log: slog.New(slog.DiscardHandler)}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var told, others []*hostwirev1.SnapshotProgress
				var wg sync.WaitGroup
				for who, into := range map[[2]string]*[]*hostwirev1.SnapshotProgress{{"f", "u"}: &told, {"f", "another"}: &others, {"g", "u"}: &others} {
					wg.Go(func() {
						err := s.Follow(ctx, &hostwirev1.Fence{FleetId: who[0]}, &hostwirev1.Ref{Uid: who[1]}, func(p *hostwirev1.SnapshotProgress) error {
							*into = append(*into, p)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					})
				}
				if err := do(t.Context(), s); err != nil {
					t.Error(err)
				}
				stop()
				wg.Wait()
				halfway(t, told)
				if len(others) > 0 || len(s.taking) > 0 {
					t.Errorf("told of another %v, left %v", others, s.taking)
				}
			})
		})
	}
}

// What is being written is ended before it is removed, whoever removes it.
func TestWhatIsBeingWrittenIsNotRemovedBelowIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &holder{held: map[string]int64{}}
		store, err := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if _, err := store.Begin(snapstore.Record{ID: "s", FleetID: "f", VMID: "vm", UID: "u"}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := store.Condemn("f", "s"); err != nil {
			t.Fatal(err)
		}
		s := &Service{Driver: d, Store: store, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancelCause(t.Context())
		making := &taking{cancel: cancel, done: make(chan struct{})}
		leave := s.enter("s", making)
		there := func() bool { _, err := os.Stat(store.Artifact("s").Dir); return err == nil }
		s.Retry(t.Context())
		if !there() || !errors.Is(context.Cause(ctx), errDeleted) {
			t.Errorf("after a retry: there %t, its making ended with %v", there(), context.Cause(ctx))
		}
		purged := make(chan error, 1)
		go func() { purged <- s.Purge(t.Context(), "f") }()
		synctest.Wait()
		if !there() {
			t.Error("removed below who writes it")
		}
		leave()
		close(making.done)
		if err := <-purged; err != nil || there() {
			t.Errorf("purged: %v, there %t", err, there())
		}
	})
}

func TestADriverThatMakesNoSnapshots(t *testing.T) {
	s := &Service{Driver: struct{ driver.Driver }{}, Log: slog.New(slog.DiscardHandler)}
	s.Adopt(t.Context())
	s.Retry(t.Context())
	if _, err := s.Pause(t.Context(), nil, nil); !errors.Is(err, fleet.ErrSnapshotUnsupported) || fleet.CodeOf(err) != fleet.CodeUnimplemented {
		t.Error(err)
	}
	if len(s.Artifacts()) != 0 || s.Purge(t.Context(), "f") != nil {
		t.Error("there is something")
	}
}

// What keeps a machine paused is told with what can be done about it.
func TestWhatStaysPausedSaysWhy(t *testing.T) {
	for _, tt := range []struct {
		err, is error
		says    string
	}{
		{fmt.Errorf("seed: %w", &driver.DamagedError{ID: "u", Why: "its memory is missing"}), fleet.ErrSnapshotCorrupt, "its memory is missing"},
		{fmt.Errorf("seed: %w", &driver.IncompatibleError{Differences: []string{"QEMU version is 8"}}), fleet.ErrSnapshotIncompatible, "QEMU version is 8"},
	} {
		w := &world{paused: true, resumeErr: tt.err}
		store, err := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		s := &Service{Host: w, Driver: w, Store: store, Log: slog.New(slog.DiscardHandler)}
		_, err = s.Resume(t.Context(), &hostwirev1.Fence{FleetId: "f"}, nil)
		var fe *fleet.Error
		if !errors.Is(err, tt.is) || !errors.As(err, &fe) || fe.Code != fleet.CodeConflict || fe.Details[fleet.DetailRemedy] == "" || !strings.Contains(fe.Message, tt.says) || w.awake != 0 {
			t.Errorf("%v, awake %d", err, w.awake)
		}
	}
}

// A machine of which nobody knows what runs after a pause is looked at anew.
func TestAPauseThatIsNotUndone(t *testing.T) {
	for err, state := range map[error]string{errors.New("broken"): "", driver.ErrUnsure: "unsure"} {
		w := &world{beginErr: err}
		store, serr := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
		if serr != nil {
			t.Fatal(serr)
		}
		defer store.Close()
		s := &Service{Host: w, Driver: w, Store: store, Log: slog.New(slog.DiscardHandler)}
		if _, got := s.Pause(t.Context(), &hostwirev1.Fence{FleetId: "f"}, nil); !errors.Is(got, err) || w.state != state {
			t.Errorf("%v: %v, %q", err, got, w.state)
		}
	}
}

// stubborn cannot capture, and not discard what it made either, at first.
type stubborn struct {
	world
	tries int
}

func (d *stubborn) Snapshot(context.Context, driver.VM, driver.SnapshotRequest) (driver.SnapshotInfo, error) {
	return driver.SnapshotInfo{}, driver.ErrUnsure
}

func (d *stubborn) Discard(context.Context, driver.Artifact) error {
	if d.tries++; d.tries < 3 {
		return errors.New("busy")
	}
	return nil
}

// What could not be discarded at once is later, while the agent runs.
func TestAFailedSnapshotIsDiscardedInTheEnd(t *testing.T) {
	store, err := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	d := &stubborn{}
	s := &Service{Host: &d.world, Driver: d, Store: store, Log: slog.New(slog.DiscardHandler)}
	_, err = s.Take(t.Context(), &hostwirev1.TakeSnapshotRequest{Fence: &hostwirev1.Fence{FleetId: "f"}, Ref: &hostwirev1.Ref{OperationId: "op"}, SnapshotId: "s"}, nil)
	if err == nil || len(s.Artifacts()) != 1 || d.state != "unsure" {
		t.Fatalf("%v, left %v, the machine %q", err, s.Artifacts(), d.state)
	}
	for range 2 {
		s.Retry(t.Context())
	}
	if left := s.Artifacts(); len(left) != 0 || d.tries != 3 {
		t.Errorf("left %v after %d tries", left, d.tries)
	}
}

// holder keeps the memory of captures.
type holder struct {
	world
	held map[string]int64
}

func (h *holder) Held(context.Context) (map[string]int64, error)  { return maps.Clone(h.held), nil }
func (h *holder) Discard(context.Context, driver.Artifact) error  { return nil }
func (h *holder) Needs(context.Context, driver.VM) (int64, error) { return 1 << 20, nil }
func (h *holder) Unload(_ context.Context, a driver.Artifact) error {
	delete(h.held, a.ID)
	return nil
}

// What the host has no memory for is refused, and the machine runs on; what
// exists in memory alone counts as used until it is gone.
func TestMemoryOfCapturesIsAdmitted(t *testing.T) {
	store, err := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	free := int64(admit.Reserve)
	h := &holder{held: map[string]int64{"seed": 3 << 20}}
	s := &Service{Host: &h.world, Driver: h, Store: store, Log: slog.New(slog.DiscardHandler), Memory: admit.New(admit.Config{
		Holder: h, Available: func() (int64, error) { return free, nil }, Log: slog.New(slog.DiscardHandler),
	})}
	fence, ref := &hostwirev1.Fence{FleetId: "f"}, &hostwirev1.Ref{OperationId: "op"}
	if _, err := s.Pause(t.Context(), fence, ref); !errors.Is(err, fleet.ErrNoCapacity) || h.state != "" {
		t.Errorf("pause: %v, the machine %q", err, h.state)
	}
	if _, err := s.Take(t.Context(), &hostwirev1.TakeSnapshotRequest{Fence: fence, Ref: ref, SnapshotId: "seed", Live: true, Volatile: true}, nil); !errors.Is(err, fleet.ErrNoCapacity) || h.state != "" || len(s.Artifacts()) != 0 {
		t.Errorf("snapshot: %v, the machine %q, left %v", err, h.state, s.Artifacts())
	}
	free += 1 << 20
	if _, err := s.Pause(t.Context(), fence, ref); err != nil || h.state != "stands" {
		t.Errorf("pause: %v, the machine %q", err, h.state)
	}
	if _, err := store.Begin(snapstore.Record{ID: "seed2", FleetID: "f", VMID: "vm", UID: "u"}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Written("seed2", driver.SnapshotInfo{Kind: fleet.SnapshotKindLive, Volatile: true}); err != nil {
		t.Fatal(err)
	}
	h.held["seed2"] = 5 << 20
	s.Retry(t.Context())
	if got := s.Memory.Seeds().RamMB; got != 5 {
		t.Errorf("%d MB are counted of a seed", got)
	}
	delete(h.held, "seed2")
	if err := s.Delete(t.Context(), fence, "seed2"); err != nil || s.Memory.Seeds().RamMB != 0 {
		t.Errorf("%v, %d MB are counted of what is gone", err, s.Memory.Seeds().RamMB)
	}
}

// What stays loaded keeps to its bound; what is used, or is nowhere else, stays.
func TestMemoryThatIsKeptLoadedIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		ram  int64
		want []string
	}{
		"of two":     {ram: 20, want: []string{"a", "c", "golden-x", "volatile"}},
		"of none":    {ram: -1, want: []string{"busy", "golden-x", "volatile"}},
		"of all":     {ram: 40, want: []string{"a", "busy", "c", "golden-x", "volatile"}},
		"by default": {want: []string{"a", "busy", "c", "golden-x", "volatile"}},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := snapstore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			h := &holder{held: map[string]int64{"golden-x": 10}}
			for _, id := range []string{"a", "busy", "c", "volatile"} {
				if _, err := store.Begin(snapstore.Record{ID: id, FleetID: "f", VMID: "vm", UID: "u"}); err != nil {
					t.Fatal(err)
				}
				if _, err := store.Written(id, driver.SnapshotInfo{Kind: fleet.SnapshotKindLive, Volatile: id == "volatile"}); err != nil {
					t.Fatal(err)
				}
				h.held[id] = 10
			}
			_, release, err := store.Use("f", "busy", "x")
			if err != nil {
				t.Fatal(err)
			}
			if tt.ram > 0 && tt.ram < 40 { // used before a fork of c was
				release()
				_, done, err := store.Use("f", "a", "x")
				if err != nil {
					t.Fatal(err)
				}
				done()
				_, done, err = store.Use("f", "c", "x")
				if err != nil {
					t.Fatal(err)
				}
				done()
			} else {
				defer release()
			}
			s := &Service{Host: &h.world, Driver: h, Store: store, RAM: tt.ram, Log: slog.New(slog.DiscardHandler)}
			s.Retry(t.Context())
			if diff := cmp.Diff(tt.want, slices.Sorted(maps.Keys(h.held))); diff != "" {
				t.Error(diff)
			}
		})
	}
}
