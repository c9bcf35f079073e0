package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fusevm/fuse/internal/fleet"
)

//go:embed migrations/*.sql
var migrations embed.FS

// applicationID is "Fuse" in ASCII. It tells our file from another program's,
// and is set before there is any table: a first start may be cut short.
const applicationID = 0x46757365

// migrate brings the schema up to date. A database of another program, or of
// a newer schema, is left as it is.
func migrate(ctx context.Context, db *sql.DB, path string) error {
	var app, tables int64
	err := errors.Join(
		db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&app),
		db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables),
	)
	if err != nil {
		return err
	}
	if tables > 0 && app != applicationID {
		return fleet.Errorf(fleet.CodeInvalidArgument, "state database %s belongs to another program", path).
			With(fleet.DetailRemedy, "use another path")
	}
	if tables == 0 {
		if _, err := db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
			return err
		}
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	// goose's registry of Go migrations is global; ours are files.
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if tables > 0 {
		has, err := p.GetDBVersion(ctx)
		if err != nil {
			return damaged(ctx, db, path, fmt.Errorf("read the schema's version: %w", err))
		}
		sources := p.ListSources()
		if known := sources[len(sources)-1].Version; has > known {
			return fleet.Errorf(fleet.CodeUnavailable, "state database %s has schema %d, this binary knows up to %d", path, has, known).
				With(fleet.DetailRemedy, "start the newer binary that wrote it, or restore a backup made before it ran")
		}
	}
	if _, err := p.Up(ctx); err != nil {
		return damaged(ctx, db, path, fmt.Errorf("migrate the schema: %w", err))
	}
	return nil
}

// damaged looks whether a migration went wrong because the file is damaged:
// goose takes a version table that cannot be read for one that is not there.
func damaged(ctx context.Context, db *sql.DB, path string, cause error) error {
	var found string
	err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found)
	if code, _ := resultCode(err); err == nil && found == "ok" || err != nil && code != codeCorrupt && code != codeNotADB {
		return cause
	}
	if err != nil {
		found = err.Error()
	}
	return fleet.Errorf(fleet.CodeUnavailable, "state database %s is damaged or no database: %s", path, found).
		With(fleet.DetailRemedy, instead(path))
}

// Primary result codes of SQLite that explain tells apart.
const (
	codeCorrupt  = sqlite3.SQLITE_CORRUPT
	codeNotADB   = sqlite3.SQLITE_NOTADB
	codeFull     = sqlite3.SQLITE_FULL
	codeReadonly = sqlite3.SQLITE_READONLY
	codeCantOpen = sqlite3.SQLITE_CANTOPEN
	codePerm     = sqlite3.SQLITE_PERM
	codeBusy     = sqlite3.SQLITE_BUSY
)

// resultCode finds SQLite's primary result code in err's chain.
func resultCode(err error) (int, bool) {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.Code() & 0xff, true
}
