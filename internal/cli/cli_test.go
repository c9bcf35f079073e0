package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result is what one run of the command line left.
type result struct {
	code     int
	out, err string
}

// runCLI runs the command line against a server with an empty environment and
// a configuration file of its own.
func runCLI(t *testing.T, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	if env == nil {
		env = map[string]string{}
	}
	root := New(Options{
		Version: "v-test",
		Streams: Streams{In: strings.NewReader(stdin), Out: &out, Err: &errs},
		Getenv:  func(k string) string { return env[k] },
	})
	if !strings.Contains(strings.Join(args, " "), "--config") {
		args = append([]string{"--config", filepath.Join(t.TempDir(), "config.yaml")}, args...)
	}
	code := Execute(context.Background(), root, args)
	http.DefaultClient.CloseIdleConnections()
	return result{code, out.String(), errs.String()}
}

// recorded is one request as the server saw it.
type recorded struct {
	Method, URI string
	Header      http.Header
	Body        map[string]any
}

// serve answers every request with the next of the given answers and records
// what came. An answer is "STATUS BODY".
func serve(t *testing.T, answers ...string) (string, *[]recorded) {
	t.Helper()
	var seen []recorded
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := recorded{Method: r.Method, URI: r.URL.RequestURI(), Header: r.Header}
		if raw, _ := io.ReadAll(r.Body); len(raw) > 0 {
			if err := json.Unmarshal(raw, &rec.Body); err != nil {
				t.Errorf("%s %s: body %q: %v", r.Method, r.URL, raw, err)
			}
		}
		seen = append(seen, rec)
		if len(answers) == 0 {
			t.Errorf("unexpected request %s %s", r.Method, r.URL)
			return
		}
		var status int
		head, body, _ := strings.Cut(answers[0], " ")
		fmt.Sscan(head, &status)
		answers = answers[1:]
		w.Header().Set("X-Request-ID", "req_1")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, &seen
}

const envJSON = `{"id":"fuse-a","uid":"U","state":"running","task_id":"a","owner":"user:master","url":"","host_id":"local",` +
	`"spec":{"cpus":1,"ram_mb":256,"storage_gb":1,"image":"minimal"},"created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z",` +
	`"boot":{"mode":"cold","steps":[{"step":"process","took_ms":1500}]}}`

func TestRunPassesOutputAndExitCodeThroughAndRemoves(t *testing.T) {
	url, seen := serve(t, "201 "+envJSON, `200 {"exit_code":7,"stdout":"hi\n","stderr":"oh\n"}`, "204 ")
	got := runCLI(t, nil, "", "--url", url, "--token", "T", "run", "--image", "minimal", "--cpus", "2", "--ram-mb", "128", "-e", "A=1", "--", "sh", "-c", "exit 7")
	if got.code != 7 || got.out != "hi\n" || !strings.Contains(got.err, "oh\n") {
		t.Errorf("got %+v", got)
	}
	reqs := *seen
	if len(reqs) != 3 {
		t.Fatalf("%d requests, want create, exec, delete", len(reqs))
	}
	if reqs[0].Header.Get("Idempotency-Key") == "" || reqs[0].Header.Get("Authorization") != "Bearer T" {
		t.Errorf("create headers: %v", reqs[0].Header)
	}
	wantSpec := map[string]any{"cpus": 2.0, "ram_mb": 128.0, "image": "minimal"}
	if d := cmp.Diff(wantSpec, reqs[0].Body["spec"]); d != "" {
		t.Errorf("spec: %s", d)
	}
	wantExec := map[string]any{"cmd": []any{"sh", "-c", "exit 7"}, "env": map[string]any{"A": "1"}}
	if d := cmp.Diff(wantExec, reqs[1].Body); d != "" {
		t.Errorf("exec: %s", d)
	}
	if reqs[2].Method != http.MethodDelete || reqs[2].URI != "/v1/environments/fuse-a" {
		t.Errorf("last request %s %s", reqs[2].Method, reqs[2].URI)
	}
}

func TestRunRemovesAlsoWhenExecFails(t *testing.T) {
	url, seen := serve(t, "201 "+envJSON, `503 {"error":{"code":"unavailable","message":"the host does not answer"}}`, "204 ")
	got := runCLI(t, nil, "", "--url", url, "run", "--", "true")
	if got.code != ExitFailed || len(*seen) != 3 {
		t.Errorf("got %+v after %d requests", got, len(*seen))
	}
}

func TestExecWritesBytesThatAreNotText(t *testing.T) {
	url, _ := serve(t, `200 {"exit_code":0,"stdout":"\ufffd","stdout_b64":"/wD+","stderr":""}`)
	got := runCLI(t, nil, "", "--url", url, "exec", "fuse-a", "--", "cat", "/bin")
	if got.out != "\xff\x00\xfe" {
		t.Errorf("stdout %q", got.out)
	}
}

func TestExecSendsStdin(t *testing.T) {
	url, seen := serve(t, `200 {"exit_code":0,"stdout":"","stderr":""}`)
	runCLI(t, nil, "abc", "--url", url, "exec", "-i", "fuse-a", "--", "cat")
	if got := (*seen)[0].Body["stdin_b64"]; got != "YWJj" {
		t.Errorf("stdin_b64 = %v", got)
	}
	got := runCLI(t, nil, strings.Repeat("x", maxStdin+1), "--url", url, "exec", "-i", "fuse-a", "--", "cat")
	if got.code != ExitUsage || !strings.Contains(got.err, "700 KiB") {
		t.Errorf("too much stdin: %+v", got)
	}
}

func TestErrorsShowRemedyLastAndTheRequest(t *testing.T) {
	url, _ := serve(t, `503 {"error":{"code":"unavailable","message":"no host has room","details":{"remedy":"add a host","limit":"8 cpus","usage":"7 cpus"}}}`)
	got := runCLI(t, nil, "", "--url", url, "get", "fuse-a")
	want := "error: no host has room\n  limit: 8 cpus\n  usage: 7 cpus\n  remedy: add a host\n  code: unavailable (request req_1)\n"
	if got.code != ExitFailed || got.err != want {
		t.Errorf("got %d %q, want %q", got.code, got.err, want)
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		args         []string
		want         int
	}{
		{"not found", `404 {"error":{"code":"not_found","message":"no"}}`, []string{"get", "x"}, ExitNotFound},
		{"bad value", `400 {"error":{"code":"invalid_argument","message":"no"}}`, []string{"create"}, ExitUsage},
		{"deadline", `504 {"error":{"code":"deadline_exceeded","message":"no"}}`, []string{"get", "x"}, ExitDeadline},
		{"conflict", `409 {"error":{"code":"conflict","message":"no"}}`, []string{"drain", "x"}, ExitFailed},
		{"not our server", `500 <html>nginx</html>`, []string{"get", "x"}, ExitFailed},
		{"ok", "200 " + envJSON, []string{"get", "x"}, ExitOK},
	} {
		url, _ := serve(t, c.answer)
		if got := runCLI(t, nil, "", append([]string{"--url", url}, c.args...)...); got.code != c.want {
			t.Errorf("%s: %+v, want %d", c.name, got, c.want)
		}
	}
	for _, args := range [][]string{
		{"get"}, {"nonsense"}, {"run"}, {"ls", "--nope"}, {"ls", "-o", "xml"}, {"rm"}, {"rm", "--all"}, {"rm", "a", "--all"},
		{"create", "--label", "x"}, {"create", "--secret", "NOT_SET_ANYWHERE"}, {"host", "register", "h"}, {"--context", "none", "ls"},
	} {
		if got := runCLI(t, nil, "", args...); got.code != ExitUsage || got.err == "" {
			t.Errorf("%v: %+v, want a usage error", args, got)
		}
	}
}

func TestNoServerSaysHowToStartOne(t *testing.T) {
	got := runCLI(t, nil, "", "ls")
	if got.code != ExitFailed || !strings.Contains(got.err, "fuse dev") {
		t.Errorf("got %+v", got)
	}
	got = runCLI(t, map[string]string{"FUSE_URL": "http://127.0.0.1:1"}, "", "ls")
	if got.code != ExitFailed || !strings.Contains(got.err, "http://127.0.0.1:1") {
		t.Errorf("got %+v", got)
	}
}

func TestTargetPrecedence(t *testing.T) {
	dir := t.TempDir()
	config, tokenFile := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{CurrentContext: "one"}
	c.Set(Context{Name: "one", BaseURL: "http://one", TokenFile: tokenFile})
	c.Set(Context{Name: "two", BaseURL: "http://two", Token: "T2"})
	if err := c.Save(config); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name       string
		a          app
		env        map[string]string
		url, token string
	}{
		{"context", app{}, nil, "http://one", "from-file"},
		{"other context", app{contextName: "two"}, map[string]string{"FUSE_URL": "http://env"}, "http://two", "T2"},
		{"environment beats context", app{}, map[string]string{"FUSE_URL": "http://env", "FUSE_TOKEN": "E"}, "http://env", "E"},
		{"flag beats environment", app{url: "http://flag", token: "F"}, map[string]string{"FUSE_URL": "http://env", "FUSE_TOKEN": "E"}, "http://flag", "F"},
		{"a context's token stays with its server", app{url: "http://flag"}, nil, "http://flag", ""},
		{"token file from the environment", app{}, map[string]string{"FUSE_TOKEN_FILE": tokenFile}, "http://one", "from-file"},
	} {
		x.a.configPath, x.a.Getenv = config, func(k string) string { return x.env[k] }
		url, token, err := x.a.target()
		if err != nil || url != x.url || token != x.token {
			t.Errorf("%s: %q %q %v, want %q %q", x.name, url, token, err, x.url, x.token)
		}
	}
}

func TestConfigThatOthersCanReadIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("current_context: x\n"), 0o644); err != nil { //nolint:gosec // the test is about it
		t.Fatal(err)
	}
	if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("LoadConfig: %v", err)
	}
}

func TestListMergesPages(t *testing.T) {
	second := strings.Replace(envJSON, "fuse-a", "fuse-b", 1)
	url, seen := serve(t, `200 {"environments":[`+envJSON+`],"next_cursor":"C"}`, `200 {"environments":[`+second+`]}`)
	got := runCLI(t, nil, "", "--url", url, "--json", "ls")
	if want := `{"environments":[` + envJSON + `,` + second + "]}\n"; got.out != want {
		t.Errorf("got %s, want %s", got.out, want)
	}
	if uri := (*seen)[1].URI; uri != "/v1/environments?cursor=C&limit=200" {
		t.Errorf("second page: %s", uri)
	}
	url, _ = serve(t, `200 {"environments":[]}`)
	if got := runCLI(t, nil, "", "--url", url, "--json", "environment", "list"); got.out != `{"environments":[]}`+"\n" {
		t.Errorf("empty list: %q", got.out)
	}
}

func TestEventsTakeUpWhereTheyBroke(t *testing.T) {
	var lasts []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lasts = append(lasts, r.Header.Get("Last-Event-ID"))
		send := func(id, state string) {
			fmt.Fprintf(w, "id: %s\ndata: {\"id\":%q,\"event\":\"state\",\"vm_id\":\"fuse-a\",\"state\":%q,\"updated_at\":\"2026-01-02T03:04:05Z\"}\n\n", id, id, state)
		}
		if len(lasts) == 1 {
			fmt.Fprint(w, ": keepalive\n\n")
			send("4", "running")
			return
		}
		send("9", "destroyed")
	}))
	defer srv.Close()
	got := runCLI(t, nil, "", "--url", srv.URL, "events", "fuse-a")
	if d := cmp.Diff([]string{"", "4"}, lasts); d != "" {
		t.Errorf("Last-Event-ID: %s", d)
	}
	if got.code != ExitOK || !strings.Contains(got.out, "running") || !strings.Contains(got.out, "destroyed") {
		t.Errorf("got %+v", got)
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 59 * time.Second: "59s", time.Minute: "1m", 90 * time.Minute: "1h30m", 49 * time.Hour: "2d",
	} {
		if got := age(now, now.Add(-d)); got != want {
			t.Errorf("age %v = %s, want %s", d, got, want)
		}
	}
	if got := age(now, time.Time{}); got != "-" {
		t.Errorf("age of zero = %s", got)
	}
}
