// Package gittest is a git server for tests: real repositories behind git's own
// program for HTTP, with a password if one is wanted, and over SSH by sshd.
package gittest

import (
	"net/http"
	"net/http/cgi" //nolint:gosec // of the Go versions that are long gone
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Server serves the repositories below Dir at URL/NAME.git.
type Server struct {
	URL string
	Dir string

	t    testing.TB
	http *httptest.Server

	mu    sync.Mutex
	token string
	hold  chan struct{} // requests wait for its end
	asked int
}

// Start serves until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{Dir: t.TempDir(), t: t}
	out, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		t.Fatal("git is needed: ", err)
	}
	backend := &cgi.Handler{
		Path:       filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		Env:        []string{"GIT_PROJECT_ROOT=" + s.Dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null"},
		InheritEnv: []string{"PATH"},
	}
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		token, hold := s.token, s.hold
		s.asked++
		s.mu.Unlock()
		if hold != nil {
			select {
			case <-hold:
			case <-r.Context().Done():
				return
			}
		}
		if _, password, _ := r.BasicAuth(); token != "" && password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	s.URL = s.http.URL
	t.Cleanup(s.http.Close)
	return s
}

// Token has the server ask for a password; empty lets everybody in.
func (s *Server) Token(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// Hold has every request wait until release is called.
func (s *Server) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := make(chan struct{})
	s.hold = hold
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.hold = nil
		s.mu.Unlock()
		close(hold)
	})
}

// Asked counts requests.
func (s *Server) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Repo is a repository of the server with a working copy to commit from.
type Repo struct {
	URL  string
	Bare string
	Work string
	t    testing.TB
}

// Repo makes one. Its branch main has one commit with these files.
func (s *Server) Repo(name string, files map[string]string) *Repo {
	s.t.Helper()
	r := &Repo{URL: s.URL + "/" + name + ".git", Bare: filepath.Join(s.Dir, name+".git"), Work: filepath.Join(s.t.TempDir(), name), t: s.t}
	r.git(s.Dir, "init", "-q", "--bare", "-b", "main", r.Bare)
	r.git(s.Dir, "clone", "-q", r.Bare, r.Work)
	r.Commit("main", files)
	return r
}

// Commit writes files on a branch, which it makes if it is not there, pushes it
// and returns the commit. An empty text removes a file.
func (r *Repo) Commit(branch string, files map[string]string) string {
	r.t.Helper()
	if exec.CommandContext(r.t.Context(), "git", "-C", r.Work, "rev-parse", "-q", "--verify", "refs/heads/"+branch).Run() == nil {
		r.Git("checkout", "-q", branch)
	} else {
		r.Git("checkout", "-q", "-b", branch)
	}
	for name, text := range files {
		path := filepath.Join(r.Work, name)
		if text == "" {
			r.Git("rm", "-q", name)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
		r.Git("add", "-f", name)
	}
	r.Git("commit", "-q", "--allow-empty", "-m", "change")
	r.Git("push", "-q", "-f", "origin", branch)
	return r.Head(branch)
}

// Delete removes a branch of the server's.
func (r *Repo) Delete(branch string) {
	r.t.Helper()
	r.git(r.Bare, "update-ref", "-d", "refs/heads/"+branch)
}

// Head is the commit of a branch.
func (r *Repo) Head(branch string) string {
	r.t.Helper()
	return strings.TrimSpace(r.Git("rev-parse", "refs/heads/"+branch))
}

// Git runs git in the working copy.
func (r *Repo) Git(args ...string) string {
	r.t.Helper()
	return r.git(r.Work, args...)
}

func (r *Repo) git(dir string, args ...string) string {
	r.t.Helper()
	return Git(r.t, dir, args...)
}

// Git runs git in a directory, by no configuration of this machine.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}
