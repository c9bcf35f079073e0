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

// Bounds of following a stream.
const (
	maxEventLine = 1 << 20
	minRetry     = 100 * time.Millisecond
	maxRetry     = 5 * time.Second
)

// Events calls fn with every state event of an environment, in order, until
// the environment has ended, ctx is done or fn returns an error. after is the
// last event id already known: "" starts with the present state, "0" with the
// oldest event kept. A broken stream is resumed where it stopped.
func (a *API) Events(ctx context.Context, id, after string, fn func(gen.EnvironmentEvent) error) error {
	retry := minRetry
	for {
		last, done, err := a.eventsOnce(ctx, id, after, fn)
		switch {
		case done || ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case isFinal(err):
			return err
		}
		if last != after {
			after, retry = last, minRetry
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
			retry = min(2*retry, maxRetry)
		}
	}
}

// callbackError marks an error of the caller's own function.
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

// eventsOnce reads one stream to its end and returns the last id it saw.
func (a *API) eventsOnce(ctx context.Context, id, after string, fn func(gen.EnvironmentEvent) error) (last string, done bool, err error) {
	last = after
	params := &gen.StreamEnvironmentEventsParams{}
	if after != "" {
		params.LastEventID = &after
	}
	resp, err := a.raw.StreamEnvironmentEvents(ctx, id, params)
	if err != nil {
		return last, false, plainURLError(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return last, true, nil
	case resp.StatusCode != http.StatusOK:
		return last, false, errorFrom(resp)
	}
	for data, err := range messages(resp.Body) {
		if err != nil {
			return last, false, err
		}
		var ev gen.EnvironmentEvent
		if err := json.Unmarshal(data, &ev); err != nil {
			return last, false, fmt.Errorf("read event: %w", err)
		}
		if err := fn(ev); err != nil {
			return last, false, callbackError{err}
		}
		last = ev.ID
		if ev.State == "destroyed" || ev.State == "failed" {
			return last, true, nil
		}
	}
	return last, false, nil
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
