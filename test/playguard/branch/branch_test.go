package branch_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/playguard/rig"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is how long anything may take on a machine of any load, and less than a
// branch waits for its turn.
const patience = 4 * time.Minute

// site is a server, a Docker host, a git server, and somebody at a terminal.
type site struct {
	t      *testing.T
	bin    string
	dir    string
	url    string
	root   string
	log    string
	docker *dockertest.Daemon
	git    *gittest.Server
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOn(t, dockertest.Start(t))
}

func newSiteOn(t *testing.T, d *dockertest.Daemon) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), docker: d, git: gittest.Start(t)}
	s.bin, s.log, s.root = filepath.Join(s.dir, "fuse"), filepath.Join(s.dir, "log"), filepath.Join(s.docker.Dir, "opt", "fuse")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", s.bin, "../../../cmd/fuse").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	sshd := sshdtest.Start(t, rig.Sessions(t, d, rig.V2, filepath.Join(d.Dir, "sessions")))
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(sshd.HostKey))
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(sshd.Address)
	if err != nil {
		t.Fatal(err)
	}
	s.write("token", "a-token-of-this-test-alone-0123456789\n")
	s.write(".ssh/config", fmt.Sprintf("Host box\n  HostName %s\n  Port %s\n  User %s\n", host, port, sshd.User))
	s.write(".ssh/id_ed25519", string(sshd.Key))
	address := testkit.Addr(t)
	s.url = "http://" + address
	s.serve(address)
	testkit.Eventually(t, patience, "the server answers", func() bool {
		_, err := s.run("", "ls", "--quiet")
		return err == nil
	})
	s.fuse("", "marquee", "add", "box", "--root", s.root, "--host-key", ssh.FingerprintSHA256(key))
	return s
}

func (s *site) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// serve runs the server until the test ends.
func (s *site) serve(address string) {
	s.t.Helper()
	log, err := os.Create(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(s.bin, "server", "--data-dir", filepath.Join(s.dir, "data"), "--listen", address, "--auth-token-file", filepath.Join(s.dir, "token"), "--log-level", "debug")
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env(), log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		cmd.Wait()                          // how it ended is no matter
		log.Close()
	})
}

func (s *site) env() []string {
	return append(os.Environ(), "HOME="+s.dir, "XDG_CONFIG_HOME="+filepath.Join(s.dir, "config"), "SSH_AUTH_SOCK=", "FUSE_URL="+s.url, "FUSE_TOKEN_FILE="+filepath.Join(s.dir, "token"))
}

func (s *site) run(stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), s.bin, args...)
	cmd.Env, cmd.Stdin = s.env(), strings.NewReader(stdin)
	var out, errText bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errText
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("fuse %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errText.String())
	}
	return out.String(), err
}

// fuse runs a command that has to succeed.
func (s *site) fuse(stdin string, args ...string) string {
	s.t.Helper()
	out, err := s.run(stdin, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *site) get(name string) (g gen.Playground) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.fuse("", "playground", "get", name, "--json")), &g); err != nil {
		s.t.Fatal(err)
	}
	return g
}

// page is what the service of a playground shows of its branch.
func (s *site) page(name string) string {
	out, err := s.run("", "playground", "exec", name, "web", "--", "cat", "/site/index.html")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(out)
}

// still fails if a playground shows anything else. An answer that says nothing of its
// branch is asked for again.
func (s *site) still(name, want string) {
	s.t.Helper()
	page, err := "", error(nil)
	testkit.Eventually(s.t, patience, name+" answers", func() bool {
		page, err = s.run("", "playground", "exec", name, "web", "--", "cat", "/site/index.html")
		return err == nil
	})
	if page = strings.TrimSpace(page); page != want {
		s.t.Errorf("%s shows %q, want %q", name, page, want)
	}
}

func (s *site) shows(name, want string) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, name+" shows "+want, func() bool { return s.page(name) == want })
}

// problem waits until a playground does not follow its branch, for this reason.
func (s *site) problem(name, want string) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, fmt.Sprintf("%s has problem %q", name, want), func() bool { return s.get(name).Branch.Problem == want })
}

func compose(extra string) string {
	return `services:
  web:
    image: ` + dockertest.Image + `
    command: [sh, -c, 'trap "exit 0" TERM; sleep 100000 & wait']
    network_mode: none
    environment: {COLOUR: "${COLOUR:-none}", PASSWORD: "${PASSWORD:-}", AT: "${FUSE_BRANCH}"}
    volumes: ['./site:/site', 'data:/data']
` + extra + `volumes: {data: }
`
}

// push tells the server as a git server does.
func (s *site) push(h gen.GitHook, branch, commit, delivery string, sign func(body []byte) string) (int, string) {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"ref": "refs/heads/" + branch, "after": commit})
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+h.Path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "push")
	req.Header.Set("X-GitHub-Delivery", delivery)
	req.Header.Set("X-Hub-Signature-256", sign(body))
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var text bytes.Buffer
	text.ReadFrom(res.Body) // what came is compared
	return res.StatusCode, text.String()
}

func signer(secret string) func([]byte) string {
	return func(body []byte) string {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(body)
		return "sha256=" + hex.EncodeToString(mac.Sum(nil))
	}
}

// spy looks for texts in the arguments and environments of all processes.
type spy struct {
	secrets []string
	mu      sync.Mutex
	found   map[string]bool
}

// watch goes on until ctx ends. What ran before knows nothing and stays as it is.
func (y *spy) watch(ctx context.Context) {
	before := processes()
	for ctx.Err() == nil {
		began := time.Now()
		now := processes()
		for pid := range before {
			if !now[pid] { // its number may be another's soon
				delete(before, pid)
			}
		}
		for pid := range now {
			if !before[pid] {
				y.read(pid)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(20*time.Millisecond, testkit.Pause(time.Since(began)))):
		}
	}
}

// read looks at one process.
func (y *spy) read(pid string) {
	for _, name := range []string{"cmdline", "environ"} {
		raw, err := os.ReadFile(filepath.Join("/proc", pid, name))
		if err != nil {
			continue
		}
		for _, s := range y.secrets {
			if bytes.Contains(raw, []byte(s)) {
				y.mu.Lock()
				y.found[name+" of "+string(bytes.ReplaceAll(raw[:min(len(raw), 200)], []byte{0}, []byte{' '}))] = true
				y.mu.Unlock()
			}
		}
	}
}

// processes are the numbers of all there are.
func processes() map[string]bool {
	out := map[string]bool{}
	dir, err := os.Open("/proc")
	if err != nil {
		return out
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what could be read of them
	for _, name := range names {
		if name[0] >= '0' && name[0] <= '9' {
			out[name] = true
		}
	}
	return out
}

// A repository with a branch becomes a preview, and goes where the branch goes,
// unless that would cost somebody's work or what runs.
func TestBranchBecomesPreview(t *testing.T) {
	s := newSite(t)
	const token, password = "tok-5f0a9c1e7b-git", "pw-7e1d33aa90-value"
	ctx, stop := context.WithCancel(t.Context())
	y := &spy{secrets: []string{token}, found: map[string]bool{}}
	var watching sync.WaitGroup
	watching.Go(func() { y.watch(ctx) })
	defer func() { stop(); watching.Wait() }()

	s.git.Token(token)
	repo := s.git.Repo("shop", map[string]string{"compose.yaml": compose(""), "site/index.html": "one", ".env": "COLOUR=red\n"})
	if _, err := s.run("", "playground", "follow", repo.URL, "--secret", "git"); err == nil || !strings.Contains(err.Error(), "there is no secret") {
		t.Errorf("%v", err)
	}
	s.fuse(token+"\n", "playground", "secret", "set", "git")
	s.fuse(password, "playground", "secret", "set", "pw", "--kind", "value")
	s.fuse("", "playground", "follow", repo.URL, "--name", "shop", "--secret", "git", "--secret-var", "PASSWORD=pw")
	s.shows("shop", "one")
	if env := s.fuse("", "playground", "exec", "shop", "web", "--", "sh", "-c", "echo $COLOUR $PASSWORD $AT"); strings.TrimSpace(env) != "red "+password+" main" {
		t.Errorf("%q", env)
	}
	g := s.get("shop")
	if g.Branch.Head != repo.Head("main") || g.Branch.Commit != g.Branch.Head || g.Branch.Problem != "" {
		t.Errorf("%+v", g.Branch)
	}
	checkout := filepath.Join(s.root, "playgrounds", g.Project, "props", g.Branch.Checkout)

	// A push that the git server tells of is up at once, and only once.
	var hook gen.GitHook
	if err := json.Unmarshal([]byte(s.fuse("", "playground", "git-hook", "add", repo.URL, "--json")), &hook); err != nil {
		t.Fatal(err)
	}
	tell := func(delivery string) {
		t.Helper()
		if code, text := s.push(hook, "main", repo.Head("main"), delivery, signer(hook.Secret)); code != http.StatusAccepted {
			t.Errorf("%d %s", code, text)
		}
	}
	repo.Commit("main", map[string]string{"site/index.html": "two"})
	if code, _ := s.push(hook, "main", repo.Head("main"), "d0", signer("not the secret")); code != http.StatusUnauthorized {
		t.Errorf("a forged push: %d", code)
	}
	began := time.Now()
	tell("d1")
	s.shows("shop", "two")
	t.Logf("a push was up after %s", time.Since(began).Round(100*time.Millisecond))
	if code, text := s.push(hook, "main", repo.Head("main"), "d1", signer(hook.Secret)); code != http.StatusAccepted || !strings.Contains(text, "repeated") {
		t.Errorf("%d %s", code, text)
	}

	// Work in the checkout keeps it where it is; when it is gone the branch goes on.
	if err := os.WriteFile(filepath.Join(checkout, "mine"), []byte("work"), 0o600); err != nil {
		t.Fatal(err)
	}
	repo.Commit("main", map[string]string{"site/index.html": "three"})
	tell("d2")
	s.problem("shop", "work")
	if raw, err := os.ReadFile(filepath.Join(checkout, "mine")); string(raw) != "work" {
		t.Errorf("work: %q %v", raw, err)
	}
	s.still("shop", "two")
	if err := os.Remove(filepath.Join(checkout, "mine")); err != nil {
		t.Fatal(err)
	}
	s.fuse("", "playground", "check", "shop")
	s.shows("shop", "three")

	// A definition that the marquee refuses leaves the one before at work.
	repo.Commit("main", map[string]string{"compose.yaml": compose("    privileged: true\n"), "site/index.html": "evil"})
	tell("d3")
	s.problem("shop", "refused")
	if why := s.get("shop").Branch.Why; !strings.Contains(why, "privileged") {
		t.Errorf("%q", why)
	}
	if id := s.fuse("", "playground", "exec", "shop", "web", "--", "sh", "-c", "echo up"); strings.TrimSpace(id) != "up" {
		t.Errorf("%q", id)
	}
	repo.Commit("main", map[string]string{"compose.yaml": compose("    labels: {v: four}\n"), "site/index.html": "four"})
	tell("d4")
	s.shows("shop", "four")
	s.problem("shop", "")

	// A branch that is rewritten is followed when a person says so.
	repo.Git("reset", "-q", "--hard", "HEAD~3")
	repo.Commit("main", map[string]string{"site/index.html": "five"})
	tell("d5")
	s.problem("shop", "branch_rewritten")
	s.still("shop", "four") // a rewritten branch is not followed
	s.fuse("", "playground", "accept", "shop")
	s.shows("shop", "five")

	// Another one is looked at as long as nothing of it is wrong with the server: the token is taken back.
	s.git.Token("another")
	repo.Commit("main", map[string]string{"site/index.html": "six"})
	for i := range 3 {
		tell(fmt.Sprint("e", i))
		s.fuse("", "playground", "check", "shop")
		<-time.After(100 * time.Millisecond) // what must not come has its chance
	}
	if state := s.get("shop").State; state == "error" {
		t.Errorf("%q", state)
	}
	s.still("shop", "five")
	s.git.Token(token)
	s.fuse("", "playground", "check", "shop")
	s.shows("shop", "six")
	repo.Delete("main")
	s.fuse("", "playground", "check", "shop")
	s.problem("shop", "branch_gone")
	s.still("shop", "six") // what runs does not go with its branch

	stop()
	watching.Wait()
	for f := range y.found {
		t.Errorf("the token was seen in %s", f)
	}
	s.nowhere(token, password)
	s.fuse("", "playground", "destroy", "shop", "--yes")
	if _, err := os.Stat(filepath.Dir(filepath.Dir(checkout))); err == nil {
		t.Error("the directory of the playground is there after its end")
	}
}

// nowhere fails if a secret is in what the server writes and answers, or in what
// lies on the host.
func (s *site) nowhere(token, value string) {
	s.t.Helper()
	texts := map[string]string{
		"secret ls": s.fuse("", "playground", "secret", "ls", "--json"), "get": s.fuse("", "playground", "get", "shop", "--json"),
		"explain": s.fuse("", "playground", "explain", "shop", "--json"),
	}
	for name, text := range texts {
		if strings.Contains(text, token) || strings.Contains(text, value) {
			s.t.Errorf("a secret is in the answer of %s", name)
		}
	}
	for dir, secrets := range map[string][]string{filepath.Join(s.dir, "data"): {token, value}, s.log: {token, value}, s.root: {token}} {
		err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil //nolint:nilerr // it went meanwhile
			}
			raw, err := os.ReadFile(p)
			for _, secret := range secrets {
				if err == nil && bytes.Contains(raw, []byte(secret)) {
					s.t.Errorf("a secret is in %s", p)
				}
			}
			return nil
		})
		if err != nil {
			s.t.Error(err)
		}
	}
}

// Each branch that matches has a playground of the template, as many as there may
// be, and one whose branch is gone comes to its end.
func TestPreviewPerBranch(t *testing.T) {
	s := newSite(t)
	repo := s.git.Repo("shop", map[string]string{"compose.yaml": compose(""), "site/index.html": "main"})
	repo.Commit("feature/a", map[string]string{"site/index.html": "a"})
	s.write("template.yaml", "name: shop\nrepository: "+repo.URL+"\nvariables:\n- {name: COLOUR, type: choice, choices: [red, blue], required: true}\n- {name: PASSWORD, sensitive: true}\n")
	s.fuse("", "playground", "template", "set", filepath.Join(s.dir, "template.yaml"))
	if _, err := s.run("", "playground", "template", "launch", "shop"); err == nil || !strings.Contains(err.Error(), "COLOUR is missing") {
		t.Errorf("%v", err)
	}
	if _, err := s.run("", "playground", "preview", "set", "pr", "-t", "shop", "-b", "feature/*", "--var", "COLOUR=green"); err == nil || !strings.Contains(err.Error(), "red, blue") {
		t.Errorf("%v", err)
	}
	s.fuse("", "playground", "preview", "set", "pr", "-t", "shop", "-b", "feature/*", "--most", "1", "--var", "COLOUR=blue")
	name := ""
	testkit.Eventually(t, patience, "the branch has a playground", func() bool {
		var list gen.PlaygroundList
		if err := json.Unmarshal([]byte(s.fuse("", "playground", "ls", "--json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, g := range list.Playgrounds {
			if g.Branch.Preview == "pr" && g.State == "running" {
				name = g.Name
			}
		}
		return name != ""
	})
	s.shows(name, "a")
	repo.Commit("feature/b", map[string]string{"site/index.html": "b"})
	repo.Delete("feature/a")
	s.fuse("", "playground", "preview", "set", "pr", "-t", "shop", "-b", "feature/*", "--most", "1", "--var", "COLOUR=blue")
	testkit.Eventually(t, patience, "the end of the playground is set, and the other branch has no room", func() bool {
		g := s.get(name)
		return !g.ExpiresAt.IsZero() && strings.Contains(s.fuse("", "playground", "preview", "ls"), "feature/b")
	})
}
