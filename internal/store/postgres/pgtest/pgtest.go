// Package pgtest runs real PostgreSQL servers for tests: private clusters in
// temporary directories, reached over loopback, with fsync on. A cluster ends
// with its test binary, however that dies.
//
//	c := pgtest.Shared(t)        // one per test binary, made at its first use
//	url := c.Database(t)         // a fresh, empty database, dropped with the test
//
//	c := pgtest.New(t, Options{})        // a cluster for this test alone, which
//	c.Stop(t); c.Start(t); c.Crash(t)    // may be stopped, started, killed
//
// It needs PostgreSQL's server programs (15 or newer), which tools/deps
// installs. Run by root it uses the system's user postgres.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusevm/fuse/internal/testkit"
)

// Options of a cluster.
type Options struct {
	Listen         string   // address to listen on; empty: 127.0.0.1
	MaxConnections int      // 0: 60
	Settings       []string // more of them, each name=value
}

// Cluster is one PostgreSQL server and its data.
type Cluster struct {
	dir  string
	bin  string
	port string // reserved until release is called
	opts Options
	cred *syscall.Credential

	release func()
}

// patience is how long a statement of a test may take on a busy machine.
const patience = 2 * time.Minute

// Password of the role fuse, which owns every database.
const Password = "fuse-test"

var shared struct {
	once sync.Once
	c    *Cluster
	err  error
}

// Shared returns the cluster that the tests of this binary share. Nobody may
// stop it.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	shared.once.Do(func() { shared.c, shared.err = start(Options{}) })
	if shared.err != nil {
		t.Fatalf("pgtest: %v", shared.err)
	}
	return shared.c
}

// New starts a cluster that ends with the test.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	c, err := start(o)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		c.ctl("stop", "-m", "immediate") //nolint:errcheck // it may be stopped
		os.RemoveAll(c.dir)
		c.release()
	})
	return c
}

// guard waits for the end of this process and then ends the cluster in $1: it
// holds the other end of a pipe that only this process has.
const guard = `cat >/dev/null; [ -d "$1/data" ] || exit 0; "$2/pg_ctl" -D "$1/data" stop -m immediate -s; rm -rf "$1"`

func start(o Options) (_ *Cluster, err error) {
	if o.Listen == "" {
		o.Listen = "127.0.0.1"
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 60
	}
	c := &Cluster{opts: o}
	if c.bin, err = programs(); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "fuse-pg"); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		if c.cred, err = postgresUser(c.dir); err != nil {
			return nil, err
		}
	}
	if err := c.startGuard(); err != nil {
		return nil, err
	}
	data := filepath.Join(c.dir, "data")
	pw := filepath.Join(c.dir, "pw")
	if err := os.WriteFile(pw, []byte(Password), 0o644); err != nil { //nolint:gosec // of a test
		return nil, err
	}
	if err := c.run("initdb", "-D", data, "-U", "fuse", "--pwfile="+pw, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "-N"); err != nil {
		return nil, err
	}
	if err := c.admit(); err != nil {
		return nil, err
	}
	addr, release, err := testkit.ReserveAddr(o.Listen)
	if err != nil {
		return nil, err
	}
	c.release = release
	if _, c.port, err = net.SplitHostPort(addr); err != nil {
		return nil, err
	}
	return c, c.start()
}

// admit lets clients in that come from the networks of the server's addresses;
// initdb's own list has loopback alone.
func (c *Cluster) admit() error {
	f, err := os.OpenFile(filepath.Join(c.dir, "data", "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("host all all samenet scram-sha-256\n")
	return errors.Join(err, f.Close())
}

// programs finds the newest installed server programs.
func programs() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	best, version := "", 0
	for _, path := range found {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err == nil && n > version {
			best, version = filepath.Dir(path), n
		}
	}
	if best != "" {
		return best, nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("PostgreSQL's initdb is missing: run tools/deps test")
	}
	return filepath.Dir(path), nil
}

func postgresUser(dir string) (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2, os.Chown(dir, int(uid), int(gid))); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (c *Cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...) //nolint:noctx // programs of the test; they end by themselves
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "PGPASSWORD="+Password)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred, Setpgid: true}
	return cmd
}

func (c *Cluster) startGuard() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := c.command("/bin/sh", "-c", guard, "guard", c.dir, c.bin)
	cmd.Stdin = r
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	guards.mu.Lock()
	defer guards.mu.Unlock()
	guards.pipes = append(guards.pipes, w) // open as long as this process lives
	return nil
}

var guards struct {
	mu    sync.Mutex
	pipes []*os.File
}

func (c *Cluster) run(name string, args ...string) error {
	log, err := os.CreateTemp(c.dir, "out")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := c.command(filepath.Join(c.bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log // a file: a daemon may keep it
	if err := cmd.Run(); err != nil {
		out, _ := os.ReadFile(log.Name()) // only for the message
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return os.Remove(log.Name())
}

func (c *Cluster) ctl(verb string, args ...string) error {
	return c.run("pg_ctl", append([]string{"-D", filepath.Join(c.dir, "data"), "-w", "-t", "180", verb}, args...)...)
}

func (c *Cluster) start() error {
	settings := append([]string{
		"port=" + c.port, "listen_addresses=" + c.opts.Listen, "unix_socket_directories=" + c.dir,
		"max_connections=" + strconv.Itoa(c.opts.MaxConnections), "shared_buffers=32MB", "dynamic_shared_memory_type=mmap",
		"logging_collector=off", "max_wal_size=256MB", "autovacuum_naptime=30s",
	}, c.opts.Settings...)
	return c.ctl("start", "-l", filepath.Join(c.dir, "log"), "-o", "-c "+strings.Join(settings, " -c "))
}

// Start starts a cluster that was stopped.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	if err := c.start(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Stop ends the server; its connections are cut.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	if err := c.ctl("stop", "-m", "fast"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Crash kills the server without a checkpoint, as a loss of power would.
func (c *Cluster) Crash(t testing.TB) {
	t.Helper()
	if err := c.ctl("stop", "-m", "immediate"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// URL is where a database is found.
func (c *Cluster) URL(database string) string {
	return fmt.Sprintf("postgres://fuse:%s@%s/%s?sslmode=disable", Password, net.JoinHostPort(c.opts.Listen, c.port), database)
}

// Addr is where the server listens, host:port.
func (c *Cluster) Addr() string { return net.JoinHostPort(c.opts.Listen, c.port) }

// Dir is the cluster's directory, which also holds its unix socket.
func (c *Cluster) Dir() string { return c.dir }

// Bin is the directory of PostgreSQL's programs, such as pg_dump.
func (c *Cluster) Bin() string { return c.bin }

// Log is what the server has logged.
func (c *Cluster) Log() string {
	out, _ := os.ReadFile(filepath.Join(c.dir, "log")) // for messages
	return string(out)
}

var databases atomic.Int64

// Database makes an empty database and returns its URL. It goes with the test.
func (c *Cluster) Database(t testing.TB) string { return c.CopyOf(t, "template0") }

// CopyOf makes a database that is a copy of another, as CREATE DATABASE does:
// nobody may be connected to that one.
func (c *Cluster) CopyOf(t testing.TB, template string) string {
	t.Helper()
	name := fmt.Sprintf("t%d_%d", os.Getpid(), databases.Add(1))
	c.Exec(t, "CREATE DATABASE "+name+" TEMPLATE "+template)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		// A cluster of its own may be gone by now.
		if conn, err := pgx.Connect(ctx, c.URL("postgres")); err == nil {
			conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") //nolint:errcheck // the cluster goes too
			conn.Close(ctx)                                                 //nolint:errcheck // as above
		}
	})
	return c.URL(name)
}

// Exec runs statements as the superuser in the database postgres.
func (c *Cluster) Exec(t testing.TB, statements ...string) {
	t.Helper()
	ExecURL(t, c.URL("postgres"), statements...)
}

// ExecURL runs statements in the database at url.
func ExecURL(t testing.TB, url string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with it
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			t.Fatalf("pgtest: %s: %v", s, err)
		}
	}
}

// Scalar runs a query of one value in the database at url.
func Scalar[T any](t testing.TB, url, query string, args ...any) (value T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with it
	if err := conn.QueryRow(ctx, query, args...).Scan(&value); err != nil {
		t.Fatalf("pgtest: %s: %v", query, err)
	}
	return value
}
