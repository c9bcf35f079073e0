package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// serve makes a client of a server that answers with handle.
func serve(t *testing.T, handle http.HandlerFunc) *API {
	t.Helper()
	ts := httptest.NewServer(handle)
	t.Cleanup(ts.Close)
	api, err := New(ts.URL, Options{Token: "tok", UserAgent: "test/1", Transport: ts.Client().Transport})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// answer writes a JSON document.
func answer(w http.ResponseWriter, status int, doc string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, doc)
}

func TestRequestsAreWhatTheServerExpects(t *testing.T) {
	var got []string
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer tok" || r.Header.Get("User-Agent") != "test/1" {
			t.Errorf("headers %v", r.Header)
		}
		body, _ := io.ReadAll(r.Body)
		line := r.Method + " " + r.URL.RequestURI() + " " + strings.TrimSpace(string(body))
		for _, h := range []string{"Prefer", "Idempotency-Key", "Last-Event-ID"} {
			if v, ok := r.Header[http.CanonicalHeaderKey(h)]; ok {
				line += fmt.Sprintf(" %s=%q", h, v)
			}
		}
		got = append(got, strings.TrimSpace(line))
		switch {
		case r.Method == http.MethodDelete, strings.Contains(r.URL.RawQuery, "cordon"):
			w.WriteHeader(http.StatusNoContent)
		case strings.HasSuffix(r.URL.Path, "logs"):
			w.Header().Set("Fuse-Exit-Code", "3")
			w.Header().Set("Fuse-Truncated", "true")
			_, _ = io.WriteString(w, "out\xff")
		default:
			answer(w, http.StatusOK, `{"id":"x","environments":[],"hosts":[]}`)
		}
	})
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	_, err := api.Create(ctx, gen.CreateEnvironment{TaskID: "t"}, CreateOptions{})
	check(err)
	_, err = api.Create(ctx, gen.CreateEnvironment{TaskID: "t", Spec: gen.Spec{CPUs: 2}}, CreateOptions{IdempotencyKey: "k", Async: true})
	check(err)
	_, err = api.Get(ctx, "a/b")
	check(err)
	_, err = api.List(ctx, gen.ListEnvironmentsParams{State: new("running")})
	check(err)
	env, err := api.Destroy(ctx, "x")
	check(err)
	if env != nil {
		t.Errorf("a 204 gave %+v", env)
	}
	_, err = api.Drain(ctx, "x")
	check(err)
	_, err = api.Complete(ctx, "x")
	check(err)
	_, err = api.Exec(ctx, "x", gen.ExecRequest{Cmd: []string{"ls"}})
	check(err)
	log, err := api.Logs(ctx, "x")
	check(err)
	if log.ExitCode != 3 || !log.Truncated || string(log.Output) != "out\xff" {
		t.Errorf("%+v", log)
	}
	_, err = api.RegisterHost(ctx, gen.RegisterHost{ID: "h", URL: "u"})
	check(err)
	_, err = api.Host(ctx, "h")
	check(err)
	_, err = api.Hosts(ctx, gen.ListHostsParams{})
	check(err)
	check(api.RemoveHost(ctx, "h"))
	check(api.Cordon(ctx, "h", true))
	check(api.Cordon(ctx, "h", false))
	want := []string{
		`POST /v1/environments {"task_id":"t"}`,
		`POST /v1/environments {"spec":{"cpus":2},"task_id":"t"} Prefer=["respond-async"] Idempotency-Key=["k"]`,
		"GET /v1/environments/a%2Fb",
		"GET /v1/environments?state=running",
		"DELETE /v1/environments/x",
		"POST /v1/environments/x?action=drain",
		"POST /v1/environments/x?action=complete",
		`POST /v1/environments/x?action=exec {"cmd":["ls"]}`,
		"GET /v1/environments/x/logs?source=startup",
		`POST /v1/hosts {"id":"h","url":"u"}`,
		"GET /v1/hosts/h", "GET /v1/hosts", "DELETE /v1/hosts/h", "POST /v1/hosts/h?action=cordon", "POST /v1/hosts/h?action=uncordon",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestErrors(t *testing.T) {
	status, contentType, body := 0, "", ""
	api := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Request-ID", "req_1")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	for _, c := range []struct {
		status      int
		contentType string
		body        string
		want        Error
	}{
		{503, "application/json", `{"error":{"code":"unavailable","message":"full","details":{"limit":"1"}}}`,
			Error{503, "unavailable", "full", map[string]string{"limit": "1"}, "req_1", 7 * time.Second}},
		{502, "text/html", "<html>\nBad gateway", Error{502, "", "<html>", nil, "req_1", 7 * time.Second}},
		{500, "", "", Error{500, "", "Internal Server Error", nil, "req_1", 7 * time.Second}},
		{200, "text/html", "<html>hello", Error{Status: 200, Message: "this is no Fuse server: <html>hello"}},
	} {
		status, contentType, body = c.status, c.contentType, c.body
		_, err := api.Get(t.Context(), "x")
		var got *Error
		if !errors.As(err, &got) {
			t.Fatalf("%d: %v", c.status, err)
		}
		if diff := cmp.Diff(c.want, *got); diff != "" {
			t.Error(diff)
		}
		if CodeOf(fmt.Errorf("wrapped: %w", err)) != c.want.Code || got.Error() == "" {
			t.Errorf("code %q, text %q", CodeOf(err), got.Error())
		}
	}
	if CodeOf(errors.New("x")) != "" || CodeOf(nil) != "" {
		t.Error("an error of others has a code")
	}
	nobody, err := New("http://127.0.0.1:1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nobody.Get(t.Context(), "x"); err == nil || strings.Contains(err.Error(), "/v1/") {
		t.Errorf("no server: %v", err)
	}
}

func TestAllFollowsPages(t *testing.T) {
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("limit") != "200" || q.Get("host_id") != "h" {
			t.Errorf("query %v", q)
		}
		switch q.Get("cursor") {
		case "":
			answer(w, 200, `{"environments":[{"id":"a"},{"id":"b"}],"next_cursor":"1"}`)
		case "1":
			answer(w, 200, `{"environments":[],"next_cursor":"2"}`)
		case "2":
			answer(w, 200, `{"environments":[{"id":"c"}],"next_cursor":"3"}`)
		default:
			answer(w, 500, `{"error":{"code":"internal","message":"x"}}`)
		}
	})
	var ids []string
	var last error
	for env, err := range api.All(t.Context(), gen.ListEnvironmentsParams{HostID: new("h")}) {
		if last = err; err == nil {
			ids = append(ids, env.ID)
		}
	}
	if !slices.Equal(ids, []string{"a", "b", "c"}) || CodeOf(last) != "internal" {
		t.Errorf("%v, then %v", ids, last)
	}
	for range api.All(t.Context(), gen.ListEnvironmentsParams{HostID: new("h")}) {
		break // leaving early must end the requests
	}
}

func TestVersion(t *testing.T) {
	api := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, `{"service":"fuse-orchestrator","version":"v1"}`)
	})
	if v, err := api.Version(t.Context()); err != nil || v.Version != "v1" {
		t.Errorf("%+v %v", v, err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a body went elsewhere") }))
	defer elsewhere.Close()
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusPermanentRedirect)
	})
	_, err := api.Create(t.Context(), gen.CreateEnvironment{Secrets: map[string]string{"K": "V"}}, CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), elsewhere.URL) {
		t.Errorf("the error does not name the new address: %v", err)
	}
}

func TestNoticesOfWarningsAndBrokenStreams(t *testing.T) {
	var notices []string
	streams := 0
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Warning", `299 fuse "unknown fields ignored: x"`)
		if streams++; streams == 1 {
			_, _ = io.WriteString(w, event("1", "running"))
			return
		}
		_, _ = io.WriteString(w, event("2", "failed"))
	}))
	defer ts.Close()
	api, err := New(ts.URL, Options{Transport: ts.Client().Transport, Notice: func(text string) { notices = append(notices, text) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Events(t.Context(), "x", "", func(gen.EnvironmentEvent) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if len(notices) != 3 || !strings.Contains(notices[0], "unknown fields") || !strings.Contains(notices[1], "broke off") {
		t.Errorf("%q", notices)
	}
}

func TestOutputIsByteExact(t *testing.T) {
	out, errs := Output(gen.ExecResult{Stdout: "text", Stderr: "\ufffd", StderrB64: []byte{0xff}})
	if string(out) != "text" || string(errs) != "\xff" {
		t.Errorf("%q %q", out, errs)
	}
}

// event is one message of a stream.
func event(id, state string) string {
	raw, err := json.Marshal(gen.EnvironmentEvent{ID: id, Event: "state", State: state})
	if err != nil {
		panic(err)
	}
	return "id: " + id + "\ndata: " + string(raw) + "\n\n"
}

func TestEventsResume(t *testing.T) {
	var froms []string
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		froms = append(froms, r.Header.Get("Last-Event-ID"))
		w.Header().Set("Content-Type", "text/event-stream")
		switch len(froms) {
		case 1: // ends with half an event
			_, _ = io.WriteString(w, event("3", "running")+": keepalive\n\n"+event("5", "draining")+"id: 6\ndata: {\"id\":")
		case 2: // the server is busy
			answer(w, http.StatusServiceUnavailable, `{"error":{"code":"unavailable","message":"later"}}`)
		default:
			_, _ = io.WriteString(w, event("6", "destroying")+event("9", "destroyed")+event("10", "running"))
		}
	})
	var got []string
	err := api.Events(t.Context(), "x", "", func(ev gen.EnvironmentEvent) error {
		got = append(got, ev.ID)
		return nil
	})
	if err != nil || !slices.Equal(got, []string{"3", "5", "6", "9"}) || !slices.Equal(froms, []string{"", "5", "5"}) {
		t.Errorf("%v from %q: %v", got, froms, err)
	}
}

func TestEventsEnd(t *testing.T) {
	calls := 0
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		switch r.URL.Path {
		case "/v1/environments/over/events":
			w.WriteHeader(http.StatusNoContent)
		case "/v1/environments/none/events":
			answer(w, http.StatusNotFound, `{"error":{"code":"not_found","message":"none"}}`)
		default:
			_, _ = io.WriteString(w, event("1", "running"))
		}
	})
	if err := api.Events(t.Context(), "over", "7", nil); err != nil || calls != 1 {
		t.Errorf("over: %v after %d calls", err, calls)
	}
	if err := api.Events(t.Context(), "none", "", nil); CodeOf(err) != "not_found" || calls != 2 {
		t.Errorf("none: %v after %d calls", err, calls)
	}
	nobody, err := New("http://127.0.0.1:1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := nobody.Events(t.Context(), "x", "", nil); err == nil {
		t.Error("a stream that never began is no error")
	}
	stop := errors.New("enough")
	if err := api.Events(t.Context(), "x", "", func(gen.EnvironmentEvent) error { return stop }); !errors.Is(err, stop) || calls != 3 {
		t.Errorf("stopped: %v after %d calls", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = api.Events(ctx, "x", "", func(gen.EnvironmentEvent) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add("id: 1\ndata: {}\n\n")
	f.Add(": comment\r\n\ndata:a\ndata: b\n\n\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		n := 0
		for data, err := range messages(strings.NewReader(text)) {
			if n++; err != nil {
				break
			}
			if len(data) > len(text) {
				t.Fatalf("%q out of %q", data, text)
			}
		}
		if n > len(text) {
			t.Fatalf("%d messages out of %d bytes", n, len(text))
		}
	})
}
