package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/uid"
)

// long is a lease that no test outlasts, however busy the machine.
const long = 10 * time.Minute

func acquireError(t *testing.T, url string) error {
	t.Helper()
	j := New(Config{URL: url})
	_, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
	if err == nil {
		t.Error("the lease is granted")
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	return err
}

func TestWhatKeepsFromStarting(t *testing.T) {
	c := pgtest.Shared(t)
	url := c.Database(t)
	for _, test := range []struct {
		name, url, text string
		passes          bool // worth another try
	}{
		{"nobody listens", strings.Replace(url, c.Addr(), "127.0.0.1:1", 1), "cannot be reached", true},
		{"no such machine", strings.Replace(url, c.Addr(), "no-such-machine.invalid:5432", 1), "cannot be reached", true},
		{"wrong password", strings.Replace(url, pgtest.Password, "wrong", 1), "password or role is refused", false},
		{"no database", c.URL("no_such_database"), "there is no such database", false},
	} {
		err := acquireError(t, test.url)
		refused(t, err, test.text)
		if errors.Is(err, fleet.ErrStoreUnavailable) != test.passes {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := acquireError(t, "postgres://u:"+pgtest.Password+"@h:none/d"); strings.Contains(fmt.Sprint(err), pgtest.Password) {
		t.Errorf("the password is in %v", err)
	}
}

func TestAnotherProgramsDatabaseIsLeftAlone(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	pgtest.ExecURL(t, url, "CREATE TABLE theirs (x int)", "CREATE TABLE goose_db_version (x int)")
	refused(t, acquireError(t, url), "belongs to another program")
	if n := pgtest.Scalar[int](t, url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 2 {
		t.Errorf("%d tables", n)
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	j := New(Config{URL: url})
	if _, err := j.Acquire(t.Context(), state.Candidate{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	pgtest.ExecURL(t, url, "INSERT INTO "+versionTable+" (version_id, is_applied) VALUES (99, true)")
	err := acquireError(t, url)
	refused(t, err, "has schema 99, this binary knows up to 4")
	if errors.Is(err, fleet.ErrStoreUnavailable) {
		t.Error("it would be tried again")
	}
	if n := pgtest.Scalar[int](t, url, "SELECT count(*) FROM terms"); n != 1 {
		t.Errorf("%d terms: the refused start began one", n)
	}
}

func TestOneOwnerAtATimeAndAfterIt(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	first, _ := begin(t, Config{URL: url, Lease: lease.Timing{Period: long}})
	second := New(Config{URL: url})
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := second.Acquire(t.Context(), state.Candidate{Name: "second"}); !errors.Is(err, fleet.ErrNotLeader) || !strings.Contains(err.Error(), t.Name()) {
		t.Errorf("beside a holder: %v", err)
	}
	info, held, err := second.Leader(t.Context())
	if err != nil || !held || info.Name != t.Name() || time.Until(info.Expires) < long/2 {
		t.Errorf("leader %+v, %v, %v", info, held, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, held, err := second.Leader(t.Context()); held || err != nil {
		t.Errorf("after the first: %v, %v", held, err)
	}
	if _, err := second.Acquire(t.Context(), state.Candidate{Name: "second"}); err != nil {
		t.Errorf("after the first: %v", err)
	}
}

// lockMeta keeps every commit waiting until it is called off.
func lockMeta(t *testing.T, url string) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		_, err = conn.Exec(t.Context(), "BEGIN; SELECT FROM meta FOR UPDATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	unlock = func() {
		once.Do(func() { conn.Close(context.Background()) }) // it ends its transaction
	}
	t.Cleanup(unlock)
	return unlock
}

const waitsForMeta = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

func hosts(revision uint64, name string) state.Batch {
	return state.Batch{ID: uid.New(), Revision: revision, Writes: []state.Write{
		{Table: state.TableHosts, Key: state.Key{name}, Row: &fleet.Host{ID: name}},
	}}
}

// A commit whose connection is killed has an unknown outcome, which the lookup
// tells; the journal goes on.
func TestAConnectionKilledInTheMiddleOfACommit(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	j, g := begin(t, Config{URL: url})
	unlock := lockMeta(t, url)
	batch, done := hosts(1, "a"), make(chan error, 1)
	go func() { done <- j.Commit(context.Background(), g.Term, batch) }()
	testkit.Eventually(t, time.Minute, "the commit waits", func() bool { return pgtest.Scalar[int](t, url, waitsForMeta) == 1 })
	pgtest.ExecURL(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	if err := <-done; err == nil || errors.Is(err, state.ErrNotCommitted) || !errors.Is(err, fleet.ErrStoreUnavailable) {
		t.Errorf("the commit: %v", err)
	}
	unlock()
	if known, err := j.Committed(t.Context(), batch.ID); known || err != nil {
		t.Errorf("looked up: %v, %v", known, err)
	}
	for i := range 3 {
		if err := j.Commit(t.Context(), g.Term, hosts(uint64(i+2), fmt.Sprint("later", i))); err != nil {
			t.Fatalf("commit %d after it: %v", i, err)
		}
	}
	if l, err := j.Load(t.Context(), 0); err != nil || len(l.Hosts) != 3 {
		t.Errorf("%+v, %v", l, err)
	}
}

// A commit that is given up for lost may still be under way in the server. It
// either counts in the lookup or never happens.
func TestACommitThatArrivesLate(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	j, g := begin(t, Config{URL: url, CommitTimeout: 200 * time.Millisecond})
	for i := range 6 {
		name := fmt.Sprint("host", i)
		unlock := lockMeta(t, url)
		var batch state.Batch
		testkit.Eventually(t, time.Minute, "a commit is under way", func() bool { // a busy machine may not even begin it in time
			batch = hosts(uint64(2*i+1), name)
			err := j.Commit(t.Context(), g.Term, batch)
			if err == nil {
				t.Fatalf("commit %d happened while it was held up", i)
			}
			return !errors.Is(err, state.ErrNotCommitted)
		})
		unlock()
		var known bool
		testkit.Eventually(t, time.Minute, "the lookup answers", func() (ok bool) { // it has as little time as a commit
			var err error
			known, err = j.Committed(t.Context(), batch.ID)
			return err == nil
		})
		testkit.Eventually(t, time.Minute, "the old session ends", func() bool { return pgtest.Scalar[int](t, url, waitsForMeta) == 0 })
		testkit.Eventually(t, time.Minute, fmt.Sprint("the commit after ", i), func() bool {
			next := hosts(uint64(2*i+2), "other")
			if err := j.Commit(t.Context(), g.Term, next); err == nil {
				return true
			}
			happened, err := j.Committed(t.Context(), next.ID)
			return err == nil && happened
		})
		there := pgtest.Scalar[int](t, url, "SELECT count(*) FROM hosts WHERE id = $1", name) == 1
		if there != known {
			t.Errorf("commit %d: the lookup said %v, the row is there: %v", i, known, there)
		}
	}
}

// The same with a message that reaches the server after the lookup.
func TestANumberedCommitIsRefusedAfterItsLookup(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	j, g := begin(t, Config{URL: url})
	d, err := j.database()
	if err != nil {
		t.Fatal(err)
	}
	batch := hosts(1, "late")
	work, _, err := d.prepare(g.Term, batch)
	if err != nil {
		t.Fatal(err)
	}
	d.failed(t.Context(), batch.ID, errors.New("the connection is gone"))
	if known, err := j.Committed(t.Context(), batch.ID); known || err != nil {
		t.Fatalf("%v, %v", known, err)
	}
	if err := d.write.SendBatch(t.Context(), work).Close(); err == nil || !strings.Contains(err.Error(), codeStaleNumber) {
		t.Errorf("the late commit: %v", err)
	}
	if err := j.Commit(t.Context(), g.Term, hosts(1, "next")); err != nil {
		t.Error(err)
	}
}

// An owner that wakes up long after its term cannot tell any more whether its
// last commit happened, and must not say that it did not.
func TestALookupAfterTheNextTerm(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	j, g := begin(t, Config{URL: url, Lease: lease.Timing{Period: long}})
	d, err := j.database()
	if err != nil {
		t.Fatal(err)
	}
	batch := hosts(1, "there")
	if err := j.Commit(t.Context(), g.Term, batch); err != nil {
		t.Fatal(err)
	}
	lost := func() (bool, error) {
		d.failed(t.Context(), batch.ID, errors.New("the connection is gone"))
		return j.Committed(t.Context(), batch.ID)
	}
	pgtest.ExecURL(t, url, "UPDATE lease SET expires_at = clock_timestamp()")
	next, ng := begin(t, Config{URL: url})
	if known, err := lost(); !known || err != nil {
		t.Errorf("just after: %v, %v", known, err)
	}
	for i := range 64 {
		if err := next.Commit(t.Context(), ng.Term, hosts(uint64(i+2), "other")); err != nil {
			t.Fatal(err)
		}
	}
	if known, err := lost(); known || !errors.Is(err, fleet.ErrStaleTerm) {
		t.Errorf("64 commits later: %v, %v", known, err)
	}
}

// The kernel gives a connection up whose other end does not acknowledge.
func TestAConnectionDoesNotOutlastANetworkThatIsGone(t *testing.T) {
	j, _ := begin(t, Config{URL: pgtest.Shared(t).Database(t)})
	d, err := j.database()
	if err != nil {
		t.Fatal(err)
	}
	for _, pool := range []*pgxpool.Pool{d.write, d.read} {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		raw, err := conn.Conn().PgConn().Conn().(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var limit int
		if cerr := raw.Control(func(fd uintptr) { limit, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); errors.Join(cerr, err) != nil {
			t.Fatal(cerr, err)
		}
		if limit != int(unanswered.Milliseconds()) {
			t.Errorf("it is kept for %d ms, want %v", limit, unanswered)
		}
	}
}

// A commit that hangs, and whatever else waits for it, leave a connection to renew
// the lease with.
func TestTheLeaseIsRenewedWhileTheWriterWaits(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	j, g := begin(t, Config{URL: url, MaxConns: MinConns, CommitTimeout: long})
	unlock := lockMeta(t, url)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer unlock()
	wg.Go(func() {
		if err := j.Commit(context.Background(), g.Term, hosts(1, "a")); err != nil {
			t.Errorf("commit: %v", err)
		}
	})
	wg.Go(func() {
		if _, err := j.PurgeEvents(context.Background(), g.Term, state.EventCut{Keep: 1, Limit: 1}); err != nil {
			t.Errorf("purge: %v", err)
		}
	})
	testkit.Eventually(t, time.Minute, "both wait", func() bool { return pgtest.Scalar[int](t, url, waitsForMeta) == 2 })
	d, err := j.database()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.extend(ctx, g.Term, long); err != nil {
		t.Errorf("renewal: %v", err)
	}
}

// A frozen owner leaves a transaction open; its successor does not wait for it.
func TestAFrozenOwnersTransactionIsEnded(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	begin(t, Config{URL: url, Lease: lease.Timing{Period: long}})
	pgtest.ExecURL(t, url, "UPDATE lease SET expires_at = clock_timestamp()")
	lockMeta(t, url)
	start := time.Now()
	begin(t, Config{URL: url})
	if took := time.Since(start); took > time.Minute { // it would be for ever
		t.Errorf("it took %v", took)
	}
}

func TestASlowCommitIsWaitedFor(t *testing.T) {
	url := pgtest.Shared(t).Database(t)
	s := storetest.OpenOn(t, New(Config{URL: url}))
	unlock := lockMeta(t, url)
	start := time.Now()
	time.AfterFunc(500*time.Millisecond, unlock)
	if _, err := s.Update(t.Context(), func(tx *state.Tx) error { return tx.PutHost(fleet.Host{ID: "h"}) }); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

func TestTooManyClients(t *testing.T) {
	c := pgtest.New(t, pgtest.Options{MaxConnections: 12})
	url := c.Database(t)
	s := storetest.OpenOn(t, New(Config{URL: url}))
	var crowd []*pgx.Conn
	for {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			break
		}
		crowd = append(crowd, conn)
	}
	err := acquireError(t, url)
	refused(t, err, "too many clients")
	if !errors.Is(err, fleet.ErrStoreUnavailable) {
		t.Errorf("it would not be tried again: %v", err)
	}
	// Who has its connections goes on.
	if _, err := s.Update(t.Context(), func(tx *state.Tx) error { return tx.PutHost(fleet.Host{ID: "h"}) }); err != nil {
		t.Errorf("an update in the crowd: %v", err)
	}
	for _, conn := range crowd {
		conn.Close(context.Background())
	}
}

// load16 updates s from several goroutines until it is called off, and counts
// what was acknowledged.
func load16(s *state.Store) (acknowledged *sync.Map, stop func()) {
	var wg sync.WaitGroup
	acknowledged = &sync.Map{}
	ctx, cancel := context.WithCancel(context.Background())
	for w := range 16 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("h%d-%d", w, i)
				_, err := s.Update(context.Background(), func(tx *state.Tx) error {
					tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: name})
					return tx.PutHost(fleet.Host{ID: name})
				})
				if err == nil {
					acknowledged.Store(name, true)
					continue
				}
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	return acknowledged, func() { cancel(); wg.Wait() }
}

// The database goes away in the middle of a load: updates are refused, reads go
// on, and it all resumes by itself with nothing lost and nothing extra.
func TestAnOutageInTheMiddleOfALoad(t *testing.T) {
	outage := time.Duration(testkit.Count(5, 60)) * time.Second
	c := pgtest.New(t, pgtest.Options{})
	url := c.Database(t)
	// The lease outlives the outage: what happens without it is the standby's.
	j := New(Config{URL: url, Lease: lease.Timing{Period: 10 * time.Minute}})
	s := storetest.OpenOn(t, j)
	acknowledged, stop := load16(s)
	defer stop()
	waitFor := func(what string, cond func() bool) {
		t.Helper()
		testkit.Eventually(t, 60*time.Second, what, cond)
	}
	count := func() (n int) {
		acknowledged.Range(func(any, any) bool { n++; return true })
		return n
	}
	waitFor("updates at first", func() bool { return count() > 50 })
	before, heapBefore := runtime.NumGoroutine(), heap()

	c.Crash(t)
	// Who was in the middle of a commit waits for its outcome; who comes later is
	// refused at once.
	waitFor("updates are refused", func() bool {
		_, err := s.Update(t.Context(), func(tx *state.Tx) error {
			tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: uid.New()})
			return tx.PutHost(fleet.Host{ID: uid.New()})
		})
		return errors.Is(err, fleet.ErrStoreUnavailable)
	})
	if err := s.Ready(t.Context()); !errors.Is(err, fleet.ErrStoreUnavailable) {
		t.Errorf("ready while the database is away: %v", err)
	}
	held := count()
	start := time.Now()
	waitFor("the outage lasts", func() bool {
		err := s.View(func(tx *state.ReadTx) error {
			if tx.Hosts().Len() == 0 {
				t.Error("nothing can be read")
			}
			return nil
		})
		return err != nil || time.Since(start) > outage
	})
	c.Start(t)
	waitFor("updates again", func() bool { return count() > held+50 })
	// What ended connections ran on is gone a moment later.
	waitFor(fmt.Sprintf("no more than the %d goroutines of before", before), func() bool { return runtime.NumGoroutine() <= before+20 })
	// A row and its event cost a few kilobytes; a leak of every refused update
	// would cost much more.
	if after, room := heap(), uint64(32<<20+count()*8<<10); after > heapBefore+room {
		t.Errorf("the heap grew from %d to %d bytes", heapBefore, after)
	}
	stop()
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("ready afterwards: %v", err)
	}
	if err := s.Err(); err != nil {
		t.Errorf("the store ended: %v", err)
	}
	compare(t, s, url, acknowledged)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// compare checks that memory and database agree and hold what was acknowledged.
func compare(t *testing.T, s *state.Store, url string, acknowledged *sync.Map) {
	t.Helper()
	rows := pgtest.Scalar[int](t, url, "SELECT count(*) FROM hosts")
	events := pgtest.Scalar[int](t, url, "SELECT count(*) FROM events")
	revision, seq := s.Head()
	err := s.View(func(tx *state.ReadTx) error {
		if tx.Hosts().Len() != rows || events != rows || int(seq) != events || int(revision) != rows {
			t.Errorf("%d hosts in memory, %d in the database, %d events, revision %d, event %d", tx.Hosts().Len(), rows, events, revision, seq)
		}
		acknowledged.Range(func(name, _ any) bool {
			if _, ok := tx.Hosts().Get(name.(string)); !ok {
				t.Errorf("%s was acknowledged and is gone", name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// noise is a text that does not compress.
func noise(n int) string {
	raw := make([]byte, n/2)
	rand.NewChaCha8([32]byte{}).Read(raw)
	return hex.EncodeToString(raw)
}

// A disk of the database server that is full fails the update and only that.
func TestAFullDiskLosesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root can make a small disk
	}
	c := pgtest.New(t, pgtest.Options{})
	url := c.Database(t)
	dir := filepath.Join(c.Dir(), "small")
	var st unix.Stat_t // of the user that the server runs as
	if err := errors.Join(os.Mkdir(dir, 0o700), unix.Stat(c.Dir(), &st)); err != nil {
		t.Fatal(err)
	}
	mount := func(flags uintptr, size string) {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, fmt.Sprintf("size=%s,uid=%d,gid=%d,mode=700", size, st.Uid, st.Gid)); err != nil {
			t.Fatalf("mount: %v", err)
		}
	}
	mount(0, "2m")
	t.Cleanup(func() {
		c.Crash(t)
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	pgtest.ExecURL(t, url, "CREATE TABLESPACE small LOCATION '"+dir+"'",
		"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_tablespace = small', current_database()); END $$")
	s := storetest.OpenOn(t, New(Config{URL: url}))
	add := func(i int) error {
		_, err := s.Update(t.Context(), func(tx *state.Tx) error {
			return tx.PutHost(fleet.Host{ID: fmt.Sprintf("%05d", i), URL: noise(20_000)})
		})
		return err
	}
	n, err := 0, error(nil)
	for ; err == nil && n < 10_000; n++ {
		err = add(n)
	}
	if !errors.Is(err, fleet.ErrStoreUnavailable) {
		t.Fatalf("after %d updates: %v", n, err)
	}
	refused(t, err, "no space is left")
	mount(unix.MS_REMOUNT, "64m")
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("ready with room again: %v", err)
	}
	if err := add(n); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if rows := pgtest.Scalar[int](t, url, "SELECT count(*) FROM hosts"); rows != n {
		t.Errorf("%d rows, want %d", rows, n)
	}
}

// The role needs nothing but its database: it is no superuser.
func TestAnOrdinaryRoleWillDo(t *testing.T) {
	c := pgtest.Shared(t)
	url := c.Database(t)
	name := url[strings.LastIndex(url, "/")+1 : strings.Index(url, "?")]
	c.Exec(t, "CREATE ROLE app LOGIN PASSWORD 'app'", "ALTER DATABASE "+name+" OWNER TO app")
	t.Cleanup(func() { c.Exec(t, "DROP ROLE app") })
	t.Cleanup(func() { c.Exec(t, "ALTER DATABASE "+name+" OWNER TO fuse", "DROP DATABASE "+name+" WITH (FORCE)") })
	url = strings.Replace(url, "fuse:"+pgtest.Password, "app:app", 1)
	j, g := begin(t, Config{URL: url, Lease: lease.Timing{Period: long}})
	if err := j.Commit(t.Context(), g.Term, storetest.FullBatch(uid.New(), 1)); err != nil {
		t.Error(err)
	}
	pgtest.ExecURL(t, url, "UPDATE lease SET expires_at = clock_timestamp()")
	lockMeta(t, url)
	begin(t, Config{URL: url})
}
