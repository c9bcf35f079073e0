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
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

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
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, &seen
}

func decodeJSON(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
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
		{"--token", "a", "--token-file", "b", "ls"}, {"--url", "no-scheme", "ls"}, {"context", "add", "x", "no-scheme"}, {"--url", "http://127.0.0.1:1", "ls", "--limit", "201"},
		{"create", "--label", "x"}, {"create", "--secret", "NOT_SET_ANYWHERE"}, {"host", "register", "h"}, {"--context", "none", "ls"},
		{"--url", "http://127.0.0.1:1", "ls", "--state", "asleep"}, {"run", "uname", "-a"},
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
		{"a named context beats the environment", app{contextName: "two"}, map[string]string{"FUSE_URL": "http://env", "FUSE_TOKEN": "E"}, "http://two", "T2"},
		{"flag beats a named context", app{contextName: "two", token: "F"}, nil, "http://two", "F"},
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
	if err := os.WriteFile(path, []byte("current_context: x\n"), 0o644); err != nil {
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
	if d := cmp.Diff(decodeJSON(t, `{"environments":[`+envJSON+`,`+second+"]}"), decodeJSON(t, got.out)); d != "" {
		t.Error(d)
	}
	if uri := (*seen)[1].URI; uri != "/v1/environments?limit=200&cursor=C" {
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
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	got := runCLI(t, nil, "", "--url", srv.URL, "events", "fuse-a")
	if d := cmp.Diff([]string{"", "4"}, lasts); d != "" {
		t.Errorf("Last-Event-ID: %s", d)
	}
	if got.code != ExitOK || !strings.Contains(got.out, "running") || !strings.Contains(got.out, "destroyed") {
		t.Errorf("got %+v", got)
	}
}

func TestEventsThatCannotBegin(t *testing.T) {
	if got := runCLI(t, nil, "", "events", "fuse-a"); got.code != ExitFailed || !strings.Contains(got.err, "fuse dev") {
		t.Errorf("no server known: %+v", got)
	}
	if got := runCLI(t, nil, "", "--url", "http://127.0.0.1:1", "events", "fuse-a"); got.code != ExitFailed || !strings.Contains(got.err, "127.0.0.1:1") {
		t.Errorf("server down: %+v", got)
	}
	url, _ := serve(t, "204 ")
	if got := runCLI(t, nil, "", "--url", url, "events", "fuse-a", "--since", "9"); got.code != ExitOK {
		t.Errorf("nothing missed: %+v", got)
	}
}

// interrupted runs the command line against a server and interrupts it during
// the first request. It returns the requests as "METHOD PATH PREFER".
func interrupted(t *testing.T, answer http.HandlerFunc, args ...string) (result, []string) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	var seen []string
	var first string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Prefer")))
		asked := r.Header.Get("Idempotency-Key") + string(body)
		if len(seen) == 1 {
			first = asked
			interrupt()
			<-r.Context().Done()
			return
		}
		if r.Method == http.MethodPost && asked != first {
			t.Errorf("the create is asked about as %q, it was %q", asked, first)
		}
		answer(w, r)
	}))
	defer srv.Close()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var out, errs bytes.Buffer
	root := New(Options{Streams: Streams{In: strings.NewReader(""), Out: &out, Err: &errs}, Getenv: func(string) string { return "" }})
	code := Execute(ctx, root, append([]string{"--config", filepath.Join(t.TempDir(), "c"), "--url", srv.URL}, args...))
	return result{code, out.String(), errs.String()}, seen
}

func TestInterruptedRunRemovesWhatItMade(t *testing.T) {
	got, seen := interrupted(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, strings.Replace(envJSON, "fuse-a", "other-prefix-a", 1))
	}, "run", "--task-id", "a", "--", "true")
	want := []string{"POST /v1/environments", "POST /v1/environments respond-async", "DELETE /v1/environments/other-prefix-a"}
	if d := cmp.Diff(want, seen); d != "" || got.code != ExitInterrupted {
		t.Errorf("%+v, requests %s", got, d)
	}

	got, _ = interrupted(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"error":{"code":"unavailable","message":"the store is away"}}`)
	}, "run", "--", "true")
	if got.code != ExitInterrupted || !strings.Contains(got.err, "still there: the store is away") {
		t.Errorf("a removal that fails: %+v", got)
	}
}

func TestInterruptedVerbsSayWhatGoesOn(t *testing.T) {
	for _, args := range [][]string{{"create"}, {"rm", "fuse-a"}} {
		got, seen := interrupted(t, nil, args...)
		if got.code != ExitInterrupted || !strings.Contains(got.err, "the server goes on with") || len(seen) != 1 {
			t.Errorf("%v: %+v after %q", args, got, seen)
		}
	}
}

func TestRunSaysWhatItCannotRemove(t *testing.T) {
	url, _ := serve(t, "201 "+envJSON, `200 {"exit_code":7,"stdout":"","stderr":""}`, `503 {"error":{"code":"unavailable","message":"the store is away"}}`)
	got := runCLI(t, nil, "", "--url", url, "run", "--", "false")
	if got.code != 7 || !strings.Contains(got.err, "fuse-a is still there") || !strings.Contains(got.err, "the store is away") {
		t.Errorf("got %+v", got)
	}
}

func TestRmGoesOnAfterAFailure(t *testing.T) {
	url, seen := serve(t, `404 {"error":{"code":"not_found","message":"no a"}}`, "204 ", `500 {"error":{"code":"internal","message":"no c"}}`)
	got := runCLI(t, nil, "", "--url", url, "rm", "a", "b", "c")
	if got.code != ExitNotFound || got.out != "b\n" || !strings.Contains(got.err, "no a") || !strings.Contains(got.err, "no c") || len(*seen) != 3 {
		t.Errorf("got %+v", got)
	}
}

func TestNothingPrintedCommandsTheTerminal(t *testing.T) {
	const evil = "\x1b\x07\u009b\u202e"
	env := strings.Replace(envJSON, `"task_id":"a"`, `"task_id":"a","error":"boot\u001b]0;owned\u0007\u009b31m\u202e\nfailed"`, 1)
	named := strings.Replace(envJSON, `"fuse-a"`, `"fuse\u001b[2J-a\n"`, 1)
	url, _ := serve(t, "200 "+env, `200 {"environments":[`+strings.Replace(env, `"local"`, `"lo\u001b[2Jcal\tx"`, 1)+`]}`,
		`500 {"error":{"code":"internal","message":"m\u001b[2J","details":{"remedy":"r\u001b[2J"}}}`,
		"201 "+named, "200 "+named, "200 "+named,
		"200 id: 1\ndata: "+`{"id":"1","vm_id":"fuse-a","state":"destroyed\u001b[2J","updated_at":"2026-01-02T03:04:05Z"}`+"\n\n",
		"200 id: 2\ndata: "+`{"id":"2","vm_id":"fuse-a","state":"destroyed","updated_at":"2026-01-02T03:04:05Z"}`+"\n\n")
	for _, args := range [][]string{
		{"get", "fuse-a"}, {"ls"}, {"get", "fuse-a"}, {"create"}, {"drain", "fuse-a"}, {"get", "fuse-a", "-o", "name"}, {"events", "fuse-a"},
	} {
		got := runCLI(t, nil, "", append([]string{"--url", url}, args...)...)
		if text := got.out + got.err; strings.ContainsAny(text, evil) || strings.Contains(text, "\t") || text == "" {
			t.Errorf("%v prints %q", args, text)
		}
	}
}

func TestJSONIsTheSameAndHarmless(t *testing.T) {
	want := map[string]any{"k": "<a>\t\u009b31m\u202e\x7f\U000e0001 ü\u2028end"}
	var out bytes.Buffer
	if err := encode(&out, want, true); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\u009b\u202e\x7f\U000e0001\t") || !strings.Contains(out.String(), "<a>") {
		t.Errorf("%q", out.String())
	}
	if d := cmp.Diff(any(want), decodeJSON(t, out.String())); d != "" {
		t.Error(d)
	}
}

func TestContextsAreKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	const theirs = "current_context: prod\nother_tool: {x: 1}\ncontexts:\n- name: prod\n  base_url: https://prod\n  token: P\n  master: true\n  active_host: h1\n"
	if err := os.WriteFile(path, []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if got := runCLI(t, nil, "", "--config", path, "context", "add", "here", "http://127.0.0.1:1", "--token-file", "token"); got.code != ExitOK {
		t.Fatalf("%+v", got)
	}
	c, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		CurrentContext: "here", Rest: map[string]any{"other_tool": map[string]any{"x": uint64(1)}},
		Contexts: []Context{
			{Name: "here", BaseURL: "http://127.0.0.1:1", TokenFile: filepath.Join(dir, "token")},
			{Name: "prod", BaseURL: "https://prod", Token: "P", Rest: map[string]any{"master": true, "active_host": "h1"}},
		},
	}
	if d := cmp.Diff(want, c, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestIDsAreCompleted(t *testing.T) {
	url, _ := serve(t, `200 {"environments":[`+envJSON+`]}`, `200 {"hosts":[{"id":"local"},{"id":"other"}]}`)
	if got := runCLI(t, nil, "", "--url", url, "__complete", "exec", "fu"); !strings.HasPrefix(got.out, "fuse-a\n") {
		t.Errorf("environments: %q", got.out)
	}
	if got := runCLI(t, nil, "", "--url", url, "__complete", "host", "cordon", "o"); !strings.HasPrefix(got.out, "other\n") {
		t.Errorf("hosts: %q", got.out)
	}
}

// TestVerbs holds the command line to the verbs and flags that public clients
// and the documentation name.
func TestVerbs(t *testing.T) {
	root := New(Options{})
	for _, line := range []string{
		"run --image --rm --cpus --ram-mb --storage-gb --task-id --env --workdir --user --stdin --timeout --shell",
		"create --task-id --cpus --ram-mb --storage-gb --image --gpus --gpu-kind --gpu-profile --region --host --label --max-runtime --manifest --startup-script --gateway-url --gateway-token --secret --file --no-wait",
		"ls --task-id --state --host-id --all --limit --cursor --all-pages --json --url --token --token-file --context --config --output --quiet",
		"list", "ps", "get", "inspect", "exec --shell --timeout", "exec --tty --stream --detach-keys", "shell --user", "attach --detach-keys", "cp --preserve-permissions", "process ls --json", "process start --shell --stdin", "process input --eof", "process logs --follow", "process kill --signal", "process wait", "process rm", "logs", "drain", "complete", "rm --yes --all", "destroy", "events --since",
		"environment list --task-id", "env create", "environments get", "environment destroy --yes", "environment drain", "environment complete",
		"environment exec --shell --timeout", "environment watch", "environment logs",
		"update --max-runtime --idle-timeout --tag", "ls --tag", "create --tag", "reconcile status --json", "reconcile plan --json", "reconcile pause --host --reason", "reconcile resume --host",
		"quota ls", "quota get", "quota set", "quota rm", "create --huge-pages",
		"schedule explain --cpus --ram-mb --storage-gb --region --arch --host --image --label --gpus --gpu-kind --gpu-profile --huge-pages",
		"create --idle-timeout --health-cmd --health-http --health-interval --health-timeout --health-retries --health-start-period",
		"host ls", "hosts list --limit --cursor --all-pages", "host get", "host rm --yes", "hosts remove --yes", "host cordon", "host uncordon",
		"hosts register --url --region --token --backend --arch --cpus --ram-mb --storage-gb --max-vms --gpus --gpu-kind --mig-profile --label",
		"marquee add --name --identity --agent --root --host-key --accept-new --policy", "marquee ls", "marquee get", "marquee check",
		"marquee quarantine --why", "marquee return --host-key --accept-identity", "marquee policy --policy", "marquee rm --forget --yes",
		"playground up --file --name --marquee --var --env-file --keep-volumes --plan --yes --policy --detach --timeout", "playground ls --marquee --state",
		"playground get", "playground logs --follow --timestamps --tail --since", "playground exec --stdin --no-terminal --env --workdir --user",
		"playground stop --detach", "playground start", "playground rollout", "playground restart", "playground destroy --yes --keep-volumes",
		"playground explain", "playground adopt --name", "playground forget --yes",
		"marquee sweep --arm --disarm --for --why --max-share", "marquee sweep status", "marquee sweep restore", "marquee rescan --adopt-all --take-over-installation --yes",
		"playground follow --branch --path --secret --known-hosts --depth --submodules --var --secret-var --pull --expires --keep-volumes --detach", "playground check", "playground accept",
		"playground secret set --kind --username --file --expires --source --source-authorization-file", "playground secret ls", "playground secret rm",
		"marquee registry login --username --marquee --file", "marquee registry ls", "marquee registry logout", "playground git-hook add --file", "playground git-hook ls", "playground git-hook rm",
		"playground template set", "playground template ls", "playground template launch --name --branch --var --secret-var", "playground template rm",
		"playground preview set --template --branches --most --life --var --secret-var", "playground preview ls", "playground preview rm",
		"context list", "context use", "context remove", "context current", "context add", "version",
	} {
		var words, flags []string
		for _, w := range strings.Fields(line) {
			if name, ok := strings.CutPrefix(w, "--"); ok {
				flags = append(flags, name)
			} else {
				words = append(words, w)
			}
		}
		cmd, rest, err := root.Find(words)
		if err != nil || len(rest) > 0 || cmd == root {
			t.Errorf("%v: found %s, left %v: %v", words, cmd.CommandPath(), rest, err)
			continue
		}
		for _, f := range flags {
			if cmd.Flag(f) == nil {
				t.Errorf("%v has no flag --%s", words, f)
			}
		}
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
