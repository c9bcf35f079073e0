package remote_test

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestProviderOverSim(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		drv, err := sim.New(sim.Options{VMs: 50, RamMB: 1 << 20, ObjectDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		h := hostdtest.Harness(t, hostd.Config{Dir: t.TempDir(), Driver: drv}, fleet.Spec{CPUs: 1, RamMB: 128, StorageGB: 1, Image: "minimal"})
		h.Patience = time.Minute
		h.SlowCreate = func() func() {
			drv.SetDelay("boot", sim.Range{Min: time.Minute, Max: time.Minute})
			return func() { drv.SetDelay("boot", sim.Range{}) }
		}
		return h
	})
}
