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
	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of following a stream.
const (
	maxEventLine = 1 << 20
	minRetry     = 100 * time.Millisecond
	maxRetry     = 5 * time.Second
)

// Events calls fn with every state event of an environment, in order, until
// the environment has ended, ctx is done or fn returns an error. after is the
// last event id already known: "" starts with the present state, "0" with the
// oldest event kept. A stream that broke is resumed where it stopped; one that
// never began is an error.
func (a *API) Events(ctx context.Context, id, after string, fn func(gen.EnvironmentEvent) error) error {
	retry, began := minRetry, false
	for {
		s := a.eventsOnce(ctx, id, after, fn)
		switch {
		case s.done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case isFinal(s.err), !began && !s.began:
			return s.err
		}
		began = true
		if s.last != after {
			after, retry = s.last, minRetry
		}
		a.notice(fmt.Sprintf("the event stream broke off (%v); taking it up again", s.err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
			retry = min(2*retry, maxRetry)
		}
	}
}

// callbackError marks an error that the connection has no part in: the
// caller's own function's, or an event that cannot be read.
type callbackError struct{ error }

func (e callbackError) Unwrap() error { return e.error }

// isFinal reports whether trying again cannot help.
func isFinal(err error) bool {
	var cb callbackError
	if errors.As(err, &cb) {
		return true
	}
	var e *Error
	return errors.As(err, &e) && e.Status < 500 && e.Status != http.StatusTooManyRequests
}

// oneStream is what became of one connection: the last id it gave, whether it
// was a stream at all, whether the environment's end came.
type oneStream struct {
	last        string
	began, done bool
	err         error
}

// eventsOnce reads one stream to its end, which is an error unless it is the
// environment's.
func (a *API) eventsOnce(ctx context.Context, id, after string, fn func(gen.EnvironmentEvent) error) oneStream {
	s := oneStream{last: after}
	params := &gen.StreamEnvironmentEventsParams{}
	if after != "" {
		params.LastEventID = &after
	}
	resp, err := a.raw.StreamEnvironmentEvents(ctx, id, params)
	if err != nil {
		s.err = plainURLError(err)
		return s
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNoContent:
		s.done = true
		return s
	case resp.StatusCode != http.StatusOK:
		s.err = errorFrom(resp)
		return s
	}
	s.began = true
	for data, err := range messages(resp.Body) {
		if err != nil {
			s.err = err
			return s
		}
		var ev gen.EnvironmentEvent
		if err := json.Unmarshal(data, &ev); err != nil {
			s.err = callbackError{fmt.Errorf("read event: %w", err)}
			return s
		}
		if err := fn(ev); err != nil {
			s.err = callbackError{err}
			return s
		}
		s.last = ev.ID
		if fleet.IsTerminalState(fleet.VMState(ev.State)) {
			s.done = true
			return s
		}
	}
	s.err = io.ErrUnexpectedEOF
	return s
}

// messages yields the data of each server-sent event in r.
func messages(r io.Reader) func(yield func([]byte, error) bool) {
	return func(yield func([]byte, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 0, 4096), maxEventLine)
		var data []byte
		for lines.Scan() {
			line := lines.Text()
			switch {
			case line == "":
				if data != nil && !yield(data, nil) {
					return
				}
				data = nil
			case strings.HasPrefix(line, "data:"):
				data = append(data, strings.TrimPrefix(line[len("data:"):], " ")...)
			}
		}
		if err := lines.Err(); err != nil {
			yield(nil, err)
		}
	}
}
