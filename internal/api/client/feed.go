package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Feed is what the fleet's log has to tell.
type Feed struct{ api *API }

// NewFeed reads the log by a's connection.
func NewFeed(a *API) Feed { return Feed{a} }

// Page returns one page of the fleet's events: the newest, or those after
// params.After or since params.Since.
func (f Feed) Page(ctx context.Context, params gen.ListEventsParams) (page gen.EventPage, err error) {
	resp, err := f.api.raw.ListEvents(ctx, &params)
	return page, decode(resp, err, &page)
}

// History tells the life of an environment; uid names another than the present
// or last one.
func (f Feed) History(ctx context.Context, id, uid string) (h gen.History, err error) {
	params := &gen.GetEnvironmentHistoryParams{}
	if uid != "" {
		params.UID = &uid
	}
	resp, err := f.api.raw.GetEnvironmentHistory(ctx, id, params)
	return h, decode(resp, err, &h)
}

// Follow calls fn with the events of the fleet that params selects, from
// params.After on or, without it, those to come, until ctx is done or fn
// returns an error. A stream that broke is taken up where it broke; one that
// never began is an error. Events that are missing are a notice.
func (f Feed) Follow(ctx context.Context, params gen.ListEventsParams, fn func(gen.Event) error) error {
	retry, began := minRetry, false
	for {
		c := &feeding{api: f.api, params: params, fn: fn}
		err := c.once(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case isFinal(err), !began && !c.began:
			return err
		}
		began = true
		if c.last != "" {
			params.After, params.Since, retry = &c.last, nil, minRetry
		}
		f.api.notice(fmt.Sprintf("the event stream broke off (%v); taking it up again", err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
			retry = min(2*retry, maxRetry)
		}
	}
}

// feeding is one connection of a Follow.
type feeding struct {
	api    *API
	params gen.ListEventsParams
	fn     func(gen.Event) error
	began  bool
	last   string // the last id that is known
}

func (f *feeding) once(ctx context.Context) error {
	resp, err := f.api.raw.ListEvents(ctx, &f.params, func(_ context.Context, r *http.Request) error {
		r.Header.Set("Accept", "text/event-stream")
		return nil
	})
	if err != nil {
		return plainURLError(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errorFrom(resp)
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return callbackError{errors.New("this server does not stream events")}
	}
	f.began = true
	for m, err := range frames(resp.Body) {
		if err != nil {
			return err
		}
		if err := f.take(m); err != nil {
			return err
		}
	}
	return io.ErrUnexpectedEOF
}

func (f *feeding) take(m frame) error {
	switch {
	case m.data == nil:
	case m.event == "resync":
		var gap struct {
			Reason, After, Next string
		}
		if err := json.Unmarshal(m.data, &gap); err != nil {
			return callbackError{fmt.Errorf("read event: %w", err)}
		}
		f.api.notice(fmt.Sprintf("events after %s are missing: %s", firstLine(gap.After), firstLine(gap.Reason)))
	default:
		var ev gen.Event
		if err := json.Unmarshal(m.data, &ev); err != nil {
			return callbackError{fmt.Errorf("read event: %w", err)}
		}
		if err := f.fn(ev); err != nil {
			return callbackError{err}
		}
	}
	if m.id != "" {
		f.last = m.id
	}
	return nil
}

// frame is one server-sent event; data is nil when it has none.
type frame struct {
	id, event string
	data      []byte
}

// frames yields the server-sent events in r, comments left out.
func frames(r io.Reader) func(yield func(frame, error) bool) {
	return func(yield func(frame, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 0, 4096), maxEventLine)
		var m frame
		for lines.Scan() {
			field, value, _ := strings.Cut(lines.Text(), ":")
			value = strings.TrimPrefix(value, " ")
			switch field {
			case "":
				if lines.Text() == "" { // else a comment
					if (m.data != nil || m.id != "") && !yield(m, nil) {
						return
					}
					m = frame{}
				}
			case "id":
				m.id = value
			case "event":
				m.event = value
			case "data":
				m.data = append(m.data, value...)
			}
		}
		if err := lines.Err(); err != nil {
			yield(frame{}, err)
		}
	}
}
