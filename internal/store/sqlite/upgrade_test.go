package sqlite

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
)

// docsOf reads every document of a database, by table, as another program would.
func docsOf(t *testing.T, path string, tables []state.Table) map[state.Table][]string {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all := map[state.Table][]string{}
	for _, table := range tables {
		all[table] = texts(t, db, "SELECT doc FROM "+string(table)+" ORDER BY 1")
	}
	return all
}

// texts reads a query of one column.
func texts(t *testing.T, db *sql.DB, query string) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// testdata/schema1.sql is what the first release wrote. Every later binary opens
// it, keeps every row as it is, and goes on.
func TestADatabaseOfTheFirstReleaseIsRaised(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("testdata", "schema1.sql"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	raw(t, path, string(script))
	tables := []state.Table{
		state.TableVMs, state.TableHosts, state.TableTasks, state.TableSnapshots, state.TableDeadLetters,
		state.TableLives, state.TableStartupLogs, state.TableIdempotency, state.TableEvents,
	}
	before := docsOf(t, path, tables)

	j := New(Config{Path: path})
	s := storetest.OpenOn(t, j)
	if diff := gocmp.Diff(before, docsOf(t, path, tables)); diff != "" {
		t.Errorf("the migration changed rows:\n%s", diff)
	}
	if revision, seq := s.Head(); revision != 4 || seq != 2 {
		t.Errorf("revision %d, event %d", revision, seq)
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
		if n := len(slices.Collect(tx.Snapshots().All())); n != 1 || tx.Lives().Len() != 1 || tx.Tasks().Len() != 1 {
			t.Errorf("%d snapshots, %d lives, %d tasks", n, tx.Lives().Len(), tx.Tasks().Len())
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
	if len(texts(t, j.open.read, "SELECT term FROM terms WHERE term < (SELECT term FROM meta)")) == 0 {
		t.Error("the term of the first release is forgotten")
	}
}

// A copy that is taken beside the owner is whole, and no other owner's.
func TestBackupBesideTheOwner(t *testing.T) {
	dir := t.TempDir()
	path, to := filepath.Join(dir, "state.db"), filepath.Join(dir, "copy.db")
	s := storetest.OpenOn(t, New(Config{Path: path}))
	if _, err := s.Update(t.Context(), func(tx *state.Tx) error { return tx.PutHost(fleet.Host{ID: "h"}) }); err != nil {
		t.Fatal(err)
	}
	if err := Backup(t.Context(), path, to); err != nil {
		t.Fatal(err)
	}
	if err := Backup(t.Context(), path, to); err == nil {
		t.Error("a backup is overwritten")
	}
	if _, err := s.Update(t.Context(), func(tx *state.Tx) error { return tx.PutHost(fleet.Host{ID: "later"}) }); err != nil {
		t.Errorf("the owner after it: %v", err)
	}
	restored := storetest.OpenOn(t, New(Config{Path: to}))
	err := restored.View(func(tx *state.ReadTx) error {
		if tx.Hosts().Len() != 1 {
			t.Errorf("%d hosts", tx.Hosts().Len())
		}
		return nil
	})
	if err != nil || restored.FleetID() != s.FleetID() {
		t.Errorf("fleet %s, %v", restored.FleetID(), err)
	}
	if err := Backup(t.Context(), filepath.Join(dir, "none.db"), filepath.Join(dir, "x.db")); err == nil {
		t.Error("there was nothing to copy")
	}
	if _, err := os.Stat(filepath.Join(dir, "none.db")); err == nil {
		t.Error("a database was made")
	}
}
