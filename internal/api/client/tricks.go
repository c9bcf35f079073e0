package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Tricks are the tricks of a server, their schedules, and the ends of
// playgrounds.
type Tricks struct{ api *API }

// NewTricks works on tricks by a's connection.
func NewTricks(a *API) Tricks { return Tricks{a} }

// Extend gives a playground more time.
func (t Tricks) Extend(ctx context.Context, id, expires string) (g gen.Playground, err error) {
	resp, err := t.api.raw.ExtendPlayground(ctx, id, &gen.ExtendPlaygroundParams{}, gen.ExtendPlayground{Expires: expires})
	return g, decode(resp, err, &g)
}

// Run begins a trick.
func (t Tricks) Run(ctx context.Context, req gen.RunTrick) (k gen.Trick, err error) {
	resp, err := t.api.raw.RunTrick(ctx, &gen.RunTrickParams{}, req)
	return k, decode(resp, err, &k)
}

// List returns one page of tricks.
func (t Tricks) List(ctx context.Context, params gen.ListTricksParams) (page gen.TrickList, err error) {
	resp, err := t.api.raw.ListTricks(ctx, &params)
	return page, decode(resp, err, &page)
}

// Get returns one by id or name, after waiting that many seconds for its end.
func (t Tricks) Get(ctx context.Context, id string, wait int) (k gen.Trick, err error) {
	params := &gen.GetTrickParams{}
	if wait > 0 {
		params.Wait = &wait
	}
	resp, err := t.api.raw.GetTrick(ctx, id, params)
	return k, decode(resp, err, &k)
}

// Cancel ends a trick.
func (t Tricks) Cancel(ctx context.Context, id string) (k gen.Trick, err error) {
	resp, err := t.api.raw.ActOnTrick(ctx, id, &gen.ActOnTrickParams{Action: "cancel"})
	return k, decode(resp, err, &k)
}

// Remove takes a trick away.
func (t Tricks) Remove(ctx context.Context, id string) (k gen.Trick, err error) {
	resp, err := t.api.raw.RemoveTrick(ctx, id, &gen.RemoveTrickParams{})
	return k, decode(resp, err, &k)
}

// Logs copies what an attempt wrote to w.
func (t Tricks) Logs(ctx context.Context, id string, params gen.TrickLogsParams, w io.Writer) error {
	resp, err := t.api.raw.TrickLogs(ctx, id, &params)
	if err != nil {
		return err
	}
	return copyLines(resp, w)
}

// copyLines copies an answer of lines; an error after its first is one of them.
func copyLines(resp *http.Response, w io.Writer) error {
	if resp.StatusCode != http.StatusOK {
		return decode(resp, nil, nil)
	}
	defer resp.Body.Close()
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		if text, broke := strings.CutPrefix(string(line), "fuse: "); broke {
			return errors.New(strings.TrimSpace(text))
		}
		if _, werr := w.Write(line); werr != nil {
			return fmt.Errorf("write the logs: %w", werr)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read the logs: %w", err)
		}
	}
}

// AddSchedule makes a schedule.
func (t Tricks) AddSchedule(ctx context.Context, req gen.AddTrickSchedule) (s gen.TrickSchedule, err error) {
	resp, err := t.api.raw.AddTrickSchedule(ctx, &gen.AddTrickScheduleParams{}, req)
	return s, decode(resp, err, &s)
}

// Schedules lists schedules.
func (t Tricks) Schedules(ctx context.Context) (all gen.TrickScheduleList, err error) {
	resp, err := t.api.raw.ListTrickSchedules(ctx)
	return all, decode(resp, err, &all)
}

// Schedule returns one by id or name.
func (t Tricks) Schedule(ctx context.Context, id string) (s gen.TrickSchedule, err error) {
	resp, err := t.api.raw.GetTrickSchedule(ctx, id)
	return s, decode(resp, err, &s)
}

// ActOnSchedule does pause, resume or fire.
func (t Tricks) ActOnSchedule(ctx context.Context, id, action string) (a gen.TrickScheduleAnswer, err error) {
	resp, err := t.api.raw.ActOnTrickSchedule(ctx, id, &gen.ActOnTrickScheduleParams{Action: action})
	return a, decode(resp, err, &a)
}

// RemoveSchedule removes one.
func (t Tricks) RemoveSchedule(ctx context.Context, id string) error {
	resp, err := t.api.raw.RemoveTrickSchedule(ctx, id, &gen.RemoveTrickScheduleParams{})
	return decode(resp, err, nil)
}

// Notifications are the routes by which a server tells people.
type Notifications struct{ api *API }

// NewNotifications works on routes by a's connection.
func NewNotifications(a *API) Notifications { return Notifications{a} }

// Add makes a route.
func (n Notifications) Add(ctx context.Context, req gen.AddNotificationRoute) (r gen.NotificationRoute, err error) {
	resp, err := n.api.raw.AddNotificationRoute(ctx, &gen.AddNotificationRouteParams{}, req)
	return r, decode(resp, err, &r)
}

// List lists routes.
func (n Notifications) List(ctx context.Context) (all gen.NotificationRouteList, err error) {
	resp, err := n.api.raw.ListNotificationRoutes(ctx)
	return all, decode(resp, err, &all)
}

// Get returns one by id or name.
func (n Notifications) Get(ctx context.Context, id string) (r gen.NotificationRoute, err error) {
	resp, err := n.api.raw.GetNotificationRoute(ctx, id)
	return r, decode(resp, err, &r)
}

// Act does test, pause or resume.
func (n Notifications) Act(ctx context.Context, id, action string) (r gen.NotificationRoute, err error) {
	resp, err := n.api.raw.ActOnNotificationRoute(ctx, id, &gen.ActOnNotificationRouteParams{Action: action})
	return r, decode(resp, err, &r)
}

// Remove removes one.
func (n Notifications) Remove(ctx context.Context, id string) error {
	resp, err := n.api.raw.RemoveNotificationRoute(ctx, id, &gen.RemoveNotificationRouteParams{})
	return decode(resp, err, nil)
}

// Mail is how mail is sent.
func (n Notifications) Mail(ctx context.Context) (m gen.NotificationMail, err error) {
	resp, err := n.api.raw.GetNotificationMail(ctx)
	return m, decode(resp, err, &m)
}

// SetMail says how mail is sent.
func (n Notifications) SetMail(ctx context.Context, req gen.NotificationMail) (m gen.NotificationMail, err error) {
	resp, err := n.api.raw.SetNotificationMail(ctx, req)
	return m, decode(resp, err, &m)
}

// RemoveMail sends no mail any more.
func (n Notifications) RemoveMail(ctx context.Context) error {
	resp, err := n.api.raw.RemoveNotificationMail(ctx)
	return decode(resp, err, nil)
}
