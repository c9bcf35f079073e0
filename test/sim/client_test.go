package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/test/history"
)

// door is the way from a client to whichever server serves.
type door struct {
	w   *world
	rnd *rand.Rand // of one client
}

var errNobody = errors.New("connection refused")

// RoundTrip implements http.RoundTripper. Clients find every server that
// listens, the one that no longer leads and does not know it yet included.
func (d door) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close() // it is in memory
	}
	open := d.w.open()
	if len(open) == 0 {
		return nil, errNobody
	}
	p := open[d.rnd.IntN(len(open))]
	f := d.w.net.draw("")
	type answer struct {
		resp *http.Response
		err  error
	}
	answers := make(chan answer, 1)
	d.w.net.late.Go(func() {
		resp, err := d.carry(p, r, body, f) //nolint:bodyclose // in memory; the caller closes it
		answers <- answer{resp, err}
	})
	select {
	case a := <-answers:
		return a.resp, a.err
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

// open lists the processes that take requests.
func (w *world) open() (open []*process) {
	w.net.mu.Lock()
	only := w.net.only
	w.net.mu.Unlock()
	for _, s := range w.servers {
		if p := s.now(); p != nil && p.serving() != nil && (only == nil || only == p) {
			open = append(open, p)
		}
	}
	return open
}

func (d door) carry(p *process, r *http.Request, body []byte, f fortune) (*http.Response, error) {
	if err := pause(d.w.ctx, p.ctx, f.there); err != nil {
		return nil, err
	}
	if f.loseCall {
		return nil, errNetwork
	}
	h := p.serving()
	if h == nil {
		return nil, errNobody
	}
	if err := p.pass(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	in := r.Clone(ctx)
	in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "192.0.2.2:1"
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, in)
	if err := p.pass(); err != nil {
		return nil, err
	}
	if f.loseAnswer {
		return nil, errNetwork
	}
	return rec.Result(), nil
}

// user is a client that does what comes to mind with a few environments that
// it shares with others.
type user struct {
	w    *world
	n    int
	rnd  *rand.Rand
	api  *client.API
	raw  *client.Client // for what api has no words for
	keys int
}

func (w *world) newUser(n int) *user {
	rnd := rand.New(rand.NewPCG(w.seed, uint64(100+n)))
	api, err := client.New("http://fuse.test", client.Options{Token: apiToken, Transport: door{w, rnd}})
	if err != nil {
		w.t.Fatal(err)
	}
	raw, err := client.NewClient("http://fuse.test", client.WithHTTPClient(&http.Client{Transport: door{w, rnd}}),
		client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+apiToken)
			return nil
		}))
	if err != nil {
		w.t.Fatal(err)
	}
	return &user{w: w, n: n, rnd: rnd, api: api, raw: raw}
}

// taskIDs are what the users share. Environments of the last two may be ended
// by their age, or when nobody has used them for a while.
var taskIDs = []string{"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", agesTask, idlesTask}

const agesTask, idlesTask = "ages", "idles"

func (u *user) run(ctx context.Context) {
	for ctx.Err() == nil {
		think := time.Duration(u.rnd.ExpFloat64() * float64(1500*time.Millisecond))
		if pause(ctx, ctx, think) != nil {
			return
		}
		task := taskIDs[u.rnd.IntN(len(taskIDs))]
		switch n := u.rnd.IntN(100); {
		case n < 38:
			u.create(task)
		case n < 52:
			u.destroy(task)
		case n < 72:
			u.get(task)
		case n < 82:
			u.list()
		case n < 87:
			u.drain(task)
		case n < 90:
			u.complete(task)
		default:
			u.exec(task)
		}
	}
}

// patience is how long a client waits for an answer.
func (u *user) patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(u.w.ctx, time.Duration(5+u.rnd.IntN(60))*time.Second)
}

func vmID(task string) string { return "fuse-" + task }

// create asks for an environment; half of the time with a key, and then again
// while the answer does not come; sometimes without waiting for the end.
func (u *user) create(task string) {
	tries, opts := 1, client.CreateOptions{}
	if u.rnd.IntN(2) == 0 {
		u.keys++
		tries, opts.IdempotencyKey = 1+u.rnd.IntN(3), fmt.Sprintf("key-%d-%d", u.n, u.keys)
	}
	req := gen.CreateEnvironment{TaskID: task}
	switch limit := int64(60 + u.rnd.IntN(200)); task {
	case agesTask:
		req.Spec.MaxRuntimeSeconds = limit
		u.mayEnd(task, limit)
	case idlesTask:
		req.Spec.IdleTimeoutSeconds = limit
		u.mayEnd(task, limit)
	}
	opts.Async = u.rnd.IntN(6) == 0
	first := int64(0)
	for range tries {
		op := u.w.wit.clients.Begin(u.n, history.Create, vmID(task))
		if first == 0 {
			first = op.Call
		}
		ctx, cancel := u.patience()
		env, err := u.api.Create(ctx, req, opts)
		cancel()
		if err == nil && opts.Async && env.State == "provisioning" {
			u.w.wit.clients.End(op, history.Pending, env.UID, env.State, "")
			u.w.wit.clients.Backdate(op, first)
			return
		}
		if err == nil && env.State != "running" {
			// The life that an earlier try with the key has made, and what has
			// become of it since.
			u.w.wit.clients.End(op, history.Failed, "", env.State, "replayed: "+env.UID)
			return
		}
		out := u.end(op, err, env)
		if out == history.Done {
			if first != op.Call {
				// An earlier try with the key may have made it.
				u.w.wit.clients.Backdate(op, first)
			}
			return
		}
		if out == history.Refused {
			return
		}
		if pause(u.w.ctx, u.w.ctx, time.Duration(u.rnd.IntN(4000))*time.Millisecond) != nil {
			return
		}
	}
}

// mayEnd writes down that, from some time on, the environment may be ended by
// a rule that its creator has asked for.
func (u *user) mayEnd(task string, seconds int64) {
	u.w.net.late.Go(func() {
		if pause(u.w.ctx, u.w.ctx, time.Duration(seconds)*time.Second) == nil {
			u.w.wit.clients.Add(history.Op{
				Verb: history.Died, ID: vmID(task), Call: u.w.wit.clients.Clock.Now(), Return: history.Never, Outcome: history.Done, Note: "may be ended by rule",
			})
		}
	})
}

// outcome is what an answer says; empty: the call reached nobody.
func outcome(err error) (out history.Outcome, note string) {
	var answer *client.Error
	switch {
	case err == nil:
		return history.Done, ""
	case errors.Is(err, errNobody):
		return "", ""
	case !errors.As(err, &answer):
		return history.Lost, err.Error()
	case answer.Status == http.StatusNotFound:
		out = history.NotFound
	case answer.Status < 500:
		out = history.Refused
	default:
		out = history.Failed
	}
	return out, fmt.Sprint(answer.Status, " ", answer.Message)
}

// end writes down what came of a call.
func (u *user) end(op *history.Op, err error, env gen.Environment) history.Outcome {
	out, note := outcome(err)
	if out == "" {
		u.w.wit.clients.Drop(op)
		return history.Refused
	}
	u.w.wit.clients.End(op, out, env.UID, env.State, note)
	return out
}

func (u *user) destroy(task string) {
	op := u.w.wit.clients.Begin(u.n, history.Destroy, vmID(task))
	ctx, cancel := u.patience()
	defer cancel()
	pending, err := u.api.Destroy(ctx, vmID(task))
	if err == nil && pending != nil {
		u.w.wit.clients.End(op, history.Pending, pending.UID, pending.State, "")
		return
	}
	u.end(op, err, gen.Environment{})
}

func (u *user) get(task string) {
	op := u.w.wit.clients.Begin(u.n, history.Look, vmID(task))
	ctx, cancel := u.patience()
	defer cancel()
	env, err := u.api.Get(ctx, vmID(task))
	u.end(op, err, env)
}

// list looks at all environments at once, which is a look at each.
func (u *user) list() {
	ops := map[string]*history.Op{}
	for _, task := range taskIDs {
		id := vmID(task)
		ops[id] = u.w.wit.clients.Begin(u.n, history.Look, id)
	}
	ctx, cancel := u.patience()
	defer cancel()
	page, err := u.api.List(ctx, gen.ListEnvironmentsParams{})
	found := map[string]gen.Environment{}
	for _, env := range page.Environments {
		found[env.ID] = env
	}
	for id, op := range ops {
		if env, ok := found[id]; ok || err != nil {
			u.end(op, err, env)
		} else {
			u.w.wit.clients.End(op, history.NotFound, "", "", "not in the list")
		}
	}
}

func (u *user) drain(task string) {
	op := u.w.wit.clients.Begin(u.n, history.Drain, vmID(task))
	ctx, cancel := u.patience()
	defer cancel()
	env, err := u.api.Drain(ctx, vmID(task))
	u.end(op, err, env)
}

func (u *user) complete(task string) {
	op := u.w.wit.clients.Begin(u.n, history.Complete, vmID(task))
	ctx, cancel := u.patience()
	defer cancel()
	_, err := u.api.Complete(ctx, vmID(task))
	u.end(op, err, gen.Environment{})
}

// exec runs a command with words of its own; half of the time with a key, and
// then again while the answer does not come. A command that ran has its output.
func (u *user) exec(task string) {
	u.keys++
	word := fmt.Sprintf("word-%d-%d", u.n, u.keys)
	tries, params := 1, &gen.ActOnEnvironmentParams{Action: "exec"}
	if u.rnd.IntN(2) == 0 {
		tries, params.IdempotencyKey = 3, &word
	}
	for range tries {
		ctx, cancel := u.patience()
		resp, err := u.raw.ActOnEnvironmentWithBody(ctx, vmID(task), params, "application/json", strings.NewReader(`{"cmd":["echo","`+word+`"]}`))
		var res gen.ExecResult
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(&res)
			_ = resp.Body.Close() // it is in memory
		}
		cancel()
		if err != nil {
			_ = pause(u.w.ctx, u.w.ctx, time.Duration(u.rnd.IntN(4000))*time.Millisecond)
			continue
		}
		replayed := resp.Header.Get("Idempotency-Replayed") != ""
		if resp.StatusCode == http.StatusOK && res.ExitCode == 0 && res.Stdout != word+"\n" && !replayed {
			u.w.wrong("promise 3: exec of echo %s answered %q", word, res.Stdout)
		}
		return
	}
}
