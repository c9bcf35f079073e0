package playguard

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/trick"
	"github.com/fusevm/fuse/internal/state"
)

type tricks struct {
	service *trick.Service
	keeper  web.Keeper
	streams *web.Streams
}

// TrickRoutes are the routes of tricks, their schedules, and of the ends of
// playgrounds.
func TrickRoutes(t *trick.Service, keeper web.Keeper, streams *web.Streams) []web.Route {
	s := tricks{t, keeper, streams}
	return []web.Route{
		{Method: http.MethodPost, Pattern: "/v1/playgrounds/{id}/extend", BodyLimit: web.BodyLimit, Handle: s.extend},
		{Method: http.MethodGet, Pattern: "/v1/tricks", Handle: s.list},
		{Method: http.MethodPost, Pattern: "/v1/tricks", BodyLimit: UpLimit, Slow: true, Handle: s.run},
		{Method: http.MethodGet, Pattern: "/v1/tricks/{id}", Slow: true, Handle: s.get},
		{Method: http.MethodPost, Pattern: "/v1/tricks/{id}", BodyLimit: web.BodyLimit, Handle: s.act},
		{Method: http.MethodDelete, Pattern: "/v1/tricks/{id}", BodyLimit: web.BodyLimit, Handle: s.remove},
		{Method: http.MethodGet, Pattern: "/v1/tricks/{id}/logs", Slow: true, Handle: s.logs},
		{Method: http.MethodGet, Pattern: "/v1/trick-schedules", Handle: s.schedules},
		{Method: http.MethodPost, Pattern: "/v1/trick-schedules", BodyLimit: UpLimit, Slow: true, Handle: s.addSchedule},
		{Method: http.MethodGet, Pattern: "/v1/trick-schedules/{id}", Handle: s.schedule},
		{Method: http.MethodPost, Pattern: "/v1/trick-schedules/{id}", BodyLimit: web.BodyLimit, Handle: s.actOnSchedule},
		{Method: http.MethodDelete, Pattern: "/v1/trick-schedules/{id}", BodyLimit: web.BodyLimit, Handle: s.removeSchedule},
	}
}

func (s tricks) extend(w http.ResponseWriter, r *web.Request) error {
	var body gen.ExtendPlayground
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	p, err := once(w, r, s.keeper, http.StatusOK,
		func(ctx context.Context) (service.Playground, string, error) {
			return playgroundID(service.Extend(ctx, s.service.Playguard, r.Param, body.Expires))
		}, s.service.Playguard.Playground)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, playgroundOf(p))
	return nil
}

func (s tricks) list(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	after, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	active, err := flag(r, "active")
	if err != nil {
		return err
	}
	page, err := s.service.List(r.Context(), trick.ListOptions{Schedule: q.Get("schedule"), Active: active, After: after, Limit: web.PageLimit(q)})
	if err != nil {
		return err
	}
	out := gen.TrickList{Tricks: make([]gen.Trick, 0, len(page.Items))}
	for _, p := range page.Items {
		out.Tricks = append(out.Tricks, trickOf(p))
	}
	if page.Next != "" {
		out.NextCursor = web.EncodeCursor(page.Next)
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

// limits are how a trick is tried, as the wire has them.
func limits(retries int, backoff, deadline, keep int64) trick.Limits {
	seconds := func(n int64) time.Duration {
		const most = int64(10 * 365 * 24 * time.Hour / time.Second)
		return time.Duration(max(min(n, most), -1)) * time.Second
	}
	return trick.Limits{Retries: retries, Backoff: seconds(backoff), Deadline: seconds(deadline), Keep: seconds(keep)}
}

func (s tricks) run(w http.ResponseWriter, r *web.Request) error {
	var body gen.RunTrick
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	up, err := upOf(gen.UpPlayground{
		Name: body.Name, Marquee: body.Marquee, Compose: body.Compose, Files: body.Files, Variables: body.Variables, Policy: body.Policy, KeepVolumes: body.KeepVolumes,
	})
	if err != nil {
		return err
	}
	req := trick.Request{Up: up, Limits: limits(body.Retries, body.BackoffSeconds, body.DeadlineSeconds, body.KeepSeconds)}
	p, err := once(w, r, s.keeper, http.StatusAccepted,
		func(ctx context.Context) (service.Playground, string, error) {
			return playgroundID(s.service.Run(ctx, req))
		}, s.service.Get)
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("tricks", string(p.ID)))
	web.WriteJSON(w, http.StatusAccepted, trickOf(p))
	return nil
}

func (s tricks) get(w http.ResponseWriter, r *web.Request) error {
	seconds, wait, err := count(r, "wait", maxWait)
	if err != nil {
		return err
	}
	p, err := s.service.Get(r.Context(), r.Param)
	if err == nil && wait {
		ctx, cancel := context.WithTimeout(r.Context(), time.Duration(seconds)*time.Second)
		defer cancel()
		if later, werr := s.service.Wait(ctx, string(p.ID)); werr == nil || ctx.Err() == nil {
			p, err = later, werr
		} else {
			p, err = s.service.Get(r.Context(), string(p.ID))
		}
	}
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, trickOf(p))
	return nil
}

// change answers with the trick that something was done to.
func (s tricks) change(do func(ctx context.Context, id string) (service.Playground, error)) web.Handler {
	return func(w http.ResponseWriter, r *web.Request) error {
		p, err := once(w, r, s.keeper, http.StatusAccepted,
			func(ctx context.Context) (service.Playground, string, error) { return playgroundID(do(ctx, r.Param)) }, s.service.Get)
		if err != nil {
			return err
		}
		web.WriteJSON(w, http.StatusAccepted, trickOf(p))
		return nil
	}
}

func (s tricks) act(w http.ResponseWriter, r *web.Request) error {
	return web.Dispatch(map[string]web.Action{"cancel": {BodyLimit: web.BodyLimit, Handle: s.change(s.service.Cancel)}}, w, r)
}

func (s tricks) remove(w http.ResponseWriter, r *web.Request) error {
	return s.change(s.service.Remove)(w, r)
}

func (s tricks) logs(w http.ResponseWriter, r *web.Request) error {
	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}
	attempt, _, err := count(r, "attempt", model.MaxRetries+1)
	if err != nil {
		return err
	}
	tail, _, err := count(r, "tail", service.MaxTail)
	if err != nil {
		return err
	}
	stream, ctx, closeStream, err := s.streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	out := &text{stream: stream, header: w.Header()}
	if follow {
		begin := time.AfterFunc(quietStart, func() { out.Write(nil) }) //nolint:errcheck // the reader that left is noticed below
		defer begin.Stop()
	}
	err = s.service.Logs(ctx, r.Param, trick.LogsRequest{Attempt: attempt, Follow: follow, Tail: tail}, out)
	if out.end(err) || err == nil {
		return nil
	}
	return err
}

func (s tricks) schedules(w http.ResponseWriter, r *web.Request) error {
	all, err := s.service.AllSchedules(r.Context())
	if err != nil {
		return err
	}
	out := gen.TrickScheduleList{Schedules: make([]gen.TrickSchedule, 0, len(all))}
	for _, sch := range all {
		out.Schedules = append(out.Schedules, scheduleOf(sch))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s tricks) addSchedule(w http.ResponseWriter, r *web.Request) error {
	var body gen.AddTrickSchedule
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	up, err := upOf(gen.UpPlayground{
		Name: body.Name, Marquee: body.Marquee, Compose: body.Compose, Files: body.Files, Variables: body.Variables, Policy: body.Policy, KeepVolumes: body.KeepVolumes,
	})
	if err != nil {
		return err
	}
	req := trick.NewSchedule{
		Request: trick.Request{Up: up, Limits: limits(body.Retries, body.BackoffSeconds, body.DeadlineSeconds, body.KeepSeconds)},
		Timing: trick.Timing{
			Cron: body.Cron, Zone: body.TimeZone, StartWithin: time.Duration(min(body.StartWithinSeconds, 1<<32)) * time.Second,
			Concurrency: trick.Concurrency(body.Concurrency), KeepDone: trick.DefaultKeepDone, KeepFailed: trick.DefaultKeepFailed,
		},
	}
	if n := body.KeepDone; n != nil {
		req.Timing.KeepDone = *n
	}
	if n := body.KeepFailed; n != nil {
		req.Timing.KeepFailed = *n
	}
	sch, err := once(w, r, s.keeper, http.StatusCreated,
		func(ctx context.Context) (trick.Scheduled, string, error) {
			return scheduleID(s.service.AddSchedule(ctx, req))
		}, s.service.Schedule)
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("trick-schedules", sch.ID))
	web.WriteJSON(w, http.StatusCreated, scheduleOf(sch))
	return nil
}

func scheduleID(s trick.Scheduled, err error) (trick.Scheduled, string, error) { return s, s.ID, err }

func (s tricks) schedule(w http.ResponseWriter, r *web.Request) error {
	sch, err := s.service.Schedule(r.Context(), r.Param)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, scheduleOf(sch))
	return nil
}

func (s tricks) actOnSchedule(w http.ResponseWriter, r *web.Request) error {
	pause := func(on bool) web.Handler {
		return func(w http.ResponseWriter, r *web.Request) error {
			sch, err := once(w, r, s.keeper, http.StatusOK,
				func(ctx context.Context) (trick.Scheduled, string, error) {
					return scheduleID(s.service.Pause(ctx, r.Param, on))
				}, s.service.Schedule)
			if err != nil {
				return err
			}
			web.WriteJSON(w, http.StatusOK, gen.TrickScheduleAnswer{Schedule: scheduleOf(sch)})
			return nil
		}
	}
	return web.Dispatch(map[string]web.Action{
		"pause":  {BodyLimit: web.BodyLimit, Handle: pause(true)},
		"resume": {BodyLimit: web.BodyLimit, Handle: pause(false)},
		"fire":   {BodyLimit: web.BodyLimit, Handle: s.fire},
	}, w, r)
}

func (s tricks) fire(w http.ResponseWriter, r *web.Request) error {
	p, err := once(w, r, s.keeper, http.StatusOK,
		func(ctx context.Context) (service.Playground, string, error) {
			return playgroundID(s.service.Fire(ctx, r.Param))
		}, s.service.Get)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, gen.TrickScheduleAnswer{Trick: trickOf(p)})
	return nil
}

func (s tricks) removeSchedule(w http.ResponseWriter, r *web.Request) error {
	if _, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.service.RemoveSchedule(ctx, r.Param)
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// trickOf shows a trick.
func trickOf(p service.Playground) gen.Trick {
	out := gen.Trick{
		ID: string(p.ID), Name: p.Name, Owner: p.Owner, Marquee: string(p.Marquee), Project: p.Project.String(), State: string(p.State),
		StateSince: p.StateSince.UTC(), Reason: p.Reason, Attention: string(p.Attention), CreatedAt: p.CreatedAt.UTC(), Watch: []string{},
	}
	if !p.Failure.IsZero() {
		out.Failure = failureOf(p.Failure)
	}
	t := p.Trick
	if t == nil {
		return out
	}
	out.Done = p.State == model.StateCompleted || p.State == model.StateDestroying
	out.Watch, out.Attempt, out.Retries, out.Ending, out.Schedule = t.Watch, t.Attempt, t.Retries, string(t.Ending), t.Schedule
	out.BackoffSeconds, out.DeadlineSeconds, out.KeepSeconds = seconds(t.Backoff), seconds(t.Deadline), seconds(t.Keep)
	if !t.Slot.IsZero() {
		out.Slot = t.Slot.UTC()
	}
	if len(t.Attempts) > 0 {
		out.Code = new(t.Last().Code)
	}
	for _, a := range t.Attempts {
		end := gen.TrickAttempt{N: a.N, Code: a.Code, End: string(a.End), Why: a.Why, At: a.At.UTC(), Logs: string(a.Logs)}
		for _, s := range a.Services {
			end.Services = append(end.Services, gen.TrickService{Name: s.Name, Code: s.Code})
		}
		out.Attempts = append(out.Attempts, end)
	}
	return out
}

func scheduleOf(s trick.Scheduled) gen.TrickSchedule {
	return gen.TrickSchedule{
		ID: s.ID, Name: s.Name, Owner: s.Owner, Marquee: s.Marquee, Cron: s.Cron, TimeZone: s.Zone, StartWithinSeconds: seconds(s.StartWithin),
		Concurrency: string(s.Concurrency), KeepDone: new(s.KeepDone), KeepFailed: new(s.KeepFailed),
		Retries: s.Limits.Retries, BackoffSeconds: seconds(s.Limits.Backoff), DeadlineSeconds: seconds(s.Limits.Deadline), KeepSeconds: seconds(s.Limits.Keep),
		Paused: s.Paused, Next: utc(s.Next), Fired: utc(s.Fired), Trick: s.Trick, Waits: utc(s.Waits), Active: s.Active, Trouble: s.Trouble, CreatedAt: utc(s.CreatedAt),
	}
}

// utc leaves the zero time what it is, so that it is left out.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
