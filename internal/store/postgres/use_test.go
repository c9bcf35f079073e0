package postgres_test

import (
	"testing"

	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/postgres"
	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
)

// The use of the pools is told from the first connection to the last.
func TestUse(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	j := postgres.New(postgres.Config{URL: url, MaxConns: 5})
	if u := j.Use(); u != (postgres.Use{}) {
		t.Errorf("before: %+v", u)
	}
	if _, err := j.Acquire(t.Context(), state.Candidate{Name: "test"}); err != nil {
		t.Fatal(err)
	}
	if u := j.Use(); u.Max != 5 || u.InUse+u.Idle == 0 || u.InUse+u.Idle > u.Max {
		t.Errorf("held: %+v", u)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if u := j.Use(); u != (postgres.Use{}) {
		t.Errorf("after: %+v", u)
	}
}
