package feed

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
)

// query is what somebody asks for of the log.
type query struct {
	selector events.Selector
	since    time.Time
	after    string // as it was given; empty: nothing was
	nothing  bool   // the caller may see nothing of what is asked for
}

// take reports whether the query takes e.
func (q *query) take(e *fleet.Event) bool {
	return !q.nothing && !e.At.Before(q.since) && q.selector.Match(e)
}

// parse reads a request. Whoever does not see everything sees its own.
func parse(r *web.Request) (q query, err error) {
	v := r.URL.Query()
	f := fleet.EventFilter{Entity: v.Get("entity"), VM: v.Get("vm"), Host: v.Get("host"), Owner: v.Get("owner"), Types: types(v)}
	if p := r.Principal(); !p.SeesAll() {
		q.nothing = !p.Sees(cmp.Or(f.Owner, p.Name))
		f.Owner = p.Name
	}
	if text := v.Get("since"); text != "" {
		if q.since, err = time.Parse(time.RFC3339, text); err != nil {
			return q, fleet.Invalid("since", "RFC 3339", "give a time such as 2026-01-31T12:00:00Z", "cannot be %.60q", text)
		}
	}
	q.after = cmp.Or(r.Header.Get("Last-Event-ID"), v.Get("after"))
	q.selector, err = events.Compile(f)
	return q, err
}

func types(v url.Values) (out []string) {
	for _, text := range v["type"] {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}
