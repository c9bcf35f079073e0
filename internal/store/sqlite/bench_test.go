package sqlite

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fusevm/fuse/internal/store/storetest"
)

func onDisk(b *testing.B) func() storetest.Backend {
	path := filepath.Join(b.TempDir(), "state.db")
	return func() storetest.Backend { return New(Config{Path: path}) }
}

func BenchmarkUpdate(b *testing.B) {
	for _, rows := range []int{0, 10_000} {
		storetest.Bench(b, rows, func() storetest.Backend {
			return New(Config{Path: filepath.Join(b.TempDir(), "state.db")})
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, rows := range []int{2000, 10_000} {
		storetest.BenchOpen(b, rows, onDisk(b))
	}
}

func BenchmarkCommit(b *testing.B) { storetest.BenchCommit(b, onDisk(b)()) }

func BenchmarkReads(b *testing.B) { storetest.BenchReads(b, 10_000, onDisk(b)) }

// BenchmarkFsync is what the disk itself can do: the yardstick for the rest.
func BenchmarkFsync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 32<<10)
	for b.Loop() {
		if _, err := f.WriteAt(page, 0); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}
