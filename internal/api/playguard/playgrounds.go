package playguard

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
)

// Limits of queries.
const (
	maxWait     = 60 // seconds
	defaultTail = 200
	maxSince    = 10 * 365 * 86400 // seconds
	// quietStart is how long a follower waits for a first byte, so that what
	// fails at once is an error and not a text.
	quietStart = 2 * time.Second
)

func (s routes) playgrounds(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	after, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	page, err := s.service.Playgrounds(r.Context(), service.ListOptions{
		Marquee: q.Get("marquee"), State: model.State(q.Get("state")), After: after, Limit: web.PageLimit(q),
	})
	if err != nil {
		return err
	}
	out := gen.PlaygroundList{Playgrounds: make([]gen.Playground, 0, len(page.Items))}
	for _, p := range page.Items {
		out.Playgrounds = append(out.Playgrounds, playgroundOf(p))
	}
	if page.Next != "" {
		out.NextCursor = web.EncodeCursor(page.Next)
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) playground(w http.ResponseWriter, r *web.Request) error {
	seconds, wait, err := count(r, "wait", maxWait)
	if err != nil {
		return err
	}
	p, err := s.service.Playground(r.Context(), r.Param)
	if err == nil && wait {
		ctx, cancel := context.WithTimeout(r.Context(), time.Duration(seconds)*time.Second)
		defer cancel()
		var later service.Playground
		switch later, err = s.service.Wait(ctx, string(p.ID)); {
		case err == nil:
			p = later
		case ctx.Err() != nil && r.Context().Err() == nil: // as it is then
			p, err = s.service.Playground(r.Context(), string(p.ID))
		}
	}
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, playgroundOf(p))
	return nil
}

func (s routes) up(w http.ResponseWriter, r *web.Request) error {
	var body gen.UpPlayground
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req, err := upOf(body)
	if err != nil {
		return err
	}
	p, err := once(w, r, s.keeper, http.StatusAccepted,
		func(ctx context.Context) (service.Playground, string, error) {
			return playgroundID(s.service.Up(ctx, req))
		}, s.getPlayground)
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("playgrounds", string(p.ID)))
	web.WriteJSON(w, http.StatusAccepted, playgroundOf(p))
	return nil
}

func (s routes) plan(w http.ResponseWriter, r *web.Request) error {
	var body gen.UpPlayground
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req, err := upOf(body)
	if err != nil {
		return err
	}
	p, err := s.service.Plan(r.Context(), req)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, planOf(p))
	return nil
}

func (s routes) actOnPlayground(w http.ResponseWriter, r *web.Request) error {
	actions := map[string]web.Action{}
	for _, a := range []model.Action{model.ActionRollout, model.ActionHardRestart, model.ActionRetryCompose, model.ActionStop, model.ActionStart} {
		actions[string(a)] = web.Action{BodyLimit: web.BodyLimit, Handle: func(w http.ResponseWriter, r *web.Request) error {
			return s.act(w, r, service.ActionRequest{Action: a})
		}}
	}
	return web.Dispatch(actions, w, r)
}

func (s routes) act(w http.ResponseWriter, r *web.Request, req service.ActionRequest) error {
	p, err := once(w, r, s.keeper, http.StatusAccepted,
		func(ctx context.Context) (service.Playground, string, error) {
			return playgroundID(s.service.Act(ctx, r.Param, req))
		}, s.getPlayground)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusAccepted, playgroundOf(p))
	return nil
}

func (s routes) removePlayground(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	if err := web.OnlyQuery(q, "keep_volumes", "forget"); err != nil {
		return err
	}
	keep, err := flag(r, "keep_volumes")
	forget, err2 := flag(r, "forget")
	switch {
	case errors.Join(err, err2) != nil:
		return errors.Join(err, err2)
	case forget && q.Has("keep_volumes"):
		return fleet.Invalid("keep_volumes", "one of the two", "leave one out", "says nothing together with forget, which touches nothing")
	case !forget:
		req := service.ActionRequest{Action: model.ActionDestroy}
		if q.Has("keep_volumes") {
			req.KeepVolumes = &keep
		}
		return s.act(w, r, req)
	}
	if _, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.service.Forget(ctx, r.Param)
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s routes) explain(w http.ResponseWriter, r *web.Request) error {
	e, err := s.service.Explain(r.Context(), r.Param)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, explanationOf(e))
	return nil
}

func (s routes) logs(w http.ResponseWriter, r *web.Request) error {
	req, err := logsOf(r)
	if err != nil {
		return err
	}
	stream, ctx, closeStream, err := s.streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	out := &text{stream: stream, header: w.Header()}
	if req.Follow {
		begin := time.AfterFunc(quietStart, func() { out.Write(nil) }) //nolint:errcheck // the reader that left is noticed below
		defer begin.Stop()
	}
	err = s.service.Logs(ctx, r.Param, req, out)
	if out.end(err) || err == nil {
		return nil
	}
	return err
}

func logsOf(r *web.Request) (req service.LogsRequest, err error) {
	var errs [4]error
	q := r.URL.Query()
	for _, v := range q["service"] {
		for name := range strings.SplitSeq(v, ",") {
			req.Services = append(req.Services, name)
		}
	}
	req.Follow, errs[0] = flag(r, "follow")
	req.Timestamps, errs[1] = flag(r, "timestamps")
	tail, given, err := count(r, "tail", service.MaxTail)
	errs[2] = err
	since, _, err := count(r, "since", maxSince)
	errs[3] = err
	if req.Tail = tail; !given {
		req.Tail = defaultTail
	}
	req.Since = time.Duration(since) * time.Second
	for _, err := range errs {
		if err != nil {
			return req, err
		}
	}
	return req, nil
}

// text is an answer of lines that come one by one.
type text struct {
	stream *web.Stream
	header http.Header

	mu   sync.Mutex
	sent bool // the answer has begun
	over bool
}

var errLeft = errors.New("the reader has left")

// Write implements io.Writer.
func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.write(p)
}

func (t *text) write(p []byte) (int, error) {
	if t.over {
		return 0, errLeft
	}
	if !t.sent {
		t.sent = true
		t.stream.Begin()
		t.header.Set("Content-Type", "text/plain; charset=utf-8")
	}
	if !t.stream.Write(p) {
		t.over = true
		return 0, errLeft
	}
	return len(p), nil
}

// end ends the answer; an error after its first byte can only be told in it. It
// reports whether the answer has begun.
func (t *text) end(err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.sent && err == nil:
		t.write(nil) //nolint:errcheck // nobody is left to tell
	case t.sent && err != nil:
		t.write([]byte("fuse: " + strings.ReplaceAll(err.Error(), "\n", " ") + "\n")) //nolint:errcheck // nobody is left to tell
	}
	t.over = true
	return t.sent
}
