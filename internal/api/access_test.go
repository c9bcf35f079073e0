package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// ring is a set of API keys.
type ring struct {
	mu   sync.Mutex
	keys map[string]fleet.APIKey // guarded by mu
}

func (k *ring) Key(id string) (fleet.APIKey, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.keys[id]
	return key, ok
}

func (*ring) Used(string) {}

// issue makes a key and returns its id and the Authorization header that shows it.
func (k *ring) issue(role fleet.Role, owner string) (id, header string) {
	id, text, hash := auth.NewKey()
	k.put(fleet.APIKey{ID: id, Role: role, Owner: owner, SecretHash: hash})
	return id, "Bearer " + text
}

func (k *ring) put(key fleet.APIKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = map[string]fleet.APIKey{}
	}
	k.keys[key.ID] = key
}

func withKeys(k *ring) option {
	return func(_ *Config, ac *auth.Config, _ *state.Config) { ac.Keys = k }
}

// public are the routes that ask nobody for a token.
var public = map[string]bool{
	"GET /v1/version": true, "GET /health": true, "GET /livez": true, "GET /ready": true, "GET /readyz": true,
	"GET /openapi.json": true, "POST /login": true, "POST /logout": true, "POST /v1/host-join": true, "POST /v1/host-join/challenge": true,
	"POST /v1/git-hooks/{id}/push": true,
}

// owned are what has an owner, who alone sees it.
var owned = []string{"environments", "snapshots", "playgrounds", "tricks", "trick-schedules", "notification-routes"}

// TestEveryRouteHasARule holds the table of roles to the contract: a new route
// is for admins alone until somebody has said what it takes.
func TestEveryRouteHasARule(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(gen.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	in := map[string]bool{}
	for pattern, ops := range doc.Paths {
		for method := range ops {
			if method == "parameters" {
				continue
			}
			method = strings.ToUpper(method)
			in[method+" "+pattern] = true
			if _, ok := auth.RuleOf(method, pattern); ok == public[method+" "+pattern] {
				t.Errorf("%s %s: rule %v, public %v; internal/auth/rules.go lists what a route takes", method, pattern, ok, !ok)
			}
		}
	}
	for _, r := range auth.Rules {
		if !in[r.Method+" "+r.Pattern] {
			t.Errorf("%s %s has a rule and is not in the contract", r.Method, r.Pattern)
		}
		one := slices.ContainsFunc(owned, func(kind string) bool { return strings.HasPrefix(r.Pattern, "/v1/"+kind+"/{id}") })
		if one != (r.Object != auth.NoObject) {
			t.Errorf("%s %s: object %q", r.Method, r.Pattern, r.Object)
		}
	}
}

func path(pattern, id string) string { return strings.Replace(pattern, "{id}", id, 1) }

// TestRolesAreEnforced calls every route with a key of every role.
func TestRolesAreEnforced(t *testing.T) {
	keys := &ring{}
	w := newWorld(t, withKeys(keys), quiet)
	for _, role := range fleet.KeyRoles {
		_, header := keys.issue(role, "x")
		p := auth.Principal{Name: "x", Role: role}
		for _, rt := range w.srv.routes() {
			if public[rt.Method+" "+rt.Pattern] {
				continue
			}
			rule, _ := auth.RuleOf(rt.Method, rt.Pattern)
			rec := w.call(rt.Method, path(rt.Pattern, "nobody"), "", "Authorization", header)
			if refused := rec.Code == http.StatusForbidden; refused == p.Can(rule.Verb) {
				t.Errorf("%s, role %s: answered %d", rt.Method+" "+rt.Pattern, role, rec.Code)
			}
			if rec.Code == http.StatusForbidden {
				if e := w.want(rec, http.StatusForbidden, fleet.CodeForbidden); e.Details[fleet.DetailScope] != string(rule.Verb) || e.Details[fleet.DetailRemedy] == "" {
					t.Errorf("%s: %+v", rt.Pattern, e)
				}
			}
		}
	}
}

// TestOthersObjectsAreNotThere asks for another owner's environments, live and
// ended, on every route that names one, with every key that has an owner: the
// answers are those for something that never was, byte for byte, and nothing
// happens.
func TestOthersObjectsAreNotThere(t *testing.T) {
	keys := &ring{}
	w := newWorld(t, withKeys(keys), quiet)
	w.addHosts("h1")
	live, ended := w.add("live"), w.add("ended")
	w.remove(ended.ID)
	before, _ := w.store.Head()
	for _, role := range []fleet.Role{fleet.RoleUser, fleet.RoleRead} {
		_, header := keys.issue(role, "x")
		for _, rt := range w.srv.routes() {
			rule, _ := auth.RuleOf(rt.Method, rt.Pattern)
			if rule.Object == auth.NoObject {
				continue
			}
			targets := []string{rt.Pattern}
			if rt.Method == http.MethodPost {
				targets = nil
				for name := range (environmentRoutes{w.srv}).environmentActions() {
					targets = append(targets, rt.Pattern+"?action="+name)
				}
			}
			for _, target := range targets {
				answer := func(id string) string {
					rec := w.call(rt.Method, path(target, id), "{}", "Authorization", header, "X-Request-ID", "same", "Last-Event-ID", "0")
					if !strings.HasSuffix(string(rule.Verb), ".read") && role == fleet.RoleRead {
						w.want(rec, http.StatusForbidden, fleet.CodeForbidden)
					} else {
						w.want(rec, http.StatusNotFound, fleet.CodeNotFound)
					}
					rec.Header().Del("Content-Length") // the id is in the body
					return fmt.Sprint(rec.Header(), strings.ReplaceAll(rec.Body.String(), id, "ID"))
				}
				unknown := answer("fuse-none1")
				for _, id := range []string{live.ID, ended.ID, live.TaskID} {
					if got := answer(id); got != unknown {
						t.Errorf("%s %s for %s:\n%s\nand for nothing:\n%s", rt.Method, target, id, got, unknown)
					}
				}
			}
		}
	}
	if after, _ := w.store.Head(); after != before {
		t.Errorf("%d changes were made", after-before)
	}
}

// An id may go to another owner. What somebody's life of it was stays theirs to
// read, with the end that a stream of theirs has not had, and nothing else.
func TestAnIDThatIsAnothersNow(t *testing.T) {
	keys := &ring{}
	w := newWorld(t, withKeys(keys), quiet)
	w.addHosts("h1")
	live := map[string]*fleet.VM{}
	for _, owner := range []string{"x", "y", "z"} {
		vm, err := w.envs.Create(t.Context(), lifecycle.CreateRequest{TaskID: "shared", Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		if live[owner] = vm; owner != "z" {
			w.remove(vm.ID)
		}
	}
	id := live["x"].ID
	for _, owner := range []string{"x", "y"} {
		_, header := keys.issue(fleet.RoleUser, owner)
		for _, query := range []string{"", "?uid=" + live[owner].UID} {
			rec := w.call(http.MethodGet, "/v1/environments/"+id+"/history"+query, "", "Authorization", header)
			w.want(rec, http.StatusOK, "")
			if h := decodeInto[gen.History](t, rec); h.UID != live[owner].UID || h.EndedAt.IsZero() || len(h.Lives) != 1 {
				t.Errorf("%s%s: told of life %s, ended %v, %d lives", owner, query, h.UID, h.EndedAt, len(h.Lives))
			}
		}
		w.want(w.call(http.MethodGet, "/v1/environments/"+id+"/history?uid="+live["z"].UID, "", "Authorization", header), http.StatusNotFound, fleet.CodeNotFound)
		stream := w.resume(id, "0", header)
		if !strings.Contains(stream, `"state":"destroyed"`) || strings.Count(stream, `"state":"provisioning"`) > 1 {
			t.Errorf("%s resumes and gets\n%s", owner, stream)
		}
		w.want(w.call(http.MethodGet, "/v1/environments/"+id+"/events", "", "Authorization", header), http.StatusNotFound, fleet.CodeNotFound)
		w.want(w.call(http.MethodGet, "/v1/environments/"+id, "", "Authorization", header), http.StatusNotFound, fleet.CodeNotFound)
		w.want(w.call(http.MethodDelete, "/v1/environments/"+id, "", "Authorization", header), http.StatusNotFound, fleet.CodeNotFound)
	}
}

// TestListsShowOwnAlone pages through environments of three owners.
func TestListsShowOwnAlone(t *testing.T) {
	keys := &ring{}
	w := newWorld(t, withKeys(keys), quiet)
	w.addHosts("h1")
	const each = 60
	w.update(func(tx *state.Tx) error {
		for i := range 3 * each {
			owner := []string{"x", "y", fleet.OwnerMaster}[i%3]
			id := fmt.Sprintf("fuse-%04d", i)
			if err := tx.PutVM(fleet.VM{ID: id, UID: id, Generation: 1, TaskID: id, Owner: owner, State: fleet.VMStateProvisioning, HostID: "h1"}); err != nil {
				return err
			}
		}
		return nil
	})
	_, x := keys.issue(fleet.RoleUser, "x")
	_, nobody := keys.issue(fleet.RoleRead, "z")
	_, operator := keys.issue(fleet.RoleOperator, "z")
	for name, c := range map[string]struct {
		header, query string
		want          map[string]int
	}{
		"own":                {x, "", map[string]int{"x": each}},
		"own by name":        {x, "&owner=x", map[string]int{"x": each}},
		"another's":          {x, "&owner=y", map[string]int{}},
		"the master's":       {x, "&owner=master", map[string]int{}},
		"another's by task":  {x, "&task_id=fuse-0001", map[string]int{}},
		"own by task":        {x, "&task_id=fuse-0000", map[string]int{"x": 1}},
		"none":               {nobody, "", map[string]int{}},
		"operator":           {operator, "", map[string]int{"x": each, "y": each, "master": each}},
		"operator, one":      {operator, "&owner=y", map[string]int{"y": each}},
		"operator, master's": {operator, "&owner=master", map[string]int{"master": each}},
		"operator, nobody's": {operator, "&owner=none", map[string]int{}},
	} {
		got, last := map[string]int{}, ""
		for cursor := ""; ; {
			rec := w.call(http.MethodGet, "/v1/environments?limit=7"+c.query+"&cursor="+cursor, "", "Authorization", c.header)
			w.want(rec, http.StatusOK, "")
			list := decodeInto[gen.EnvironmentList](t, rec)
			for _, env := range list.Environments {
				if env.ID <= last {
					t.Errorf("%s: %s after %s", name, env.ID, last)
				}
				got[env.Owner]++
				last = env.ID
			}
			if cursor = list.NextCursor; cursor == "" {
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What a key makes belongs to its owner, whatever the request says, and is its
// owner's other keys' too.
func TestTheOwnerComesFromTheKey(t *testing.T) {
	keys := &ring{}
	w := newWorld(t, withKeys(keys), quiet)
	w.addHosts("h1")
	id, x := keys.issue(fleet.RoleUser, "x")
	_, other := keys.issue(fleet.RoleRead, "x")
	rec := w.call(http.MethodPost, "/v1/environments?owner=y", `{"task_id":"t1","owner":"y","tenant_id":"y"}`, "Authorization", x)
	w.want(rec, http.StatusCreated, "")
	if env := decodeInto[gen.Environment](t, rec); env.Owner != "x" || w.envs.creates[0].Actor != "user:"+id {
		t.Errorf("owner %q, actor %q", env.Owner, w.envs.creates[0].Actor)
	}
	w.want(w.call(http.MethodGet, "/v1/environments/fuse-t1", "", "Authorization", other), http.StatusOK, "")
	w.want(w.call(http.MethodDelete, "/v1/environments/fuse-t1", "", "Authorization", other), http.StatusForbidden, fleet.CodeForbidden)
	_, y := keys.issue(fleet.RoleUser, "y")
	// An Idempotency-Key of x answers y nothing of x's.
	w.want(w.call(http.MethodPost, "/v1/environments", `{"task_id":"t2"}`, "Authorization", x, "Idempotency-Key", "k"), http.StatusCreated, "")
	rec = w.call(http.MethodPost, "/v1/environments", `{"task_id":"t3"}`, "Authorization", y, "Idempotency-Key", "k")
	w.want(rec, http.StatusCreated, "")
	if env := decodeInto[gen.Environment](t, rec); env.TaskID != "t3" || env.Owner != "y" {
		t.Errorf("y was answered %+v", env)
	}
}

// resume takes a stream that ends up again, and returns what comes.
func (w *world) resume(id, lastID, header string) string {
	w.t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8080/v1/environments/"+id+"/events", nil)
	r.Header.Set("Authorization", header)
	r.Header.Set("Last-Event-ID", lastID)
	rec := httptest.NewRecorder()
	w.srv.ServeHTTP(rec, r)
	w.want(rec, http.StatusOK, "")
	return rec.Body.String()
}

// A life of an id that was another's is not replayed to whoever has the id now.
func TestEarlierLivesOfOthersAreNotReplayed(t *testing.T) {
	keys := &ring{}
	w := newWorld(t, withKeys(keys), quiet)
	w.addHosts("h1")
	_, x := keys.issue(fleet.RoleUser, "x")
	_, y := keys.issue(fleet.RoleUser, "y")
	create := func(header string) {
		w.want(w.call(http.MethodPost, "/v1/environments", `{"task_id":"t1"}`, "Authorization", header), http.StatusCreated, "")
	}
	create(x)
	w.want(w.call(http.MethodDelete, "/v1/environments/fuse-t1", "", "Authorization", x), http.StatusNoContent, "")
	_, end := w.store.Head()
	create(y)
	w.want(w.call(http.MethodDelete, "/v1/environments/fuse-t1", "", "Authorization", y), http.StatusNoContent, "")
	for name, header := range map[string]string{"x": x, "y": y} {
		events := parseEvents(t, w.resume("fuse-t1", "1", header))
		if n := len(events); n == 0 || events[n-1].State != string(fleet.VMStateDestroyed) {
			t.Fatalf("%s: %d events without an end", name, n)
		}
		for _, ev := range events {
			if seq, _ := fleet.ParseEventID(ev.ID); (seq <= end) != (name == "x") {
				t.Errorf("%s: event %s is of the other's life; the first ended with %d", name, ev.ID, end)
			}
		}
	}
	w.want(w.call(http.MethodDelete, "/v1/environments/fuse-t1", "", "Authorization", x), http.StatusNotFound, fleet.CodeNotFound)
}

// A stream ends within seconds of its key, by revocation and by expiry.
func TestStreamsEndWithTheirKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := &ring{}
		w := newWorld(t, withKeys(keys), quiet)
		w.addHosts("h1")
		open := func(change func(*fleet.APIKey)) (id string, ended chan struct{}) {
			id, header := keys.issue(fleet.RoleOperator, "x")
			key, _ := keys.Key(id)
			change(&key)
			keys.put(key)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:8080/v1/environments/fuse-t1/events", nil)
			r.Header.Set("Authorization", header)
			ended = make(chan struct{})
			go func() {
				w.srv.ServeHTTP(httptest.NewRecorder(), r)
				close(ended)
			}()
			return id, ended
		}
		w.add("t1")
		revoked, stream1 := open(func(*fleet.APIKey) {})
		_, stream2 := open(func(k *fleet.APIKey) { k.ExpiresAt = time.Now().Add(30 * time.Second) })
		is := func(stream chan struct{}, want bool) {
			t.Helper()
			synctest.Wait()
			select {
			case <-stream:
				if !want {
					t.Error("the stream has ended")
				}
			default:
				if want {
					t.Error("the stream goes on")
				}
			}
		}
		<-time.After(20 * time.Second)
		is(stream1, false)
		is(stream2, false)
		key, _ := keys.Key(revoked)
		key.RevokedAt = time.Now()
		keys.put(key)
		<-time.After(2 * time.Second)
		is(stream1, true)
		<-time.After(10 * time.Second)
		is(stream2, true)
		<-time.After(2 * time.Second) // the keys' watcher leaves
	})
}

// However many wrong keys come, and however large, they are refused, and few
// events are made of them.
func TestManyWrongKeys(t *testing.T) {
	keys := &ring{}
	var mu sync.Mutex
	var recorded []fleet.Event
	w := newWorld(t, withKeys(keys), quiet, func(c *Config, _ *auth.Config, _ *state.Config) {
		c.Record = func(_ context.Context, ev fleet.Event) error {
			mu.Lock()
			defer mu.Unlock()
			recorded = append(recorded, ev)
			return nil
		}
	})
	id, right := keys.issue(fleet.RoleAdmin, "x")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.srv.Run(ctx) }()
	began := time.Now()
	for i := range 500 {
		header := fmt.Sprintf("Bearer fuse_sk_%s_%043d", id[3:], i)
		if i%5 == 0 {
			header = "Bearer " + strings.Repeat("x", 60<<10)
		}
		rec := w.call(http.MethodGet, "/v1/environments", "", "Authorization", header)
		if w.want(rec, http.StatusUnauthorized, fleet.CodeUnauthorized); strings.Contains(rec.Body.String(), id) {
			t.Fatalf("the answer tells of the key: %s", rec.Body)
		}
	}
	w.want(w.call(http.MethodGet, "/v1/environments", "", "Authorization", right), http.StatusOK, "")
	testkit.Eventually(t, time.Minute, "refusals are recorded", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(recorded) > 0
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	// A busy machine takes its time over 500, and each second has one event.
	if n, most := len(recorded), 20+int(time.Since(began).Seconds()); n > most {
		t.Errorf("%d events of 500 refusals, want %d at most", n, most)
	}
	for _, ev := range recorded {
		if strings.Contains(string(ev.Payload), "fuse_sk_") {
			t.Errorf("an event holds a key: %s", ev.Payload)
		}
	}
}

// A page of few rows among many must not cost a walk over all of them.
func BenchmarkListOwn(b *testing.B) {
	keys := &ring{}
	w := newWorld(b, withKeys(keys), quiet)
	for from := 0; from < 10_000; from += 1000 {
		w.update(func(tx *state.Tx) error {
			for i := from; i < from+1000; i++ {
				owner := "many"
				if i%1000 == 0 {
					owner = "few"
				}
				id := fmt.Sprintf("fuse-%05d", i)
				if err := tx.PutVM(fleet.VM{ID: id, UID: id, Generation: 1, TaskID: id, Owner: owner, State: fleet.VMStateProvisioning}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	_, header := keys.issue(fleet.RoleUser, "few")
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8080/v1/environments?limit=200", nil)
	r.Header.Set("Authorization", header)
	b.ResetTimer()
	for b.Loop() {
		rec := httptest.NewRecorder()
		w.srv.ServeHTTP(rec, r)
		if rec.Code != http.StatusOK {
			b.Fatal(rec.Body)
		}
	}
}

// BenchmarkWhoAsks is a look at one environment by the master and by a key.
func BenchmarkWhoAsks(b *testing.B) {
	keys := &ring{}
	w := newWorld(b, withKeys(keys), quiet)
	w.addHosts("h1")
	w.add("t1")
	_, user := keys.issue(fleet.RoleOperator, "x")
	for name, header := range map[string]string{"master": "Bearer " + testToken, "key": user} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8080/v1/environments/fuse-t1", nil)
			r.Header.Set("Authorization", header)
			for b.Loop() {
				rec := httptest.NewRecorder()
				if w.srv.ServeHTTP(rec, r); rec.Code != http.StatusOK {
					b.Fatal(rec.Body)
				}
			}
		})
	}
}
