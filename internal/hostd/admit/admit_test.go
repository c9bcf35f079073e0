package admit

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// host is one of so much memory.
type host struct {
	free, making int64
	held         map[string]int64
}

func (h *host) Held(context.Context) (map[string]int64, error) { return maps.Clone(h.held), nil }
func (h *host) Unload(context.Context, driver.Artifact) error  { return nil }
func (h *host) Needs(_ context.Context, vm driver.VM) (int64, error) {
	return int64(vm.RamMB) << 20, nil
}
func (h *host) gate() *Gate {
	return New(Config{
		Holder: h, Making: func() int64 { return h.making }, Available: func() (int64, error) { return h.free, nil }, Log: slog.New(slog.DiscardHandler),
	})
}

const mb = int64(1) << 20

func refused(t *testing.T, err error) {
	t.Helper()
	var fe *fleet.Error
	if !errors.Is(err, fleet.ErrNoCapacity) || !errors.As(err, &fe) || fe.Code != fleet.CodeUnavailable {
		t.Fatalf("got %v", err)
	}
	for _, d := range []string{fleet.DetailScope, fleet.DetailLimit, fleet.DetailUsage, fleet.DetailRemedy} {
		if fe.Details[d] == "" {
			t.Errorf("no %s in %v", d, fe.Details)
		}
	}
}

// What nobody could give back is refused at once; what others give back is
// waited for.
func TestACaptureFitsOrIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		free, making int64
		need         int
		fits         bool
	}{
		"to the last byte":              {free: Reserve + 512*mb, need: 512, fits: true},
		"into the reserve":              {free: Reserve + 511*mb, need: 512},
		"what is promised to a machine": {free: Reserve + 1000*mb, making: 500 * mb, need: 512},
		"beside it":                     {free: Reserve + 1000*mb, making: 400 * mb, need: 512, fits: true},
		"less than the reserve":         {free: 10 * mb, need: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := (&host{free: tt.free, making: tt.making}).gate()
			leave, err := g.Capture(t.Context(), driver.VM{RamMB: tt.need})
			if !tt.fits {
				refused(t, err)
				if g.taken != 0 || g.inside != 0 {
					t.Errorf("%d bytes and %d turns stay with who was refused", g.taken, g.inside)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			leave()
			leave()
			if g.taken != 0 || g.inside != 0 {
				t.Errorf("%d bytes and %d turns stay", g.taken, g.inside)
			}
		})
	}
}

func TestCapturesWaitInLine(t *testing.T) {
	for name, tt := range map[string]struct {
		free int64
		most int // at once
	}{
		"for a turn":    {free: 1 << 40, most: AtOnce},
		"for memory":    {free: Reserve + 2*256*mb, most: 2},
		"one at a time": {free: Reserve + 300*mb, most: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := (&host{free: tt.free}).gate()
				done := make(chan error)
				now, most := 0, 0
				for range 10 {
					go func() {
						leave, err := g.Capture(t.Context(), driver.VM{RamMB: 256})
						if err == nil {
							g.mu.Lock()
							now++
							most = max(most, now)
							g.mu.Unlock()
							<-time.After(time.Second)
							g.mu.Lock()
							now--
							g.mu.Unlock()
							leave()
						}
						done <- err
					}()
				}
				begun := time.Now()
				for range 10 {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				if want := time.Duration((10+tt.most-1)/tt.most) * time.Second; most != tt.most || time.Since(begun) != want {
					t.Errorf("%d at once in %s, want %d in %s", most, time.Since(begun), tt.most, want)
				}
			})
		})
	}
}

// Who gives up in line, first or not, leaves nothing there.
func TestTheLineObeysItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := (&host{free: Reserve + 256*mb}).gate()
		leave, err := g.Capture(t.Context(), driver.VM{RamMB: 256})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := g.Capture(ctx, driver.VM{RamMB: 256})
				out <- err
			}()
		}
		for range 2 {
			if err := <-out; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		leave()
		if leave, err = g.Capture(t.Context(), driver.VM{RamMB: 256}); err != nil {
			t.Fatal(err)
		}
		leave()
	})
}

// Machines are not promised what a capture under way may take, nor captures what
// a machine was promised.
func TestNothingIsPromisedTwice(t *testing.T) {
	h := &host{free: Reserve + 1000*mb}
	g := h.gate()
	making := func() int64 { return h.making }
	if err := g.Beside(driver.VM{RamMB: 1 << 20}, 0, making); err != nil {
		t.Errorf("without captures machines are the registry's to admit: %v", err)
	}
	leave, err := g.Capture(t.Context(), driver.VM{RamMB: 600})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Beside(driver.VM{RamMB: 300}, 100, making); err != nil {
		t.Error(err)
	}
	refused(t, g.Beside(driver.VM{RamMB: 300}, 101, making))
	h.making = 100 * mb
	refused(t, g.Beside(driver.VM{RamMB: 300}, 100, making))
	leave()
	h.making = 500 * mb
	_, err = g.Capture(t.Context(), driver.VM{RamMB: 600})
	refused(t, err)
	if leave, err = g.Capture(t.Context(), driver.VM{RamMB: 600, HugePages: true}); err != nil {
		t.Errorf("memory of huge pages is not copied: %v", err)
	}
	leave()
}

// Memory is loaded once for all who want it, and not if it is there.
func TestMemoryIsLoadedOnce(t *testing.T) {
	h := &host{free: Reserve + 500*mb, held: map[string]int64{"there": 1}}
	g := h.gate()
	if leave, err := g.Load(t.Context(), "there", 900*mb); err != nil || g.taken != 0 {
		t.Errorf("%d bytes for what is in RAM: %v", g.taken, err)
	} else {
		leave()
	}
	_, err := g.Load(t.Context(), "large", 501*mb)
	refused(t, err)
	var leaves []func()
	for range 3 {
		leave, err := g.Load(t.Context(), "seed", 400*mb)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if g.taken != 400*mb {
		t.Errorf("%d bytes for one memory", g.taken)
	}
	for _, leave := range leaves {
		leave()
		leave()
	}
	if g.taken != 0 || len(g.loading) != 0 {
		t.Errorf("%d bytes and %v stay", g.taken, g.loading)
	}
}

// Who wants a memory that another waits for waits with it, and what was promised to
// both stays promised until both have left.
func TestALoadIsPromisedToAllWhoWantIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := (&host{free: Reserve + 500*mb}).gate()
		capture, err := g.Capture(t.Context(), driver.VM{RamMB: 400})
		if err != nil {
			t.Fatal(err)
		}
		in := make(chan func(), 3)
		for range 3 {
			go func() {
				leave, err := g.Load(t.Context(), "seed", 400*mb)
				if err != nil {
					t.Error(err)
				}
				in <- leave
			}()
			synctest.Wait()
		}
		if len(in) != 0 {
			t.Errorf("%d load what there is no memory for", len(in))
		}
		capture()
		synctest.Wait()
		if len(in) != 3 || g.taken != 400*mb {
			t.Fatalf("%d may load, and %d bytes are promised", len(in), g.taken)
		}
		(<-in)()
		(<-in)()
		if g.taken != 400*mb {
			t.Errorf("%d bytes are promised to who still loads", g.taken)
		}
		(<-in)()
		if g.taken != 0 || len(g.loading) != 0 {
			t.Errorf("%d bytes and %v stay", g.taken, g.loading)
		}
	})
}

func TestSeedsAreCounted(t *testing.T) {
	h := &host{held: map[string]int64{"a": 5 * mb, "b": mb / 2, "file": 100 * mb}}
	g := h.gate()
	g.Note(t.Context(), []string{"a", "b", "gone"})
	if got := g.Seeds().RamMB; got != 6 {
		t.Errorf("%d MB", got)
	}
	g.Note(t.Context(), nil)
	if got := g.Seeds(); got.RamMB != 0 {
		t.Errorf("%+v", got)
	}
	var none *Gate
	none.Note(t.Context(), nil)
	if none.Seeds().RamMB != 0 || none.Beside(driver.VM{RamMB: 1}, 0, nil) != nil {
		t.Error("a host without captures")
	}
}
