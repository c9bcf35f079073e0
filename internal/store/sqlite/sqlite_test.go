package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() storetest.Backend {
		// Without power loss fsync changes nothing but the time it takes.
		cfg := Config{Path: filepath.Join(t.TempDir(), "state.db"), pragmas: []string{"synchronous(OFF)"}}
		return func() storetest.Backend { return New(cfg) }
	})
}
