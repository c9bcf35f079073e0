package feed

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// scanBudget bounds the events that one page looks at.
const scanBudget = 20 * state.MaxEventPage

// page is one page as it goes out.
type page struct {
	Events    []json.RawMessage `json:"events"`
	NextAfter string            `json:"next_after"`
	More      bool              `json:"more"`
	Resync    bool              `json:"resync,omitempty"`
}

// events answers with a stream where one is asked for, else with a page.
func (s routes) events(w http.ResponseWriter, r *web.Request) error {
	q, err := parse(r)
	if err != nil {
		return err
	}
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return s.stream(w, r, q)
	}
	out, err := s.page(r.Context(), q, web.PageLimit(r.URL.Query()))
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) page(ctx context.Context, q query, limit int) (page, error) {
	head, err := s.head()
	if err != nil {
		return page{}, err
	}
	after, known := fleet.ParseEventID(q.after)
	switch {
	case q.after == "" && q.since.IsZero():
		return s.newest(ctx, q, limit, head)
	case q.after == "":
		if after, err = s.before(ctx, q.since, head); err != nil {
			return page{}, err
		}
	case !known || after > head:
		return page{Events: []json.RawMessage{}, NextAfter: fleet.EventID(head), Resync: true}, nil
	}
	return s.rising(ctx, q, after, limit, head)
}

func (s routes) head() (head uint64, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		head = tx.Seq()
		return nil
	})
	return head, err
}

// rising is the page after an id.
func (s routes) rising(ctx context.Context, q query, after uint64, limit int, head uint64) (page, error) {
	out, pos := page{Events: []json.RawMessage{}}, after
	for scanned := 0; pos < head && scanned < scanBudget; {
		list, err := s.Store.Events(ctx, state.EventQuery{After: pos, UpTo: head})
		if err != nil {
			return page{}, err
		}
		if len(list) == 0 { // the rest is not kept
			out.Resync, pos = true, head
			break
		}
		scanned += len(list)
		out.Resync = out.Resync || list[0].Seq != pos+1 && pos > 0
		for i := range list {
			pos = list[i].Seq
			if q.take(&list[i]) {
				out.Events = append(out.Events, events.Document(&list[i]))
			}
			if len(out.Events) == limit {
				out.NextAfter, out.More = fleet.EventID(pos), pos < head
				return out, nil
			}
		}
	}
	out.NextAfter, out.More = fleet.EventID(pos), pos < head
	return out, nil
}

// newest is the last page: up to limit events that the query takes, looked for
// from the head down.
func (s routes) newest(ctx context.Context, q query, limit int, head uint64) (page, error) {
	out, upTo := page{Events: []json.RawMessage{}, NextAfter: fleet.EventID(head)}, head
	for scanned := 0; upTo > 0 && scanned < scanBudget && len(out.Events) < limit; scanned += state.MaxEventPage {
		from := upTo - min(upTo, state.MaxEventPage)
		list, err := s.Store.Events(ctx, state.EventQuery{After: from, UpTo: upTo})
		if err != nil {
			return page{}, err
		}
		for i := len(list) - 1; i >= 0 && len(out.Events) < limit; i-- {
			if q.take(&list[i]) {
				out.Events = append(out.Events, events.Document(&list[i]))
			}
		}
		if len(list) == 0 {
			break // older ones are not kept
		}
		upTo = from
	}
	slices.Reverse(out.Events)
	return out, nil
}

// before finds the last event that is older than a time. Times rise with ids
// but for clocks that were set back, which is near enough: take looks again.
func (s routes) before(ctx context.Context, at time.Time, head uint64) (uint64, error) {
	oldest, err := s.Store.Events(ctx, state.EventQuery{Limit: 1})
	if err != nil || len(oldest) == 0 {
		return head, err
	}
	low, high := oldest[0].Seq-1, head // the answer is within
	for low < high {
		mid := low + (high-low)/2
		next, err := s.Store.Events(ctx, state.EventQuery{After: mid, Limit: 1})
		if err != nil {
			return 0, err
		}
		if len(next) == 0 || !next[0].At.Before(at) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low, nil
}
