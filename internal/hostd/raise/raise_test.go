package raise

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/admit"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/golden"
	"github.com/fusevm/fuse/internal/testkit"
)

// bench is a driver whose machines are nothing.
type bench struct {
	driver.Driver
	driver.Snapshotter

	forkErr, renewErr, thawErr error
	calls                      []string
}

func (b *bench) Shape(_ context.Context, vm driver.VM) (driver.Shape, int, bool, error) {
	return driver.Shape{Image: vm.Image}, 1, true, nil
}

func (b *bench) Start(_ context.Context, vm driver.VM, _ driver.Identity, _ func(string)) (driver.Instance, error) {
	if vm.ID == "vm" {
		b.calls = append(b.calls, "boot")
	}
	return &machine{b: b}, nil
}

func (b *bench) Remove(_ context.Context, vm driver.VM) error {
	if vm.ID == "vm" {
		b.calls = append(b.calls, "remove")
	}
	return nil
}

func (b *bench) Fork(context.Context, driver.VM, driver.Identity, driver.Artifact, func(string)) (driver.Revived, error) {
	b.calls = append(b.calls, "fork")
	return driver.Revived{Instance: &machine{b: b}, Live: true, ThawKey: "key"}, b.forkErr
}

func (b *bench) Snapshot(context.Context, driver.VM, driver.SnapshotRequest) (driver.SnapshotInfo, error) {
	return driver.SnapshotInfo{Kind: fleet.SnapshotKindLive, SizeBytes: 1}, nil
}

func (b *bench) Discard(context.Context, driver.Artifact) error { return nil }

type machine struct {
	driver.Instance
	b *bench
}

func (m *machine) Guest() driver.Guest { return &agent{b: m.b} }
func (m *machine) Close() error        { return nil }

type agent struct {
	driver.Guest
	b *bench
}

func (*agent) Exec(context.Context, fleet.ExecSpec, fleet.Stdio) (fleet.ExecStatus, error) {
	return fleet.ExecStatus{}, nil
}

func (a *agent) Renew(context.Context, string, guestwire.Renewal) (guestwire.Renewed, error) {
	out := guestwire.Renewed{Now: time.Now()}
	for _, name := range fleet.CertificateNames[:len(fleet.CertificateNames)-1] {
		out.Items = append(out.Items, fleet.Renewal{Name: name})
	}
	return out, a.b.renewErr
}

func (a *agent) Thaw(context.Context, string, string) (int, time.Duration, error) {
	return 0, 0, a.b.thawErr
}

func (a *agent) WriteFiles(context.Context, []fleet.GuestFile) error { return nil }

// full is a host whose memory others have taken for now.
type full struct{ driver.MemoryHolder }

func (full) Held(context.Context) (map[string]int64, error) { return nil, nil }

// keeper keeps golden captures of a bench below dir.
func keeper(t *testing.T, b *bench, dir string) *golden.Keeper {
	t.Helper()
	k, err := golden.Open(golden.Config{
		Dir: dir, Driver: b, Disk: 1 << 20, Identity: golden.Nobody, Log: slog.New(slog.DiscardHandler),
		Room: func(_ context.Context, vm driver.VM) (driver.VM, func(), error) {
			vm.Dir = filepath.Join(dir, vm.UID)
			return vm, func() {}, os.MkdirAll(vm.Dir, 0o700)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// A machine that can boot does not wait until others have given memory back that
// it needs for a golden capture alone.
func TestNoLongWaitForAGoldenCapture(t *testing.T) {
	b, dir := bench{}, t.TempDir()
	k := keeper(t, &b, dir)
	vm := driver.VM{ID: "vm", UID: "u", CPUs: 1, RamMB: 128, StorageGB: 1, Image: "a"}
	testkit.Eventually(t, time.Minute, "a golden capture is made", func() bool {
		k.Want(t.Context(), vm)
		f, ok := k.Find(t.Context(), vm)
		if ok {
			f.Release(nil)
		}
		return ok
	})
	gate := admit.New(admit.Config{Holder: full{}, Available: func() (int64, error) { return admit.Reserve + 1<<20, nil }, Log: slog.New(slog.DiscardHandler)})
	leave, err := gate.Load(t.Context(), "another", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	up, err := (&Raiser{Driver: &b, Golden: k, Memory: gate, Log: slog.New(slog.DiscardHandler)}).Start(ctx, vm, driver.Identity{}, Source{Golden: true}, nil)
	if err != nil || up.Mode != fleet.BootCold {
		t.Errorf("it came up by %s: %v", up.Mode, err)
	}
	if _, ok := k.Find(t.Context(), vm); !ok {
		t.Error("the capture has gone")
	}
}

// Whatever a golden capture does, the machine comes up.
func TestGoldenOrBooted(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		bench   bench
		off     bool
		none    bool // there is no capture yet
		calls   []string
		mode    fleet.BootMode
		counted []string
	}{
		"used":               {calls: []string{"fork"}, mode: fleet.BootGolden, counted: []string{"used"}},
		"switched off":       {off: true, calls: []string{"boot"}, mode: fleet.BootCold},
		"none yet":           {none: true, calls: []string{"boot"}, mode: fleet.BootCold, counted: []string{"none"}},
		"does not start":     {bench: bench{forkErr: broken}, calls: []string{"fork", "boot"}, mode: fleet.BootCold, counted: []string{"failed"}},
		"cannot be renewed":  {bench: bench{renewErr: broken}, calls: []string{"fork", "remove", "boot"}, mode: fleet.BootCold, counted: []string{"failed"}},
		"does not go on":     {bench: bench{thawErr: broken}, calls: []string{"fork", "remove", "boot"}, mode: fleet.BootCold, counted: []string{"failed"}},
		"of another machine": {bench: bench{forkErr: &driver.IncompatibleError{}}, calls: []string{"fork", "boot"}, mode: fleet.BootCold, counted: []string{"failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := tt.bench
			dir := t.TempDir()
			k := keeper(t, &b, dir)
			vm := driver.VM{ID: "vm", UID: "u", CPUs: 1, RamMB: 128, StorageGB: 1, Image: "a"}
			if !tt.none {
				testkit.Eventually(t, time.Minute, "a golden capture is made", func() bool {
					k.Want(t.Context(), vm)
					f, ok := k.Find(t.Context(), vm)
					if ok {
						f.Release(nil)
					}
					return ok
				})
			}
			var counted []string
			r := &Raiser{Driver: &b, Golden: k, Count: func(what string) { counted = append(counted, what) }, Log: slog.New(slog.DiscardHandler)}
			up, err := r.Start(t.Context(), vm, driver.Identity{}, Source{Golden: !tt.off}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]any{tt.calls, tt.mode, tt.counted}, []any{b.calls, up.Mode, counted}); diff != "" {
				t.Error(diff)
			}
			if (up.Certificate != nil) != (tt.mode == fleet.BootGolden) {
				t.Errorf("certificate %+v", up.Certificate)
			}
			if tt.none { // it is being made by now
				return
			}
			if _, ok := k.Find(t.Context(), vm); ok != (tt.mode == fleet.BootGolden || tt.off) {
				t.Errorf("the capture is there: %v", ok)
			}
		})
	}
}
