package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) {
	// A round of the model has many restarts, and each is a dozen round trips.
	if err := flag.Set("rapid.checks", fmt.Sprint(testkit.Count(15, 200))); err != nil {
		panic(err)
	}
	storetest.CrashChild(openAt)
	testkit.Main(m)
}

// openAt opens the database at url and does not wait for the lease of a holder
// that was killed.
func openAt(url string) storetest.Backend {
	return heir{New(Config{URL: url, Lease: lease.Timing{Period: long}}), url}
}

type heir struct {
	*Journal

	url string
}

// Acquire ends the lease of whoever has it: a message of the holder that is
// still under way may make it last again.
func (p heir) Acquire(ctx context.Context, c state.Candidate) (state.Grant, error) {
	for {
		g, err := p.Journal.Acquire(ctx, c)
		if !errors.Is(err, fleet.ErrNotLeader) {
			return g, err
		}
		conn, err := pgx.Connect(ctx, p.url)
		if err != nil {
			return g, err
		}
		_, err = conn.Exec(ctx, "UPDATE lease SET expires_at = clock_timestamp()")
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return g, err
		}
	}
}

func TestConformance(t *testing.T) {
	c := pgtest.Shared(t)
	storetest.Run(t, func(t *testing.T) func() storetest.Backend {
		url := c.Database(t)
		return func() storetest.Backend { return New(Config{URL: url}) }
	})
}

func TestNothingAcknowledgedIsLostByAKill(t *testing.T) {
	storetest.Crash(t, pgtest.Shared(t).Database(t), testkit.Count(3, 50), openAt)
}

// begin opens the database at url until the end of the test.
func begin(t *testing.T, cfg Config) (*Journal, state.Grant) {
	t.Helper()
	j := New(cfg)
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	g, err := j.Acquire(t.Context(), state.Candidate{Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	return j, g
}

// refused checks that err is for people: it says what and has a remedy, and
// holds no password.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	var fe *fleet.Error
	if !errors.As(err, &fe) || !strings.Contains(err.Error(), text) || fe.Details[fleet.DetailRemedy] == "" {
		t.Errorf("error %v does not say %q with a remedy", err, text)
	}
	if err != nil && strings.Contains(fmt.Sprintf("%+v", err), pgtest.Password) {
		t.Errorf("%v gives the password away", err)
	}
}
