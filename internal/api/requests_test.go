package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// target is a request line that reaches a route's handler with id "x".
func target(r *web.Route, action string) string {
	path := strings.ReplaceAll(r.Pattern, "{id}", "x")
	if action != "" {
		path += "?action=" + action
	}
	return path
}

// actionsOf lists what ?action= may be on a route; "" where there is none.
func (s *Server) actionsOf(r *web.Route) []string {
	switch {
	case r.Method != http.MethodPost || !strings.HasSuffix(r.Pattern, "{id}"):
		return []string{""}
	case strings.Contains(r.Pattern, "hosts"):
		return sortedKeys(hostRoutes{s}.hostActions())
	default:
		return sortedKeys(environmentRoutes{s}.environmentActions())
	}
}

// Every route, with every kind of wrong request that applies to it.
func TestEveryRouteAgainstBadRequests(t *testing.T) {
	w := newWorld(t)
	readsBody := map[string]bool{"POST /v1/environments": true, "POST /v1/environments/x?action=exec": true, "POST /v1/hosts": true, "POST /login": true}
	routes := w.srv.routes()
	for i := range routes {
		r := &routes[i]
		for _, action := range w.srv.actionsOf(r) {
			path := target(r, action)
			t.Run(r.Method+" "+path, func(t *testing.T) {
				w.t = t
				e := w.want(w.call(http.MethodPut, path, ""), http.StatusMethodNotAllowed, fleet.CodeMethodNotAllowed)
				if e.Details[fleet.DetailLimit] == "" || !strings.Contains(w.call(http.MethodPut, path, "").Header().Get("Allow"), r.Method) {
					t.Errorf("405 does not say what is allowed: %+v", e)
				}
				if r.Access == web.ByToken {
					rec := w.call(r.Method, path, "", "Authorization", "")
					w.want(rec, http.StatusUnauthorized, fleet.CodeUnauthorized)
					if rec.Header().Get("WWW-Authenticate") == "" {
						t.Error("401 without WWW-Authenticate")
					}
					w.want(w.call(r.Method, path, "", "Authorization", "Bearer wrong"), http.StatusUnauthorized, fleet.CodeUnauthorized)
				}
				if r.BodyLimit > 0 {
					checkBodyLimit(t, w, r, path)
				}
				if readsBody[r.Method+" "+path] {
					checkSyntax(w, r.Method, path)
				}
			})
		}
	}
}

func checkBodyLimit(t *testing.T, w *world, r *web.Route, path string) {
	limit := r.BodyLimit
	if u, err := url.Parse(path); err == nil {
		actions := environmentRoutes{w.srv}.environmentActions()
		if a, ok := actions[u.Query().Get("action")]; ok && a.BodyLimit < limit {
			limit = a.BodyLimit
		}
	}
	over := limit + 1
	for name, body := range map[string]string{
		"garbage":        strings.Repeat("x", over), // the syntax error comes first, the size counts
		"a valid object": `{"task_id":"` + strings.Repeat("a", over) + `"}`,
	} {
		for _, length := range []string{"told", "not told"} {
			var reader io.Reader = strings.NewReader(body)
			if length == "not told" {
				reader = io.MultiReader(reader) // hides the length
			}
			req := httptest.NewRequest(r.Method, "http://127.0.0.1"+path, reader)
			req.Header.Set("Authorization", "Bearer "+testToken)
			rec := httptest.NewRecorder()
			w.srv.ServeHTTP(rec, req)
			w.checkContract(req, rec)
			e := w.want(rec, http.StatusRequestEntityTooLarge, fleet.CodePayloadTooLarge)
			if !strings.Contains(e.Details[fleet.DetailLimit], "bytes") {
				t.Errorf("%s, length %s: the limit is not named: %+v", name, length, e)
			}
		}
	}
}

func checkSyntax(w *world, method, path string) {
	for _, body := range []string{
		"", " ", "x", "{", `{"`, "[]", "null", `"text"`, "1", `{} x`, `{}{}`, "\x00", `{"a":}`,
		`{"task_id":1,"cmd":1,"id":1,"token":1}`, `{"task_id":["x"],"cmd":{},"id":[],"token":{}}`,
	} {
		w.want(w.call(method, path, body), http.StatusBadRequest, fleet.CodeInvalidArgument)
	}
}

func TestFieldsOfTheWrongType(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ method, path, body, scope, limit string }{
		{"POST", "/v1/environments", `{"spec":{"cpus":"two"}}`, "spec.cpus", "integer of 32 bits"},
		{"POST", "/v1/environments", `{"spec":{"cpus":1.5}}`, "spec.cpus", "integer of 32 bits"},
		{"POST", "/v1/environments", `{"spec":{"ram_mb":99999999999}}`, "spec.ram_mb", "integer of 32 bits"},
		{"POST", "/v1/environments", `{"spec":[]}`, "spec", "object"},
		{"POST", "/v1/environments", `{"spec":{"huge_pages":1}}`, "spec.huge_pages", "boolean"},
		{"POST", "/v1/environments", `{"spec":{"labels":{"a":1}}}`, "spec.labels", "string"},
		{"POST", "/v1/environments", `{"secrets":[]}`, "secrets", "object"},
		{"POST", "/v1/environments", `{"spec":{"max_runtime_seconds":9223372036854775807}}`, "spec.max_runtime_seconds", "9223372036 seconds"},
		{"POST", "/v1/environments", `{"startup_script_timeout_seconds":-9223372036854775808}`, "startup_script_timeout_seconds", "9223372036 seconds"},
		{"POST", "/v1/environments/x?action=exec", `{"cmd":"ls"}`, "cmd", "array"},
		{"POST", "/v1/environments/x?action=exec", `{"timeout_ms":"1s"}`, "timeout_ms", "integer"},
		{"POST", "/v1/hosts", `{"id":"h","url":"u","capacity":{"cpus":true}}`, "capacity.cpus", "integer"},
	} {
		e := w.want(w.call(c.method, c.path, c.body), http.StatusBadRequest, fleet.CodeInvalidArgument)
		if e.Details[fleet.DetailScope] != c.scope || e.Details[fleet.DetailLimit] != c.limit {
			t.Errorf("%s: details %v, want %s and %s", c.body, e.Details, c.scope, c.limit)
		}
	}
	w.want(w.call("POST", "/v1/environments", `{"files":{"/a":"not base64!"}}`), http.StatusBadRequest, fleet.CodeInvalidArgument)
	if n := len(w.envs.creates) + len(w.guests.calls); n != 0 {
		t.Errorf("%d refused requests reached a service", n)
	}
}

func TestUnknownFieldsWarn(t *testing.T) {
	w := newWorld(t)
	rec := w.call("POST", "/v1/environments", `{"task_id":"t","colour":"red","spec":{"cpus":1,"nonsense":{"a":1}},"expose":[{"port":1,"x":1},{"port":2,"x":2}],"q\" \r\nEvil: 1":0}`)
	w.want(rec, http.StatusCreated, "")
	warning := rec.Header().Get("Warning")
	for _, want := range []string{"299 fuse", "colour", "spec.nonsense", "expose.x", "q"} {
		if !strings.Contains(warning, want) {
			t.Errorf("warning %q does not have %q", warning, want)
		}
	}
	if strings.ContainsAny(warning, "\r\n") || strings.Count(warning, `"`) != 2 || strings.Count(warning, "expose.x") != 1 {
		t.Errorf("warning %q is not clean", warning)
	}
	if !strings.Contains(w.log.String(), "unknown fields ignored") {
		t.Error("not logged")
	}
	if got := w.envs.creates[0]; got.TaskID != "t" || got.Spec.CPUs != 1 || len(got.Boot.Expose) != 2 {
		t.Errorf("known fields were lost: %+v", got)
	}
	many := `{"task_id":"u"` + strings.Join(strings.Split("abcdefghijklmnop", ""), `":1,"`)
	many = strings.Replace(many, `"u"a`, `"u","a`, 1) + `":1}`
	if got := w.call("POST", "/v1/environments", many).Header().Get("Warning"); !strings.Contains(got, "and 6 more") {
		t.Errorf("warning %q names more than it should", got)
	}
	if got := w.call("POST", "/v1/environments", `{"task_id":"v"}`).Header().Get("Warning"); got != "" {
		t.Errorf("warning %q about nothing", got)
	}
}

func TestPathsAreTakenAsTheyAre(t *testing.T) {
	w := newWorld(t)
	vm := w.add("A.b_C-1")
	w.want(w.call("GET", "/v1/environments/"+vm.ID, ""), http.StatusOK, "")
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v2/environments", "/v1/environments/", "/v1/environments//events", "//v1/environments",
		"/v1/environments/x/nothing", "/v1/environments/x/events/y", "/v1/environments/../hosts", "/v1/snapshots", "/v1/api-keys", "/v1/environments/%zz",
	} {
		w.want(w.call("GET", strings.ReplaceAll(path, "%zz", "x/%7a/y"), ""), http.StatusNotFound, fleet.CodeRouteNotFound)
	}
	for _, id := range []string{"x", "%2e%2e%2fx", "a%2Fb", "%00", "..", "%F0%9F%98%80", strings.Repeat("y", 5000)} {
		w.want(w.call("GET", "/v1/environments/"+id, ""), http.StatusNotFound, fleet.CodeNotFound)
		w.want(w.call("GET", "/v1/hosts/"+id, ""), http.StatusNotFound, fleet.CodeNotFound)
	}
	if rec := w.call("HEAD", "/v1/environments/"+vm.ID, ""); rec.Code != http.StatusOK {
		t.Errorf("HEAD answered %d", rec.Code)
	}
	// A wrong path is told from a wrong token: clients find out by it that this
	// is another server.
	w.want(w.call("GET", "/nothing", "", "Authorization", ""), http.StatusNotFound, fleet.CodeRouteNotFound)
}

// What cannot be read of a query would be as if it were not there.
func TestAQueryThatCannotBeReadIsRefused(t *testing.T) {
	w := newWorld(t)
	routes := w.srv.routes()
	for i := range routes {
		r := &routes[i]
		if r.Access == web.ByAnyone {
			continue
		}
		for _, query := range []string{"host=%zz", "limit=1;host=h1", "a=%"} {
			rec := w.call(r.Method, strings.ReplaceAll(r.Pattern, "{id}", "x")+"?"+query, "{}")
			if e := w.want(rec, http.StatusBadRequest, fleet.CodeInvalidArgument); e.Details[fleet.DetailScope] != "query" || e.Details[fleet.DetailRemedy] == "" {
				t.Errorf("%s %s?%s: %+v", r.Method, r.Pattern, query, e)
			}
		}
	}
}

func TestUnknownActions(t *testing.T) {
	w := newWorld(t)
	for path, limit := range map[string]string{
		"/v1/environments/x": "complete, drain, exec, fork, pause, resume, rotate-token", "/v1/environments/x?action=": "complete, drain, exec, fork, pause, resume, rotate-token",
		"/v1/environments/x?action=clone": "complete, drain, exec, fork, pause, resume, rotate-token", "/v1/environments/x?action=DRAIN": "complete, drain, exec, fork, pause, resume, rotate-token",
		"/v1/hosts/x": "cordon, uncordon", "/v1/hosts/x?action=drain": "cordon, uncordon",
	} {
		e := w.want(w.call("POST", path, ""), http.StatusBadRequest, fleet.CodeInvalidArgument)
		if e.Details[fleet.DetailLimit] != limit {
			t.Errorf("%s: limit %q, want %q", path, e.Details[fleet.DetailLimit], limit)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"abc-DEF_123", strings.Repeat("x", 128)} {
		if got := w.call("GET", "/health", "", "X-Request-ID", id).Header().Get("X-Request-ID"); got != id {
			t.Errorf("%q became %q", id, got)
		}
	}
	seen := map[string]bool{}
	for _, id := range []string{"", "with space", "a\tb", strings.Repeat("x", 129), "ü", "x/y"} {
		got := w.call("GET", "/health", "", "X-Request-ID", id).Header().Get("X-Request-ID")
		if !strings.HasPrefix(got, "req_") || len(got) != 36 || seen[got] {
			t.Errorf("%q became %q", id, got)
		}
		seen[got] = true
	}
}

func TestErrorsTellCallersWhatIsForThem(t *testing.T) {
	w := newWorld(t)
	secret := errors.New("dial tcp 10.0.0.7:1: secret cause")
	var fail error
	w.envs.create = func(context.Context, lifecycle.CreateRequest) (*fleet.VM, error) { return nil, fail }
	for _, c := range []struct {
		err    error
		status int
		code   fleet.Code
	}{
		{fleet.Wrap(fleet.CodeInvalidArgument, secret, "msg"), 400, fleet.CodeInvalidArgument},
		{fleet.Wrap(fleet.CodeForbidden, secret, "msg"), 403, fleet.CodeForbidden},
		{fleet.Wrap(fleet.CodeNotFound, secret, "msg"), 404, fleet.CodeNotFound},
		{fleet.Wrap(fleet.CodeConflict, secret, "msg"), 409, fleet.CodeConflict},
		{fleet.Wrap(fleet.CodePayloadTooLarge, secret, "msg"), 413, fleet.CodePayloadTooLarge},
		{fleet.Wrap(fleet.CodeLocked, secret, "msg"), 423, fleet.CodeLocked},
		{fleet.Wrap(fleet.CodeInternal, secret, "msg"), 500, fleet.CodeInternal},
		{fleet.Wrap(fleet.CodeUnimplemented, secret, "msg"), 501, fleet.CodeUnimplemented},
		{fleet.Wrap(fleet.CodeUnavailable, secret, "msg"), 503, fleet.CodeUnavailable},
		{fleet.Wrap(fleet.CodeDeadlineExceeded, secret, "msg"), 504, fleet.CodeDeadlineExceeded},
		{fleet.Wrap("of_tomorrow", secret, "msg"), 500, "of_tomorrow"},
		{fmt.Errorf("secret cause: %w", context.DeadlineExceeded), 504, fleet.CodeDeadlineExceeded},
		{secret, 500, fleet.CodeInternal},
	} {
		fail = c.err
		rec := w.call("POST", "/v1/environments", `{"task_id":"t"}`)
		e := w.want(rec, c.status, c.code)
		if strings.Contains(rec.Body.String(), "secret") || !strings.Contains(w.log.String(), "secret cause") {
			t.Errorf("%v: the cause is sent, or not logged", c.err)
		}
		if errors.Is(c.err, secret) && c.code == fleet.CodeInternal && e.Message != "msg" && !strings.Contains(e.Message, rec.Header().Get("X-Request-ID")) {
			t.Errorf("an unexplained error does not name its request: %q", e.Message)
		}
		if got := rec.Header().Get("Retry-After"); (got != "") != (c.status == 503) {
			t.Errorf("%d has Retry-After %q", c.status, got)
		}
	}
	fail = fleet.Errorf(fleet.CodeUnavailable, "full").With("retry_after", "17").With(fleet.DetailRemedy, "add a host")
	rec := w.call("POST", "/v1/environments", `{"task_id":"t"}`)
	if e := w.want(rec, 503, fleet.CodeUnavailable); rec.Header().Get("Retry-After") != "17" || e.Details[fleet.DetailRemedy] != "add a host" {
		t.Errorf("%v %v", rec.Header(), e)
	}
}

func TestPanicsAreAnswers(t *testing.T) {
	w := newWorld(t)
	w.envs.create = func(context.Context, lifecycle.CreateRequest) (*fleet.VM, error) { panic("secret value") }
	rec := w.call("POST", "/v1/environments", `{"task_id":"t"}`, "X-Request-ID", "the-one")
	e := w.want(rec, http.StatusInternalServerError, fleet.CodeInternal)
	if strings.Contains(e.Message, "secret") {
		t.Errorf("message %q", e.Message)
	}
	if log := w.log.String(); !strings.Contains(log, "secret value") || !strings.Contains(log, "request_id=the-one") || !strings.Contains(log, "goroutine") {
		t.Errorf("the panic is not in the log: %s", log)
	}
	w.want(w.call("GET", "/health", ""), http.StatusOK, "")

	// An answer that has begun can only be broken off.
	w.guests.exec = func(context.Context, string, guestops.ExecRequest) (provider.ExecResult, error) {
		panic(http.ErrAbortHandler)
	}
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // a panic's value
				t.Errorf("recovered %v", v)
			}
		}()
		w.call("POST", "/v1/environments/x?action=exec", `{"cmd":["x"]}`)
	}()
	if text := w.call("GET", "/metrics", "").Body.String(); !strings.Contains(text, "orchestrator_http_requests_in_flight 1\n") {
		t.Error("a request that was broken off is in flight for ever")
	}
}

func TestAddressesAndRefusals(t *testing.T) {
	var recorded []fleet.Event
	got := make(chan struct{}, 100)
	w := newWorld(t, allowOnly("10.0.0.0/8"), func(c *Config, _ *auth.Config, _ *state.Config) {
		c.Record = func(_ context.Context, ev fleet.Event) error {
			recorded = append(recorded, ev)
			got <- struct{}{}
			return nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.srv.Run(ctx) }()

	for _, path := range []string{"/v1/environments", "/login", "/openapi.json", "/metrics", "/nothing"} {
		method := "GET"
		if path == "/login" {
			method = "POST"
		}
		w.want(w.call(method, path, ""), http.StatusForbidden, fleet.CodeForbidden)
	}
	for _, path := range []string{"/health", "/livez", "/ready", "/readyz", "/v1/version"} {
		w.want(w.call("GET", path, "", "Authorization", ""), http.StatusOK, "")
	}
	w.want(w.call("PATCH", "/v1/hosts", ""), http.StatusForbidden, fleet.CodeForbidden)
	for range 6 {
		<-got
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, ev := range recorded {
		if ev.Type != fleet.EventIPRejected || ev.EntityID != "127.0.0.1" {
			t.Errorf("event %+v", ev)
		}
	}
	// Without Run nobody takes events; refusals are answered all the same.
	for range 500 {
		w.want(w.call("GET", "/v1/hosts", ""), http.StatusForbidden, fleet.CodeForbidden)
	}
}

func TestLoginGivesASessionAndNotTheToken(t *testing.T) {
	w := newWorld(t)
	w.want(w.call("POST", "/login", `{"token":"wrong"}`, "Authorization", ""), http.StatusUnauthorized, fleet.CodeUnauthorized)
	rec := w.call("POST", "/login", `{"token":"`+testToken+`"}`, "Authorization", "")
	w.want(rec, http.StatusNoContent, "")
	cookie := rec.Result().Cookies()[0]
	if strings.Contains(cookie.Value, testToken) {
		t.Fatal("the cookie is the token")
	}
	session := cookie.Name + "=" + cookie.Value
	w.want(w.call("GET", "/v1/environments", "", "Authorization", "", "Cookie", session), http.StatusOK, "")
	w.want(w.call("POST", "/logout", "", "Authorization", "", "Cookie", session), http.StatusNoContent, "")
	w.want(w.call("GET", "/v1/environments", "", "Authorization", "", "Cookie", session), http.StatusUnauthorized, fleet.CodeUnauthorized)
}

func TestMetricsNeedTheTokenUnlessOpen(t *testing.T) {
	w := newWorld(t)
	w.want(w.call("GET", "/metrics", "", "Authorization", ""), http.StatusUnauthorized, fleet.CodeUnauthorized)
	rec := w.call("GET", "/metrics", "")
	w.want(rec, http.StatusOK, "")
	if !strings.Contains(rec.Body.String(), `orchestrator_http_requests_total{code="401",method="GET",route="/metrics"} 1`) {
		t.Error("the request before is not counted")
	}
	for range 3 {
		w.call("GET", "/v1/environments/some-random-id", "")
		w.call("GET", "/another/random/path", "")
	}
	text := w.call("GET", "/metrics", "").Body.String()
	if strings.Contains(text, "random") || !strings.Contains(text, `route="none"`) {
		t.Error("a path became a label")
	}
	open := newWorld(t, func(c *Config, _ *auth.Config, _ *state.Config) { c.MetricsOpen = true })
	open.want(open.call("GET", "/metrics", "", "Authorization", ""), http.StatusOK, "")
	// A page whose name resolves to loopback, and one on another site.
	open.want(open.call("GET", "/metrics", "", "Authorization", "", "Host", "rebound.example"), http.StatusUnauthorized, fleet.CodeUnauthorized)
	open.want(open.call("GET", "/metrics", "", "Authorization", "", "Origin", "https://site.example"), http.StatusUnauthorized, fleet.CodeUnauthorized)
	open.want(open.call("GET", "/metrics", "", "Host", "fuse.example"), http.StatusOK, "")
}

func TestReadiness(t *testing.T) {
	var fail error
	w := newWorld(t, func(c *Config, _ *auth.Config, _ *state.Config) {
		c.Ready = []Check{{Name: "state_store", Run: func(context.Context) error { return nil }}, {Name: "fleet", Run: func(context.Context) error { return fail }}}
	})
	for _, path := range []string{"/ready", "/readyz"} {
		fail = nil
		if got := decodeInto[gen.Ready](t, w.call("GET", path, "", "Authorization", "")); got.Status != "ready" || got.Checks["fleet"] != "ok" {
			t.Errorf("%+v", got)
		}
		fail = fleet.Wrap(fleet.CodeUnavailable, errors.New("secret"), strings.Repeat("long ", 100))
		rec := w.call("GET", path, "", "Authorization", "")
		if got := decodeInto[gen.Ready](t, rec); rec.Code != 503 || got.Status != "not_ready" || got.Checks["state_store"] != "ok" || len(got.Checks["fleet"]) != maxCheckText {
			t.Errorf("%d %+v", rec.Code, got)
		}
		fail = errors.New("dial 10.0.0.7")
		if got := decodeInto[gen.Ready](t, w.call("GET", path, "", "Authorization", "")); got.Checks["fleet"] != "not ok" {
			t.Errorf("%+v", got)
		}
	}
	if v := decodeInto[gen.Version](t, w.call("GET", "/v1/version", "")); v.Service != "fuse-orchestrator" || v.Version != "v0-test" {
		t.Errorf("%+v", v)
	}
}

// A client that writes all of a large body before it reads gets the refusal,
// not a reset connection.
func TestLargeBodyGetsItsAnswer(t *testing.T) {
	w := newWorld(t)
	srv := httptest.NewServer(w.srv)
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 20 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/environments", strings.NewReader(strings.Repeat("x", 4<<20)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+testToken)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
}

// A body that arrives too slowly is given up, whether anybody wants it or not,
// and the handler does not run.
func TestSlowBodyIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct{ head, want string }{
		"wanted":       {"POST /v1/environments HTTP/1.1\r\nAuthorization: Bearer " + testToken + "\r\nContent-Length: 100\r\n", "HTTP/1.1 400 "},
		"chunked":      {"POST /v1/environments HTTP/1.1\r\nAuthorization: Bearer " + testToken + "\r\nTransfer-Encoding: chunked\r\n", "HTTP/1.1 400 "},
		"too large":    {"POST /v1/hosts HTTP/1.1\r\nAuthorization: Bearer " + testToken + "\r\nContent-Length: 70000\r\n", "HTTP/1.1 413 "},
		"unauthorized": {"POST /v1/environments HTTP/1.1\r\nContent-Length: 100\r\n", "HTTP/1.1 401 "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.srv.readTimeout = 50 * time.Millisecond
			client, server := net.Pipe()
			defer client.Close()
			srv := w.srv.HTTPServer(Timeouts{}, nil)
			served := make(chan error, 1)
			go func() { served <- srv.Serve(&oneListener{conn: server}) }()
			defer func() {
				srv.Close()
				<-served
			}()
			if _, err := io.WriteString(client, c.head+"Host: 127.0.0.1\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
			_ = client.SetReadDeadline(time.Now().Add(time.Minute))
			answer, err := io.ReadAll(client)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(answer), c.want) || !strings.Contains(string(answer), "Connection: close") {
				t.Errorf("answer %s", answer)
			}
			if len(w.envs.creates) != 0 {
				t.Error("half a body reached the service")
			}
		})
	}
}

// oneListener hands out one connection.
type oneListener struct {
	conn net.Conn
	done chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	if l.conn != nil {
		c := l.conn
		l.conn, l.done = nil, make(chan struct{})
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneListener) Close() error {
	if l.done != nil {
		close(l.done)
	}
	return nil
}

func (l *oneListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
