package hostdtest_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/test/hostdtest"
)

// BenchmarkCreateDestroy is one simulated VM's round trip over the socket,
// with the disk's own fsync beside it in the same run.
func BenchmarkCreateDestroy(b *testing.B) {
	drv, err := sim.New(sim.Options{VMs: 100000})
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	h := hostdtest.Start(b, hostd.Config{Dir: filepath.Join(dir, "host"), Driver: drv, Logger: slog.New(slog.DiscardHandler)}, "")
	p := h.Connect(providertest.NewFleet())
	once := func(b *testing.B, destroy bool) {
		ref := newRef("b-" + ulid.Make().String())
		if _, err := p.Create(b.Context(), provider.CreateRequest{Ref: ref, Spec: fleet.Spec{CPUs: 1, RamMB: 1}}); err != nil {
			b.Error(err)
		}
		ref.OpID = ulid.Make().String()
		if !destroy {
			return
		}
		if err := p.Destroy(b.Context(), ref); err != nil {
			b.Error(err)
		}
	}
	b.Run("fsync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(dir, "fsync"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		for b.Loop() {
			if _, err := f.Write(make([]byte, 400)); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("serial", func(b *testing.B) {
		for b.Loop() {
			once(b, true)
		}
	})
	b.Run("parallel16", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				once(b, true)
			}
		})
	})
	b.Run("exec", func(b *testing.B) {
		ref := newRef("exec")
		if _, err := p.Create(b.Context(), provider.CreateRequest{Ref: ref, Spec: fleet.Spec{CPUs: 1, RamMB: 1}}); err != nil {
			b.Fatal(err)
		}
		env := p.Open(ref)
		for b.Loop() {
			if _, err := providertest.Exec(b.Context(), env, fleet.ExecSpec{Argv: []string{"true"}}, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}
