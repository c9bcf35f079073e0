package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/testkit"
)

// shop is where one test's commands run, as a person's shell would.
type shop struct {
	t   *testing.T
	dir string
	env map[string]string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	dir := t.TempDir()
	s := &shop{t: t, dir: dir, env: map[string]string{
		"DATA": filepath.Join(dir, "data"), "BACKUP": filepath.Join(dir, "backup"),
		"HOME": dir, "XDG_CONFIG_HOME": dir, "FUSE_TOKEN_FILE": filepath.Join(dir, "token"), patientEnv: patientLooks,
	}}
	for name, text := range map[string]string{"token": "a-token-for-the-api-0123456789", "host-token": "a-token-for-the-host-0123456789"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(s.env["BACKUP"], 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shop) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = s.dir, []string{"PATH=" + os.Getenv("PATH")}
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return cmd
}

// try runs a command and returns what it printed.
func (s *shop) try(name string, args ...string) (string, error) {
	out, err := s.command(s.t.Context(), name, args...).CombinedOutput()
	return string(out), err
}

func (s *shop) run(name string, args ...string) string {
	s.t.Helper()
	out, err := s.try(name, args...)
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// daemon runs a command until stop is called or the test ends. What it prints
// is in log.
func (s *shop) daemon(args ...string) (stop func(), log *testkit.Output) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := s.command(ctx, "fuse", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	log = &testkit.Output{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		cmd.Wait() // ended by a signal
		if s.t.Failed() {
			s.t.Logf("fuse %s:\n%s", strings.Join(args, " "), log.String())
		}
	}
	s.t.Cleanup(stop)
	return stop, log
}

// database makes servers use PostgreSQL, with a key that they share.
func (s *shop) database(url string) {
	s.env["DATABASE_URL"], s.env["TOKEN_ENCRYPTION_KEY"] = url, strings.Repeat("5a", 32)
}

// host starts a host with simulated machines.
func (s *shop) host() {
	s.daemon("hostd", "--driver", "sim", "--data-dir", "host", "--listen", "unix://"+s.dir+"/hostd.sock", "--token-file", "host-token")
}

// server starts a server with a store that args name, and waits for it.
func (s *shop) server(args ...string) (stop func(), log *testkit.Output) {
	s.t.Helper()
	addr := testkit.Addr(s.t)
	stop, log = s.daemon(append([]string{
		"server", "--listen", addr, "--auth-token-file", "token", "--reconcile-interval", "1s",
	}, args...)...)
	s.env["FUSE_URL"] = "http://" + addr
	s.eventually("fuse", "ls")
	return stop, log
}

func (s *shop) eventually(name string, args ...string) {
	s.t.Helper()
	var out string
	defer func() {
		if s.t.Failed() {
			s.t.Log(out)
		}
	}()
	testkit.Eventually(s.t, 2*time.Minute, name+" "+strings.Join(args, " "), func() bool {
		text, err := s.try(name, args...)
		out = text
		return err == nil
	})
}

var block = regexp.MustCompile("(?s)<!-- run: ([a-z-]+) -->\n```sh\n(.*?)```")

// page runs a block of docs/operate/backup.md.
func (s *shop) page(name string) string {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "operate", "backup.md"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range block.FindAllStringSubmatch(string(raw), -1) {
		if m[1] == name {
			return s.run("sh", "-euxc", m[2])
		}
	}
	s.t.Fatalf("the page has no block %q", name)
	return ""
}

// populate makes a host and an environment that a restored server must lead on.
func (s *shop) populate() {
	s.t.Helper()
	s.eventually("fuse", "hosts", "register", "h1", "--url", "unix://"+s.dir+"/hostd.sock", "--token-file", "host-token")
	s.run("fuse", "create", "--task-id", "kept")
	s.run("fuse", "exec", "fuse-kept", "--", "true")
}

// acts checks that the server leads the same environment, which only one that
// the host has taken for its own, with the right key, can.
func (s *shop) acts() {
	s.t.Helper()
	s.eventually("fuse", "exec", "fuse-kept", "--", "true")
	// One that is refused while the server comes to lead may leave its name taken.
	n := 0
	testkit.Eventually(s.t, 2*time.Minute, "another environment is made", func() bool {
		n++
		_, err := s.try("fuse", "create", "--task-id", fmt.Sprint("next", n, "-", time.Now().UnixNano()))
		return err == nil
	})
}

func TestBackupPageSQLite(t *testing.T) {
	s := newShop(t)
	s.host()
	stop, _ := s.server("--data-dir", s.env["DATA"])
	s.populate()
	if out := s.page("sqlite-backup"); !strings.Contains(out, "\nok\n") {
		t.Errorf("the copy is not sound: %s", out)
	}
	stop()
	if err := os.RemoveAll(s.env["DATA"]); err != nil {
		t.Fatal(err)
	}
	s.page("sqlite-restore")
	s.server("--data-dir", s.env["DATA"], "--accept-store")
	s.acts()
	s.page("resume")
}

func TestBackupPagePostgres(t *testing.T) {
	c := pgtest.Shared(t)
	s := newShop(t)
	s.host()
	s.database(c.Database(t))
	stop, _ := s.server("--data-dir", s.env["DATA"])
	s.populate()
	s.page("postgres-backup")
	stop()
	s.env["DATABASE_URL"] = c.Database(t)
	s.page("postgres-restore")
	s.server("--data-dir", s.env["DATA"], "--accept-store")
	s.acts()
	s.page("resume")
}

// From SQLite into PostgreSQL: refused while a server is alive, and the fleet
// goes on in the other database.
func TestBackupPageExportAndImport(t *testing.T) {
	s := newShop(t)
	s.host()
	stop, _ := s.server("--data-dir", s.env["DATA"])
	s.populate()
	if out, err := s.try("fuse", "store", "export", "--data-dir", s.env["DATA"], "live.jsonl"); err == nil || !strings.Contains(out, "is in use by") {
		t.Errorf("an export beside a server: %v\n%s", err, out)
	}
	stop()
	s.page("export")
	s.env["DATABASE_URL"] = pgtest.Shared(t).Database(t)
	s.page("import")
	if out, err := s.try("fuse", "store", "import", "--database-url", s.env["DATABASE_URL"], "backup/fuse.jsonl"); err == nil || !strings.Contains(out, "is not empty") {
		t.Errorf("a second import: %v\n%s", err, out)
	}
	s.server("--data-dir", s.env["DATA"], "--accept-store")
	s.acts()
	s.page("resume")
	if out, err := s.try("fuse", "store", "import", "--database-url", s.env["DATABASE_URL"], "backup/fuse.jsonl"); err == nil || !strings.Contains(out, "is in use by") {
		t.Errorf("an import beside a server: %v\n%s", err, out)
	}
}

// The page has no command that no test runs.
func TestEveryBlockOfTheBackupPageRuns(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "operate", "backup.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Count(string(raw), "```sh\n")
	run := len(block.FindAllString(string(raw), -1))
	if run != 7 || shown != run+1 { // the start itself is run with more flags
		t.Errorf("%d blocks, %d of them are run", shown, run)
	}
}

// A server whose database is not there keeps trying, then ends and says why.
func TestAServerWithoutItsDatabase(t *testing.T) {
	c := pgtest.New(t, pgtest.Options{})
	s := newShop(t)
	s.env["DATABASE_URL"], s.env["TOKEN_ENCRYPTION_KEY"] = c.Database(t), strings.Repeat("a", 64)
	c.Stop(t)
	start := time.Now()
	out, err := s.try("fuse", "server", "--data-dir", s.env["DATA"], "--listen", "127.0.0.1:0", "--auth-token-file", "token", "--store-timeout", "1s")
	took := time.Since(start)
	if err == nil || !strings.Contains(out, "cannot be reached") || !strings.Contains(out, "remedy: start the database server") {
		t.Errorf("%v\n%s", err, out)
	}
	if took < time.Second || took > time.Minute { // two minutes unless told
		t.Errorf("it took %v", took)
	}
	if strings.Contains(out, pgtest.Password) {
		t.Errorf("the password is printed:\n%s", out)
	}
	// What time does not heal is not waited for.
	s.env["DATABASE_URL"] = strings.Replace(s.env["DATABASE_URL"], pgtest.Password, "wrong", 1)
	c.Start(t)
	out, err = s.try("fuse", "server", "--data-dir", s.env["DATA"], "--listen", "127.0.0.1:0", "--auth-token-file", "token", "--store-timeout", "1m")
	if err == nil || !strings.Contains(out, "password or role is refused") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A database that goes away and comes back is served again by itself; nothing
// that was acknowledged is lost and no environment ends.
func TestAServerOutlivesAnOutageOfItsDatabase(t *testing.T) {
	c := pgtest.New(t, pgtest.Options{})
	s := newShop(t)
	s.database(c.Database(t))
	s.host()
	_, log := s.server("--data-dir", s.env["DATA"], "--lease", "5s")
	s.populate()
	c.Crash(t)
	testkit.Eventually(t, time.Minute, "creates are refused", s.createIsRefused)
	testkit.Eventually(t, time.Minute, "leadership ends with the lease", func() bool { return strings.Count(log.String(), "control plane taken down") > 0 })
	testkit.Eventually(t, time.Minute, "creates stay refused", s.createIsRefused)
	c.Start(t)
	s.acts()
	if n := pgtest.Scalar[int](t, s.env["DATABASE_URL"], "SELECT count(*) FROM vms WHERE id = 'fuse-kept' AND state = 'running'"); n != 1 {
		t.Errorf("%d environments of that name run", n)
	}
}

// createIsRefused tries a create and wants 503 and when to try again.
func (s *shop) createIsRefused() bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	body := strings.NewReader(`{"spec":{"cpus":1,"ram_mb":128}}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.env["FUSE_URL"]+"/v1/environments", body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer a-token-for-the-api-0123456789")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
}
