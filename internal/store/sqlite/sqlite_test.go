package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/uid"
)

func TestMain(m *testing.M) {
	storetest.CrashChild(openAt)
	testkit.Main(m)
}

func openAt(path string) storetest.Backend { return New(Config{Path: path}) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() storetest.Backend {
		// Without power loss fsync changes nothing but the time it takes.
		cfg := Config{Path: filepath.Join(t.TempDir(), "state.db"), pragmas: []string{"synchronous(OFF)"}}
		return func() storetest.Backend { return New(cfg) }
	})
}

func TestNothingAcknowledgedIsLostByAKill(t *testing.T) {
	storetest.Crash(t, filepath.Join(t.TempDir(), "state.db"), testkit.Count(4, 100), openAt)
}

// begin opens the database at path until the end of the test.
func begin(t *testing.T, cfg Config) (*Journal, state.Grant) {
	t.Helper()
	j := New(cfg)
	g, err := j.Acquire(t.Context(), state.Candidate{Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return j, g
}

// raw runs statements on the file as another program would.
func raw(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// refused checks that err is for people: it names the file and a remedy.
func refused(t *testing.T, path string, err error, text string) {
	t.Helper()
	var fe *fleet.Error
	if !errors.As(err, &fe) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), text) || fe.Details[fleet.DetailRemedy] == "" {
		t.Errorf("error %v does not name %s, %q and a remedy", err, path, text)
	}
}

func TestCommitsSurviveALossOfPower(t *testing.T) {
	j, _ := begin(t, Config{Path: filepath.Join(t.TempDir(), "state.db")})
	conn := <-j.open.writer
	defer func() { j.open.writer <- conn }()
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		var got string
		if err := conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", pragma, got, err, want)
		}
	}
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	j, g := begin(t, Config{Path: filepath.Join(dir, "state.db")})
	if err := j.Commit(t.Context(), g.Term, storetest.FullBatch(uid.New(), 1)); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 3 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range append(entries, dirEntry(t, dir)) {
		info, err := e.Info()
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

func dirEntry(t *testing.T, path string) os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	return entries[0]
}

func TestAnyPathWillDo(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"with space", "a?b=c&d", "100%25", "#hash", "ünï", "quote'\"", ":memory:", "a+b;c"} {
		path := filepath.Join(dir, name, "state.db")
		j := New(Config{Path: path})
		if _, err := j.Acquire(t.Context(), state.Candidate{Name: "x"}); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if err := j.Close(); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("%q: the database is elsewhere: %v", name, err)
		}
	}
}

func TestOneOwnerAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	first := New(Config{Path: path})
	if _, err := first.Acquire(t.Context(), state.Candidate{Name: "server on box"}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Acquire(t.Context(), state.Candidate{Name: "again"}); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("the same journal twice: %v", err)
	}
	second := New(Config{Path: path})
	_, err := second.Acquire(t.Context(), state.Candidate{Name: "other"})
	if !errors.Is(err, fleet.ErrNotLeader) || !strings.Contains(err.Error(), "in use by server on box") {
		t.Errorf("the second: %v", err)
	}
	refused(t, path, err, "in use")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Acquire(t.Context(), state.Candidate{Name: "x"}); err != nil {
		t.Errorf("after the first: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// The lock can fail to exclude (another file system view, a copy put in its
// place); the term in the database does not.
func TestATermThatRosElsewhereEndsTheStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := storetest.OpenOn(t, New(Config{Path: path}))
	raw(t, path, "UPDATE meta SET term = term + 1")
	_, err := s.Update(t.Context(), func(tx *state.Tx) error { return tx.PutHost(fleet.Host{ID: "h"}) })
	if !errors.Is(err, fleet.ErrNotLeader) || !errors.Is(err, fleet.ErrStaleTerm) {
		t.Errorf("update: %v", err)
	}
	if _, err := s.PurgeEvents(t.Context(), s.CommittedAt(), 1); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("purge: %v", err)
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	j := New(Config{Path: path})
	if _, err := j.Acquire(t.Context(), state.Candidate{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	raw(t, path, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)", "CREATE TABLE of_the_future (x)")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(Config{Path: path}).Acquire(t.Context(), state.Candidate{Name: "x"})
	refused(t, path, err, "has schema 99, this binary knows up to 4")
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the newer database was changed, %v", err)
	}
}

func TestANewerDocumentIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	j := New(Config{Path: path})
	g, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
	if err == nil {
		err = errors.Join(j.Commit(t.Context(), g.Term, storetest.FullBatch(uid.New(), 1)), j.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	raw(t, path, `UPDATE vms SET doc = replace(doc, '{"v":1,', '{"v":7,')`)
	j, _ = begin(t, Config{Path: path})
	if _, err := j.Load(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "version 7") {
		t.Errorf("load: %v", err)
	}
}

func TestAnotherProgramsDatabaseIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	raw(t, path, "CREATE TABLE theirs (x)")
	_, err := New(Config{Path: path}).Acquire(t.Context(), state.Candidate{Name: "x"})
	refused(t, path, err, "belongs to another program")
}

// A first start can be killed between any two of its steps.
func TestAFirstStartThatWasCutShortIsFinished(t *testing.T) {
	for name, statements := range map[string][]string{
		"an empty file":      nil,
		"marked as ours":     {"PRAGMA application_id = 1182102373"},
		"versions, no table": {"PRAGMA application_id = 1182102373", "CREATE TABLE goose_db_version (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL, is_applied INTEGER NOT NULL, tstamp TIMESTAMP DEFAULT (datetime('now')))", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1)"},
	} {
		path := filepath.Join(t.TempDir(), "state.db")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		raw(t, path, statements...)
		j := New(Config{Path: path})
		if _, err := j.Acquire(t.Context(), state.Candidate{Name: "x"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if l, err := j.Load(t.Context(), 0); err != nil || !uid.Valid(l.FleetID) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		if err := j.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What fails to open holds neither the lock nor a descriptor.
func TestAFailedAcquireLeavesNothingOpen(t *testing.T) {
	testkit.Leaks(t)
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign.db")
	raw(t, foreign, "CREATE TABLE theirs (x)")
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{foreign, filepath.Join(dir, "dir.db"), filepath.Join(dir, "file", "state.db")} {
		for range 3 {
			j := New(Config{Path: path})
			if _, err := j.Acquire(t.Context(), state.Candidate{Name: "x"}); err == nil || errors.Is(err, fleet.ErrNotLeader) {
				t.Errorf("%s: %v", path, err)
			}
			if err := j.Close(); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

func TestADamagedFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	sound := filepath.Join(dir, "sound.db")
	j := New(Config{Path: sound})
	g, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
	if err == nil {
		err = errors.Join(j.Commit(t.Context(), g.Term, storetest.FullBatch(uid.New(), 200)), j.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(sound)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func([]byte) []byte{
		"no database": func([]byte) []byte { return []byte(strings.Repeat("this is a text file\n", 500)) },
		"header":      func(b []byte) []byte { copy(b[16:], "garbage"); return b },
		"schema page": func(b []byte) []byte { clear(b[100:4096]); return b },
		"pages":       func(b []byte) []byte { clear(b[4096 : len(b)/4*3]); return b },
		"version table": func(b []byte) []byte {
			for i := 4096; i < 9096; i++ {
				b[i] = byte(i*i*31 + i>>3)
			}
			return b
		},
		"cut in half": func(b []byte) []byte { return b[:len(b)/2] },
		"scrambled rows": func(b []byte) []byte {
			for i := 8192; i < len(b); i += 7 {
				b[i] ^= 0x5a
			}
			return b
		},
	} {
		path := filepath.Join(dir, name+".db")
		if err := os.WriteFile(path, damage(slices.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		j := New(Config{Path: path})
		s, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j})
		if err == nil {
			t.Errorf("%s: the store opens", name)
			s.Close(context.Background())
			continue
		}
		refused(t, path, err, "damaged")
	}
}

// A fleet's file that holds nothing any more is no new fleet, however often a
// server tries; one that was moved away makes room for one.
func TestAnEmptiedDatabaseIsNoNewFleet(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	acquire := func() error {
		j := New(Config{Path: path})
		_, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
		return errors.Join(err, j.Close())
	}
	young, err := os.OpenFile(path, os.O_CREATE, 0o600) // a first start was cut short here
	if err := errors.Join(err, young.Close(), acquire()); err != nil {
		t.Fatal(err)
	}
	for name, empty := range map[string]func() error{
		"cut": func() error { return os.Truncate(path, 0) },
		// What a server that is killed leaves in its first hours: all is in the WAL.
		"-wal deleted": func() error {
			if err := os.Remove(path); err != nil {
				return err
			}
			j := New(Config{Path: path})
			_, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
			young, err2 := os.ReadFile(path)
			return errors.Join(err, err2, j.Close(), os.WriteFile(path, young, 0o600))
		},
	} {
		if err := empty(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			refused(t, path, acquire(), "is empty")
		}
		if err := errors.Join(os.Remove(path), acquire()); err != nil {
			t.Errorf("%s: after it was moved away: %v", name, err)
		}
	}
}

func TestADirectoryIsNoDatabase(t *testing.T) {
	path := t.TempDir()
	_, err := New(Config{Path: path}).Acquire(t.Context(), state.Candidate{Name: "x"})
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}

// smallDisk makes a directory on a file system of 2 MiB and returns what
// makes it larger.
func smallDisk(t *testing.T) (dir string, enlarge func()) {
	t.Helper()
	dir = t.TempDir()
	mount := func(flags uintptr, size string) {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "size="+size); err != nil {
			t.Fatalf("mount: %v", err)
		}
	}
	mount(0, "2m")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir, func() { mount(unix.MS_REMOUNT, "64m") }
}

// A disk that is full fails the update, and only that: nothing is half there,
// and the store goes on once there is room. Only root can mount a small disk;
// others meet the limit that SQLite itself can set.
func TestAFullDiskLosesNothing(t *testing.T) {
	t.Run("page limit", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		j := New(Config{Path: path})
		s := storetest.OpenOn(t, j)
		setMaxPages(t, j, 100)
		fullDisk(t, s, path, func() { setMaxPages(t, j, 1<<20) })
	})
	if os.Geteuid() != 0 {
		return
	}
	t.Run("small disk", func(t *testing.T) {
		dir, enlarge := smallDisk(t)
		path := filepath.Join(dir, "state.db")
		fullDisk(t, storetest.OpenOn(t, New(Config{Path: path})), path, enlarge)
	})
}

// fullDisk updates s until there is no room, and then with room again.
func fullDisk(t *testing.T, s *state.Store, path string, enlarge func()) {
	add := func(i int) error {
		_, err := s.Update(t.Context(), func(tx *state.Tx) error {
			name := fmt.Sprintf("%05d", i)
			tx.Emit(fleet.Event{EntityType: "host", EntityID: name})
			return tx.PutHost(fleet.Host{ID: name, URL: strings.Repeat("u", 900)})
		})
		return err
	}
	acknowledged := 0
	var err error
	for err == nil && acknowledged < 10_000 {
		if err = add(acknowledged); err == nil {
			acknowledged++
		}
	}
	if !errors.Is(err, fleet.ErrStoreUnavailable) || acknowledged == 0 {
		t.Fatalf("after %d updates: %v", acknowledged, err)
	}
	refused(t, path, err, "no space is left")
	checkHosts(t, s, acknowledged)
	enlarge()
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("ready with room again: %v", err)
	}
	if err := add(10_000); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	checkHosts(t, s, acknowledged+1)
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkHosts(t, storetest.OpenOn(t, New(Config{Path: path})), acknowledged+1)
}

func checkHosts(t *testing.T, s *state.Store, want int) {
	t.Helper()
	events, err := s.Events(t.Context(), state.EventQuery{})
	if err != nil || len(events) != min(want, state.MaxEventPage) {
		t.Errorf("%d events, %v, want %d", len(events), err, want)
	}
	err = s.View(func(tx *state.ReadTx) error {
		if n := tx.Hosts().Len(); n != want {
			t.Errorf("%d rows, want %d", n, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func setMaxPages(t *testing.T, j *Journal, n int) {
	t.Helper()
	conn := <-j.open.writer
	defer func() { j.open.writer <- conn }()
	if _, err := conn.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", n)); err != nil {
		t.Fatal(err)
	}
}

func TestTheFingerprintIsOfThisFile(t *testing.T) {
	dir := t.TempDir()
	path, machine := filepath.Join(dir, "state.db"), filepath.Join(dir, "machine-id")
	fingerprintOf := func(path, id string) string {
		t.Helper()
		if err := os.WriteFile(machine, []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		j := New(Config{Path: path, machineID: machine})
		g, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
		if err == nil {
			err = j.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return g.Fingerprint
	}
	first := fingerprintOf(path, "0123456789abcdef")
	if again := fingerprintOf(path, "0123456789abcdef"); again != first {
		t.Errorf("%q became %q", first, again)
	}
	if moved := fingerprintOf(path, "fedcba9876543210"); moved == first {
		t.Error("another machine has the same fingerprint")
	}
	if strings.Contains(first, "0123456789abcdef") {
		t.Errorf("%q gives the machine id away", first)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	duplicate := filepath.Join(dir, "copy.db")
	if err := os.WriteFile(duplicate, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if other := fingerprintOf(duplicate, "0123456789abcdef"); other == first {
		t.Error("a copy has the same fingerprint")
	}
}

// What an operator would ask with the sqlite3 shell has columns.
func TestColumnsAreThereToQuery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := storetest.OpenOn(t, New(Config{Path: path}))
	_, err := s.Update(t.Context(), func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: "fuse-a", UID: "u", Type: fleet.EventVMProvisioning, State: fleet.VMStateProvisioning})
		return errors.Join(tx.PutHost(fleet.Host{ID: "h", State: fleet.HostActive, Capacity: fleet.HostCapacity{CPUs: 1, VMCount: 1}}),
			tx.PutVM(fleet.VM{ID: "fuse-a", UID: "u", TaskID: "a", HostID: "h", State: fleet.VMStateProvisioning, Spec: fleet.Spec{CPUs: 1}}))
	})
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var got string
	err = db.QueryRowContext(t.Context(), `SELECT v.id || ' ' || v.state || ' ' || v.task_id || ' ' || h.state || ' ' || e.type
		|| ' ' || json_extract(v.doc, '$.spec.cpus') || ' ' || (julianday(v.created_at) IS NOT NULL)
		FROM vms v JOIN hosts h ON h.id = v.host_id JOIN events e ON e.uid = v.uid`).Scan(&got)
	if want := "fuse-a provisioning a active vm.provisioning 1 1"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// A program that holds the database for a moment, as a backup does, delays a
// commit and fails none.
func TestACommitWaitsForAnotherProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	j, g := begin(t, Config{Path: path})
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- j.Commit(context.Background(), g.Term, storetest.FullBatch(uid.New(), 1)) }()
	select {
	case err := <-done:
		t.Errorf("the commit did not wait: %v", err)
	default:
	}
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the commit behind it: %v", err)
	}
}

// Whoever comes while the journal closes is refused; nobody gets the writer's
// connection after it, and with it a file that another process may own by then.
func TestCloseLetsNoTransactionSlipIn(t *testing.T) {
	testkit.Leaks(t)
	path := filepath.Join(t.TempDir(), "state.db")
	for range 20 {
		j := New(Config{Path: path, pragmas: []string{"synchronous(OFF)"}})
		if _, err := j.Acquire(t.Context(), state.Candidate{Name: "x"}); err != nil {
			t.Fatal(err)
		}
		d, err := j.database()
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for err := error(nil); !errors.Is(err, errClosed); {
					err = d.transaction(context.Background(), func(ctx context.Context, conn *sql.Conn) error {
						var n int
						return conn.QueryRowContext(ctx, "SELECT count(*) FROM commits").Scan(&n)
					})
					if err != nil && !errors.Is(err, errClosed) {
						t.Errorf("a transaction beside Close: %v", err)
						return
					}
				}
			})
		}
		if err := j.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		callers.Wait()
	}
}
