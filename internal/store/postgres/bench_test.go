package postgres

import (
	"testing"

	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/store/storetest"
)

func BenchmarkUpdate(b *testing.B) {
	for _, rows := range []int{0, 10_000} {
		storetest.Bench(b, rows, func() storetest.Backend {
			return New(Config{URL: pgtest.Shared(b).Database(b)})
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, rows := range []int{2000, 10_000} {
		url := pgtest.Shared(b).Database(b)
		storetest.BenchOpen(b, rows, func() storetest.Backend { return New(Config{URL: url}) })
	}
}

func BenchmarkCommit(b *testing.B) {
	storetest.BenchCommit(b, New(Config{URL: pgtest.Shared(b).Database(b)}))
}

// BenchmarkRoundTrip is what a question to the server costs at least: the
// yardstick for the rest.
func BenchmarkRoundTrip(b *testing.B) {
	j := New(Config{URL: pgtest.Shared(b).Database(b)})
	defer j.Close()
	d, err := j.connect()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := d.write.Exec(b.Context(), "SELECT 1"); err != nil {
			b.Fatal(err)
		}
	}
}
