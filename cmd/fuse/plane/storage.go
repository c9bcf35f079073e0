package plane

import (
	"log/slog"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/postgres"
	"github.com/fusevm/fuse/internal/store/sqlite"
)

// Storage is where the state lies, with the lease on it.
type Storage interface {
	state.Journal
	state.Lease
}

// NewStorage makes the storage that the settings name. It does no I/O yet.
func NewStorage(s config.Server, log *slog.Logger) Storage {
	switch s.Store {
	case config.StorePostgres:
		return postgres.New(postgres.Config{
			URL: s.DatabaseURL, MaxConns: s.DatabaseConns, Lease: lease.Timing{Period: s.Lease}, Logger: log,
		})
	case config.StoreMemory:
		return memory.New(memory.Options{FleetID: s.FleetID})
	default:
		return sqlite.New(sqlite.Config{Path: datadir.Dir(s.DataDir).Path(DatabaseFile), Logger: log})
	}
}

// DatabaseFile is the SQLite database in a data directory.
const DatabaseFile = "fuse.db"
