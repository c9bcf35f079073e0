package newuser_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/playguard/rig"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// program builds fuse into a directory of its own.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, "fuse"), "../../../cmd/fuse")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return dir
}

// TestScripts gives each script a host of its own: what is there is what it made.
func TestScripts(t *testing.T) {
	bin := program(t)
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			run(t, bin, file)
		})
	}
}

func run(t *testing.T, bin, file string) {
	d := dockertest.Start(t)
	root := filepath.Join(d.Dir, "opt", "fuse")
	rig.Guard(t, d, root)
	s := sshdtest.Start(t, rig.Sessions(t, d, rig.V2, filepath.Join(d.Dir, "sessions")))
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(s.HostKey))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Files: []string{file}, RequireExplicitExec: true, Deadline: time.Now().Add(20 * time.Minute),
		Setup: func(e *testscript.Env) error {
			host, port, err := net.SplitHostPort(s.Address)
			if err != nil {
				return err
			}
			told := filepath.Join(e.WorkDir, "told")
			hook := httptest.NewServer(listener(told))
			e.Defer(hook.Close)
			dir := filepath.Join(e.WorkDir, ".ssh")
			config := fmt.Sprintf("Host box\n  HostName %s\n  Port %s\n  User %s\n", host, port, s.User)
			err = errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600),
				os.WriteFile(filepath.Join(dir, "id_ed25519"), s.Key, 0o600))
			for k, v := range map[string]string{
				"ADDR": testkit.Addr(t), "HOME": e.WorkDir, "XDG_CONFIG_HOME": filepath.Join(e.WorkDir, "config"), "SSH_AUTH_SOCK": "",
				"PATH": bin + ":" + os.Getenv("PATH"), "IMAGE": dockertest.Image, "FINGERPRINT": ssh.FingerprintSHA256(key),
				"ROOT": root, "DOCKER_HOST": d.Host, "COMPOSED": "label=com.docker.compose.config-hash", "HOOK": hook.URL, "TOLD": told,
			} {
				e.Setenv(k, v)
			}
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "until": until, "hostile": hostile},
	})
}

// listener writes what it is told into a file, a line each.
func listener(path string) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err == nil {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				_, err = fmt.Fprintf(f, "%s\n", body)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
}

// code N PROGRAM ARG... runs a program and wants exit code N of it.
func code(ts *testscript.TestScript, _ bool, args []string) {
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

// until PROGRAM ARG... runs a program until it succeeds.
func until(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		began := time.Now()
		if ts.Exec(args[0], args[1:]...) == nil {
			return
		}
		<-time.After(testkit.Pause(time.Since(began)))
	}
	ts.Fatalf("%s never succeeds", args[0])
}

// hostile sends what no client of ours would.
func hostile(ts *testscript.TestScript, _ bool, _ []string) {
	raw, err := os.ReadFile(filepath.Join(ts.Getenv("WORK"), "token"))
	ts.Check(err)
	token := strings.TrimSpace(string(raw))
	ask := func(method, path, key string, body []byte) (int, string) {
		req, err := http.NewRequestWithContext(context.Background(), method, "http://"+ts.Getenv("ADDR")+path, bytes.NewReader(body))
		ts.Check(err)
		req.Header.Set("Authorization", "Bearer "+token)
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		transport := &http.Transport{DisableKeepAlives: true}
		res, err := (&http.Client{Transport: transport}).Do(req)
		ts.Check(err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		ts.Check(err)
		return res.StatusCode, string(text)
	}
	up := func(path string, data []byte) []byte {
		raw, err := json.Marshal(map[string]any{"name": "x", "files": []any{map[string]any{"path": path, "data": base64.StdEncoding.EncodeToString(data)}}})
		ts.Check(err)
		return raw
	}
	for _, c := range []struct {
		method, path string
		body         []byte
		status       int
		says         string
	}{
		{"POST", "/v1/playgrounds", make([]byte, 12<<20+1), 413, "12582912 bytes"},
		{"POST", "/v1/playgrounds", up("compose.yaml", make([]byte, 1<<20+1)), 413, "1048576"},
		{"POST", "/v1/playgrounds", up("../compose.yaml", []byte("services: {}")), 400, "files"},
		{"POST", "/v1/playgrounds", up("/etc/passwd", []byte("x")), 400, "files"},
		{"POST", "/v1/playgrounds", up(".fuse/owner.json", []byte("x")), 400, "files"},
		{"POST", "/v1/playgrounds", []byte(`{"name":"x","files":[]}`), 400, "compose"},
		{"POST", "/v1/playgrounds", []byte(`{"name":"","files":[]}`), 400, "name"},
		{"POST", "/v1/playgrounds", []byte(`{"name":"x","files":"no"}`), 400, "files"},
		{"POST", "/v1/playground-plans", []byte(`{"name":"x","files":[{"path":"compose.yaml","mode":4095,"data":""}]}`), 400, "files.mode"},
		{"POST", "/v1/playgrounds/shop?action=explode", nil, 400, "rollout"},
		{"GET", "/v1/playgrounds?cursor=!!", nil, 400, "cursor"},
		{"GET", "/v1/playgrounds/shop?wait=3600", nil, 400, "0 to 60"},
		{"GET", "/v1/playgrounds/shop/logs?tail=10000000", nil, 400, "10000"},
		{"GET", "/v1/playgrounds/shop/logs?service=nothing", nil, 404, "service"},
		{"GET", "/v1/playgrounds/shop/exec", nil, 400, "WebSocket"},
		{"DELETE", "/v1/playgrounds/shop?everything=yes", nil, 400, "keep_volumes"},
		{"DELETE", "/v1/playgrounds/shop?forget=true&keep_volumes=true", nil, 400, "one of the two"},
		{"POST", "/v1/marquees", make([]byte, 1<<20+1), 413, "1048576 bytes"},
		{"POST", "/v1/marquees", []byte(`{"name":"y","address":"h","user":"u","key":"-----BEGIN SECRET-----"}`), 400, "private key"},
		{"POST", "/v1/marquees", []byte(`{"name":"y","address":"h","user":"u v","agent":"/a"}`), 400, "user"},
		{"POST", "/v1/marquees/box/adopt", []byte(`{"project":"shop--nothing"}`), 404, "shop--nothing"},
	} {
		status, text := ask(c.method, c.path, "", c.body)
		if status != c.status || !strings.Contains(text, c.says) || strings.Contains(text, "SECRET") {
			ts.Fatalf("%s %s: %d %s; want %d and %q", c.method, c.path, status, text, c.status, c.says)
		}
	}
	// Asked twice under one key, it is done once.
	first, one := ask("POST", "/v1/playgrounds/shop?action=rollout", "again", nil)
	second, two := ask("POST", "/v1/playgrounds/shop?action=rollout", "again", nil)
	if first != 202 || second != 202 || !strings.Contains(two, `"id"`) {
		ts.Fatalf("repeated: %d %s, then %d %s", first, one, second, two)
	}
	if status, text := ask("POST", "/v1/playgrounds/shop?action=stop", "again", nil); status != 422 {
		ts.Fatalf("the key used for something else: %d %s", status, text)
	}
}
