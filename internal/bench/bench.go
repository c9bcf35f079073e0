// Package bench measures a running control plane from outside, over its own
// API, as a client sees it. It asserts nothing: it prints what it saw.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Target is the server under measurement.
type Target struct {
	Base   string
	Token  string
	Client *http.Client
}

// Latency sums up the times of one kind of request.
type Latency struct {
	N             int
	P50, P99, Max time.Duration
	Wall          time.Duration
}

// Rate is requests per second of wall time.
func (l Latency) Rate() float64 {
	if l.Wall == 0 {
		return 0
	}
	return float64(l.N) / l.Wall.Seconds()
}

func (l Latency) String() string {
	return fmt.Sprintf("%7.0f/s  p50 %s  p99 %s  max %s  (n=%d)", l.Rate(), ms(l.P50), ms(l.P99), ms(l.Max), l.N)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond)) }

// summarize sorts times and reads their percentiles.
func summarize(times []time.Duration, wall time.Duration) Latency {
	if len(times) == 0 {
		return Latency{}
	}
	slices.Sort(times)
	at := func(q float64) time.Duration { return times[min(int(q*float64(len(times))), len(times)-1)] }
	return Latency{N: len(times), P50: at(0.50), P99: at(0.99), Max: times[len(times)-1], Wall: wall}
}

// Each calls f n times from the given number of workers and times each call.
// The first error ends it.
func Each(ctx context.Context, n, workers int, f func(ctx context.Context, i int) error) (Latency, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([]time.Duration, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				t := time.Now()
				if err := f(ctx, i); err != nil {
					cancel(err)
					return
				}
				times[i] = time.Since(t)
			}
		})
	}
	wg.Wait()
	wall := time.Since(start)
	if ctx.Err() != nil {
		return Latency{}, context.Cause(ctx)
	}
	return summarize(times, wall), nil
}

// Call makes one request and returns the body of a 2xx answer.
func (t Target) Call(ctx context.Context, method, path string, body any) ([]byte, error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, t.Base+path, in)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+t.Token)
	resp, err := t.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, raw)
	}
	return raw, nil
}

// Create makes one environment with the smallest shape there is.
func (t Target) Create(ctx context.Context, taskID string) error {
	_, err := t.Call(ctx, http.MethodPost, "/v1/environments", map[string]any{
		"task_id": taskID,
		"spec":    map[string]any{"cpus": 1, "ram_mb": 64, "storage_gb": 1},
	})
	return err
}

// Destroy ends one environment.
func (t Target) Destroy(ctx context.Context, taskID string) error {
	_, err := t.Call(ctx, http.MethodDelete, "/v1/environments/fuse-"+taskID, nil)
	return err
}

// errCursor says that paging made no progress.
var errCursor = errors.New("a page repeats its cursor")

// ListAll walks the whole list in pages of 200 and counts the rows.
func (t Target) ListAll(ctx context.Context) (int, error) {
	rows, cursor := 0, ""
	for {
		path := "/v1/environments?limit=200"
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		raw, err := t.Call(ctx, http.MethodGet, path, nil)
		if err != nil {
			return 0, err
		}
		rows += bytes.Count(raw, []byte(`"uid":`))
		next := nextCursor(raw)
		if next == "" {
			return rows, nil
		}
		if next == cursor {
			return 0, errCursor
		}
		cursor = next
	}
}

// nextCursor cuts the cursor out of a page without decoding its rows, so that
// the client's own decoding is not what is measured.
func nextCursor(page []byte) string {
	_, rest, ok := bytes.Cut(page, []byte(`"next_cursor":"`))
	if !ok {
		return ""
	}
	cursor, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(cursor)
}
