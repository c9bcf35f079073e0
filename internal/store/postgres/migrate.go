package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/fusevm/fuse/internal/fleet"
)

//go:embed migrations/*.sql
var migrations embed.FS

// versionTable is goose's. Its name also tells that the tables beside it are
// ours: it is there before any other.
const versionTable = "fuse_schema_version"

// minVersion is PostgreSQL 15.
const minVersion = 150000

// migrationLock is the advisory lock that one migrating server holds: "Fuse".
const migrationLock = 0x46757365

// checkSchema refuses, and leaves as it is, a database of another program, one
// with a newer schema, and an old server. It changes nothing and returns the
// schema's version, 0 for an empty database.
func (d *database) checkSchema(ctx context.Context) (has int64, err error) {
	var server, tables int
	var ours bool
	err = d.write.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, count(*), coalesce(bool_or(relname = $1), false)
		FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace`, versionTable).Scan(&server, &tables, &ours)
	switch {
	case err != nil:
		return 0, err
	case server < minVersion:
		return 0, fleet.Errorf(fleet.CodeInvalidArgument, "state database %s: PostgreSQL %d is too old", d.name, server/10000).
			With(fleet.DetailRemedy, "use PostgreSQL 15 or newer")
	case tables > 0 && !ours:
		return 0, fleet.Errorf(fleet.CodeInvalidArgument, "state database %s belongs to another program: its schema has %d tables and none is ours", d.name, tables).
			With(fleet.DetailRemedy, "make a database for Fuse alone and name that one")
	case !ours:
		return 0, nil
	}
	if err := d.write.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versionTable).Scan(&has); err != nil {
		return 0, err
	}
	known, err := newest()
	if err == nil && has > known {
		err = fleet.Errorf(fleet.CodeUnavailable, "state database %s has schema %d, this binary knows up to %d", d.name, has, known).
			With(fleet.DetailRemedy, "start the newer binary that wrote it, or restore a backup made before it ran")
	}
	return has, err
}

func newest() (int64, error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("read migrations: %w", errors.Join(err, fs.ErrNotExist))
	}
	return goose.NumericComponent(files[len(files)-1])
}

// migrate brings the schema up to date, one server at a time.
func (d *database) migrate(ctx context.Context) error {
	conn, err := d.write.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", migrationLock); err != nil {
		return err
	}
	defer func() {
		// With a connection that is broken the lock is gone.
		conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", migrationLock) //nolint:errcheck // see above
	}()
	db := stdlib.OpenDBFromPool(d.write)
	defer db.Close() //nolint:errcheck // the pool stays
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithDisableGlobalRegistry(true), goose.WithTableName(versionTable))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate the schema: %w", err)
	}
	return nil
}

// SQLSTATE codes that are told apart.
const (
	codeLockTimeout = "55P03"
	codeNoTable     = "42P01"
)

// explained says what to do about an error of the database.
var explained = map[string]struct{ problem, remedy string }{
	"28P01": {"the password or role is refused", "correct DATABASE_URL"},
	"28000": {"the role may not connect", "correct DATABASE_URL, or pg_hba.conf on the database server"},
	"3D000": {"there is no such database", "create it (createdb), or correct DATABASE_URL"},
	"42501": {"the role lacks a permission", "let the role own the database: ALTER DATABASE … OWNER TO …"},
	"25006": {"the server is read-only, such as a replica", "name the primary in DATABASE_URL"},
	"53100": {"no space is left on the database server", "free space on the disk of the PostgreSQL server"},
	"53300": {"the server has too many clients", "raise PostgreSQL's max_connections or the role's limit, or lower --database-max-conns"},
	"57P01": {"the server ended the connection", "see the log of the PostgreSQL server"},
	"57P02": {"the server has crashed and recovers", "wait; see the log of the PostgreSQL server"},
	"57P03": {"the server is starting or stopping", "wait; see the log of the PostgreSQL server if it stays so"},
	"XX001": {"a table is damaged", "restore a backup; see docs/operate/backup.md"},
	"XX002": {"an index is damaged", "REINDEX DATABASE on the PostgreSQL server, or restore a backup"},
}

// explain names the database and what to do about it, where the cause is
// known. What may pass by itself is fleet.ErrStoreUnavailable.
func (d *database) explain(err error) error {
	var known *fleet.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, fleet.ErrStaleTerm) || errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	var e *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &e):
		about, ok := explained[e.Code]
		if !ok {
			about.problem = "it refuses"
		}
		out := fleet.Wrap(fleet.CodeUnavailable, d.passing(e.Code, err), fmt.Sprintf("state database %s: %s", d.name, about.problem))
		if about.remedy != "" {
			out = out.With(fleet.DetailRemedy, about.remedy)
		}
		return out
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		return fleet.Wrap(fleet.CodeUnavailable, fmt.Errorf("%w: %w", fleet.ErrStoreUnavailable, err),
			fmt.Sprintf("state database %s cannot be reached", d.name)).
			With(fleet.DetailRemedy, "start the database server, or correct DATABASE_URL")
	default:
		return fleet.Wrap(fleet.CodeUnavailable, fmt.Errorf("%w: %w", fleet.ErrStoreUnavailable, err),
			fmt.Sprintf("state database %s: the connection broke, or an answer could not be read", d.name)).
			With(fleet.DetailRemedy, "wait; if it stays so, this server's log has the cause")
	}
}

// passing marks what time alone may heal: connection, resource and operator
// trouble.
func (d *database) passing(code string, err error) error {
	switch code[:2] {
	case "08", "53", "57", "58", "40", "55":
		return fmt.Errorf("%w: %w", fleet.ErrStoreUnavailable, err)
	}
	return err
}
