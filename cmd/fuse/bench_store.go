package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/store/postgres"
	"github.com/fusevm/fuse/internal/store/sqlite"
)

// benchStore is where the measured server keeps its state.
type benchStore struct {
	env     []string                    // for the server
	journal func() plane.Storage        // an empty one beside it, for the journal alone
	clean   func(context.Context) error // removes both
}

// openStore makes what b measures: SQLite in d, or two schemas of the database
// that DATABASE_URL names.
func (b *benchRun) openStore(ctx context.Context, d datadir.Dir) (benchStore, error) {
	if !b.postgres {
		return benchStore{
			journal: func() plane.Storage { return sqlite.New(sqlite.Config{Path: d.Path("journal-alone.db")}) },
			clean:   func(context.Context) error { return nil },
		}, nil
	}
	database := os.Getenv("DATABASE_URL")
	if database == "" || b.inProcess {
		return benchStore{}, fleet.Errorf(fleet.CodeInvalidArgument, "--postgres measures the database that DATABASE_URL names, with processes of their own")
	}
	name := "fuse_bench_" + strings.ToLower(rand.Text()[:8])
	server, alone := name, name+"_journal"
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return benchStore{}, err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE SCHEMA %s; CREATE SCHEMA %s", server, alone))
	if err != nil {
		return benchStore{}, errors.Join(err, conn.Close(ctx))
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return benchStore{
		env:     []string{"DATABASE_URL=" + inSchema(database, server), "TOKEN_ENCRYPTION_KEY=" + hex.EncodeToString(key)},
		journal: func() plane.Storage { return postgres.New(postgres.Config{URL: inSchema(database, alone)}) },
		clean: func(ctx context.Context) error {
			_, err := conn.Exec(ctx, fmt.Sprintf("DROP SCHEMA %s, %s CASCADE", server, alone))
			return errors.Join(err, conn.Close(ctx))
		},
	}, nil
}

// inSchema makes tables go into a schema of a database.
func inSchema(database, schema string) string {
	u, err := url.Parse(database)
	if err != nil || u.Scheme == "" {
		return database + " search_path=" + schema
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// childEnv is this process's environment without what would move a measured
// server's state, and with env.
func childEnv(env []string) []string {
	own := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "DATABASE_URL") || strings.HasPrefix(v, "ORCH_")
	})
	return append(own, env...)
}
