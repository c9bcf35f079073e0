package memory_test

import (
	"testing"

	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
)

func fresh() storetest.Backend { return memory.New(memory.Options{}) }

func BenchmarkUpdate(b *testing.B) {
	for _, rows := range []int{0, 10_000} {
		storetest.Bench(b, rows, fresh)
	}
}

func BenchmarkCommit(b *testing.B) { storetest.BenchCommit(b, fresh()) }
