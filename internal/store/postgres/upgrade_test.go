package postgres

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/store/storetest"
)

// testdata/schema2.sql is what the first release with PostgreSQL wrote. Every
// later binary opens it, keeps every row as it is, and goes on.
func TestADatabaseOfTheFirstReleaseIsRaised(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("testdata", "schema2.sql"))
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.Shared(t).Database(t)
	pgtest.ExecURL(t, url, string(script))
	const documents = `SELECT md5(string_agg(doc::text, E'\n' ORDER BY doc::text)) FROM (SELECT doc FROM vms UNION ALL SELECT doc FROM hosts
		UNION ALL SELECT doc FROM tasks UNION ALL SELECT doc FROM snapshots UNION ALL SELECT doc FROM dead_letters UNION ALL SELECT doc FROM lives
		UNION ALL SELECT doc FROM startup_logs UNION ALL SELECT doc FROM idempotency UNION ALL SELECT doc FROM events UNION ALL SELECT doc FROM settings) AS d`
	before := pgtest.Scalar[string](t, url, documents)
	terms := pgtest.Scalar[int](t, url, "SELECT count(*) FROM terms")

	s := storetest.OpenOn(t, New(Config{URL: url}))
	if after := pgtest.Scalar[string](t, url, documents); after != before {
		t.Error("the migration changed rows")
	}
	if revision, seq := s.Head(); revision != 4 || seq != 2 {
		t.Errorf("revision %d, event %d", revision, seq)
	}
	if n := pgtest.Scalar[int](t, url, "SELECT count(*) FROM terms"); n != terms+1 {
		t.Errorf("%d terms, there were %d", n, terms)
	}
	err = s.View(func(tx *state.ReadTx) error {
		vm, ok := tx.VMs().Get("fuse-a")
		if !ok || vm.State != fleet.VMStateRunning || vm.Spec.CPUs != 2 || len(vm.AuthTokenSealed) == 0 {
			t.Errorf("environment %+v", vm)
		}
		host, ok := tx.Hosts().Get("h1")
		if !ok || host.Allocated.CPUs != 2 || len(host.TokenSealed) == 0 {
			t.Errorf("host %+v", host)
		}
		if tx.Lives().Len() != 1 || tx.Tasks().Len() != 1 {
			t.Errorf("%d lives, %d tasks", tx.Lives().Len(), tx.Tasks().Len())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	_, err = s.Update(t.Context(), func(tx *state.Tx) error {
		vm, _ := tx.VMs().Get("fuse-a")
		next := *vm
		next.State = fleet.VMStateDestroying
		return tx.PutVM(next)
	})
	if err != nil {
		t.Error(err)
	}
}
