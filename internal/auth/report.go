package auth

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/fusevm/fuse/internal/fleet"
)

// Refusals become events at most this often; the rest is counted.
const (
	reportRate  = rate.Limit(1) // a second
	reportBurst = 10
	maxPathText = 200
)

// Refusal is what an event of a refused request carries. Suppressed counts the
// refusals of its kind since the event before that became none.
type Refusal struct {
	Remote     string `json:"remote"`
	Method     string `json:"method"`
	Path       string `json:"path"`
	RequestID  string `json:"request_id,omitempty"`
	Suppressed int64  `json:"suppressed,omitempty"`
}

// Reporter turns refused requests into events, so many a second and no more.
type Reporter struct {
	kinds map[string]*kind
}

type kind struct {
	limit      *rate.Limiter
	suppressed atomic.Int64
}

// NewReporter makes a Reporter for auth.failed and ip.rejected.
func NewReporter() *Reporter {
	r := &Reporter{kinds: map[string]*kind{}}
	for _, k := range []string{fleet.EventAuthFailed, fleet.EventIPRejected} {
		r.kinds[k] = &kind{limit: rate.NewLimiter(reportRate, reportBurst)}
	}
	return r
}

// Report returns the event to record for a refused request; ok is false when
// there were too many of late and this one was only counted.
func (r *Reporter) Report(eventType string, req *http.Request, requestID string) (ev fleet.Event, ok bool) {
	k := r.kinds[eventType]
	if k == nil {
		return fleet.Event{}, false
	}
	if !k.limit.Allow() {
		k.suppressed.Add(1)
		return fleet.Event{}, false
	}
	path := req.URL.Path
	path = strings.ToValidUTF8(path[:min(len(path), maxPathText)], "")
	payload, err := json.Marshal(Refusal{
		Remote: remote(req), Method: req.Method[:min(len(req.Method), 16)], Path: path,
		RequestID: requestID, Suppressed: k.suppressed.Swap(0),
	})
	if err != nil {
		return fleet.Event{}, false
	}
	return fleet.Event{
		EntityType: fleet.EntityAuth, EntityID: remote(req), Type: eventType, Payload: payload,
		Reason: &fleet.Reason{Actor: "address:" + remote(req), Rule: fleet.RuleRefused},
	}, true
}

func remote(r *http.Request) string {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return peer.Addr().Unmap().String()
	}
	return "unix"
}
