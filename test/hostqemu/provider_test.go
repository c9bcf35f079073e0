// Package hostqemu runs the provider suite over a host agent with real VMs.
package hostqemu

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
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
		drv, err := qemu.New(qemu.Config{Dir: dir, Registry: registry, Images: store, Accel: accel(), Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		h := hostdtest.Harness(t, hostd.Config{Dir: dir, Driver: drv, Logger: log}, fleet.Spec{CPUs: 1, RamMB: 256, StorageGB: 1, Image: "minimal"})
		h.Patience = 3 * time.Minute
		return h
	})
}
