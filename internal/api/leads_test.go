package api

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// A server that no longer leads says so instead of what it remembers, whatever
// the answer would have been; who asks nothing of the fleet is answered.
func TestNothingIsToldAfterTheLeadIsLost(t *testing.T) {
	var lost atomic.Bool
	w := newWorld(t, func(c *Config, _ *auth.Config, _ *state.Config) {
		c.Leads = func() error {
			if lost.Load() {
				return fleet.Wrap(fleet.CodeUnavailable, fleet.ErrNotLeader, "this server does not own the fleet any more")
			}
			return nil
		}
	})
	w.add("a")
	w.want(w.call("GET", "/v1/environments/fuse-a", ""), http.StatusOK, "")
	w.want(w.call("GET", "/v1/environments/fuse-b", ""), http.StatusNotFound, fleet.CodeNotFound)
	lost.Store(true)
	for _, path := range []string{"/v1/environments/fuse-a", "/v1/environments/fuse-b", "/v1/environments", "/v1/hosts"} {
		rec := w.call("GET", path, "")
		w.want(rec, http.StatusServiceUnavailable, fleet.CodeUnavailable)
		if length := rec.Header().Get("Content-Length"); length != strconv.Itoa(rec.Body.Len()) {
			t.Errorf("%s: length %s of another answer", path, length)
		}
	}
	rec := w.call("DELETE", "/v1/environments/fuse-a", "")
	w.want(rec, http.StatusServiceUnavailable, fleet.CodeUnavailable)
	w.want(w.call("GET", "/livez", ""), http.StatusOK, "")
}
