package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows/dump"
	"github.com/fusevm/fuse/internal/store/sqlite"
)

var errMemory = fleet.Errorf(fleet.CodeInvalidArgument, "a store in memory ends with its server: there is nothing to work on")

// storeCmd works on the state store itself, beside any server.
func storeCmd(streams cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "store", Short: "Back up, export and import the state store", GroupID: "ops", Args: cobra.NoArgs,
		Long: "store works on the database itself, which it finds by the settings of the server:\n" +
			"--data-dir, or DATABASE_URL. docs/operate/backup.md says which verb is for what.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(storeExportCmd(streams), storeImportCmd(streams), storeBackupCmd(streams))
	return cmd
}

// storeFlags adds the settings that say where the store is; help shows them and
// those that are named.
func storeFlags(cmd *cobra.Command, more ...string) {
	registerSettings(cmd)
	shown := append([]string{"data-dir", "store", "database-url", "database-url-file"}, more...)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shown, f.Name) })
}

func storeExportCmd(streams cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "export [FILE]", Short: "Write the whole store as JSON lines, while no server runs", Args: cobra.MaximumNArgs(1),
		Long: "export writes every row of the store, secrets sealed as they are, to FILE or standard\n" +
			"output. It takes the lease, so it is refused while a server uses the store.",
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, err := storeSettings(cmd)
			if err == nil {
				err = hasDatabase(settings)
			}
			if err != nil {
				return err
			}
			return withStore(cmd, streams, func(s dump.Store, _ int64) error {
				if len(args) == 0 {
					_, err := dump.Export(cmd.Context(), s, streams.Out)
					return err
				}
				n, err := exportFile(cmd.Context(), s, args[0])
				if err == nil {
					fmt.Fprintf(streams.Err, "%d rows exported to %s\n", n, args[0])
				}
				return err
			})
		},
	}
	storeFlags(cmd)
	return cmd
}

// hasDatabase refuses to make one in order to export or seal nothing.
func hasDatabase(s config.Server) error {
	switch s.Store {
	case config.StoreMemory:
		return errMemory
	case config.StorePostgres:
		return nil
	}
	path := datadir.Dir(s.DataDir).Path(plane.DatabaseFile)
	if _, err := os.Stat(path); err != nil {
		return fleet.Errorf(fleet.CodeNotFound, "there is no state database: %w", err).
			With(fleet.DetailRemedy, "name its directory with --data-dir, or the database with DATABASE_URL")
	}
	return nil
}

// exportFile writes the export to a file that is there whole or not at all, for
// its owner's eyes.
func exportFile(ctx context.Context, s dump.Store, path string) (n int, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err = dump.Export(ctx, s, f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return n, err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return n, err
	}
	return n, durable.SyncDir(filepath.Dir(path))
}

func storeImportCmd(streams cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Fill an empty store with an export; - reads standard input", Args: cobra.ExactArgs(1),
		Long: "import fills a store that has never been used. The encryption key of the old server\n" +
			"has to come along, and the first start needs --accept-store.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, streams, func(s dump.Store, term int64) (err error) {
				from := io.NopCloser(streams.In)
				if args[0] != "-" {
					if from, err = os.Open(args[0]); err != nil {
						return err
					}
				}
				n, err := dump.Import(cmd.Context(), s, term, from)
				if err = errors.Join(err, from.Close()); err == nil {
					fmt.Fprintf(streams.Err, "%d rows imported; start the server once with --accept-store\n", n)
				}
				return err
			})
		},
	}
	storeFlags(cmd)
	return cmd
}

func storeBackupCmd(streams cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Copy the SQLite database while a server uses it", Args: cobra.ExactArgs(1),
		Long: "backup writes a consistent copy of the SQLite database to FILE, which must not exist.\n" +
			"The server goes on meanwhile. For PostgreSQL use pg_dump.",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := storeSettings(cmd)
			if err != nil {
				return err
			}
			if s.Store != config.StoreSQLite {
				return fleet.Errorf(fleet.CodeInvalidArgument, "backup is for the SQLite database").
					With(fleet.DetailRemedy, "use pg_dump; see docs/operate/backup.md")
			}
			return backupFile(cmd.Context(), datadir.Dir(s.DataDir).Path(plane.DatabaseFile), args[0])
		},
	}
	storeFlags(cmd)
	return cmd
}

// backupFile copies to a file that its owner alone can read.
func backupFile(ctx context.Context, database, to string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fleet.Errorf(fleet.CodeConflict, "%s is there already, and a backup overwrites nothing", to).
			With(fleet.DetailRemedy, "name another file, or remove that one first")
	}
	if err != nil {
		return err
	}
	// SQLite fills an empty file, and leaves it to others to sync it.
	if err = sqlite.Backup(ctx, database, to); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return durable.SyncDir(filepath.Dir(to))
}

func storeSettings(cmd *cobra.Command) (config.Server, error) {
	s, err := readSettings(cmd, config.OS())
	if err != nil {
		err = &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("settings:\n%w", err)}
	}
	return s, err
}

// withStore runs fn as the one owner of the store.
func withStore(cmd *cobra.Command, streams cli.Streams, fn func(s dump.Store, term int64) error) (err error) {
	settings, err := storeSettings(cmd)
	if err != nil {
		return err
	}
	storage := plane.NewStorage(settings, slog.New(logHandler(streams.Err, settings, slog.LevelWarn)))
	s, ok := storage.(dump.Store)
	if !ok {
		return errMemory
	}
	defer func() { err = errors.Join(err, storage.Close()) }()
	grant, err := storage.Acquire(cmd.Context(), state.Candidate{Name: cmd.CommandPath() + ", " + serving.Name()})
	if err != nil {
		return err
	}
	if err := fn(s, grant.Term); err != nil {
		return err
	}
	return grant.Tenure.Release(context.WithoutCancel(cmd.Context()))
}
