package pgtest_test

import (
	"testing"

	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestAClusterKeepsItsDataOverACrash(t *testing.T) {
	c := pgtest.New(t, pgtest.Options{})
	url := c.Database(t)
	pgtest.ExecURL(t, url, "CREATE TABLE x (n int)", "INSERT INTO x VALUES (7)")
	c.Crash(t)
	c.Start(t)
	if n := pgtest.Scalar[int](t, url, "SELECT n FROM x"); n != 7 {
		t.Errorf("read %d", n)
	}
	c.Stop(t)
	c.Start(t)
	if on := pgtest.Scalar[string](t, url, "SHOW fsync"); on != "on" {
		t.Errorf("fsync is %s", on)
	}
}
