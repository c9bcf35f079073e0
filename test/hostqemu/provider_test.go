// Package hostqemu runs the provider suite over a host agent with real VMs.
package hostqemu

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestProviderOverQEMU(t *testing.T) {
	store := imagetest.Store(t)
	// One probe for all: where KVM hangs it takes seconds.
	accel := sync.OnceValue(func() string {
		d, err := qemu.New(qemu.Config{Dir: t.TempDir(), Registry: "probe", Images: store, UserNet: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		facts, err := d.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return facts.Accelerator
	})
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		dir := t.TempDir()
		registry, err := hostd.RegistryID(dir)
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		// The machine may be busy with other tests.
		drv, err := qemu.New(qemu.Config{Dir: dir, Registry: registry, Images: store, Accel: accel(), Logger: log, BootTimeout: 8 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		s := &slow{Driver: drv}
		h := hostdtest.Harness(t, hostd.Config{Dir: dir, Driver: s, Logger: log}, fleet.Spec{CPUs: 1, RamMB: 256, StorageGB: 1, Image: "minimal"})
		h.Patience, h.SlowCreate = 8*time.Minute, s.slow
		return h
	})
}

// slow is a driver whose guests can be told to take longer than a test waits.
type slow struct {
	*qemu.Driver
	undone atomic.Pointer[chan struct{}]
}

func (s *slow) slow() (undo func()) {
	undone := make(chan struct{})
	s.undone.Store(&undone)
	return sync.OnceFunc(func() { s.undone.Store(nil); close(undone) })
}

// Start implements driver.Driver.
func (s *slow) Start(ctx context.Context, vm driver.VM, id driver.Identity, step func(string)) (driver.Instance, error) {
	return s.Driver.Start(ctx, vm, id, func(name string) {
		if step != nil {
			step(name)
		}
		if undone := s.undone.Load(); undone != nil && name == "guest" { // its process runs
			select {
			case <-*undone:
			case <-ctx.Done():
			}
		}
	})
}
