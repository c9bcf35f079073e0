package api

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

type fakeRotator struct {
	calls atomic.Int32
	err   error
	actor string
}

func (f *fakeRotator) Rotate(_ context.Context, _, actor string) error {
	f.calls.Add(1)
	f.actor = actor
	return f.err
}

func TestRotateToken(t *testing.T) {
	rotator := &fakeRotator{}
	keys := &ring{}
	w := newWorld(t, withKeys(keys), func(c *Config, _ *auth.Config, _ *state.Config) { c.Rotator = rotator })
	w.addHosts("h1")
	w.add("t1")
	const target = "/v1/environments/fuse-t1?action=rotate-token"
	rec := w.call(http.MethodPost, target, "", "Idempotency-Key", "once")
	w.want(rec, http.StatusNoContent, "")
	if rec.Body.Len() > 0 || rotator.actor != fleet.ActorMaster {
		t.Errorf("body %q, actor %q", rec.Body, rotator.actor)
	}
	w.want(w.call(http.MethodPost, target, "", "Idempotency-Key", "once"), http.StatusNoContent, "")
	if n := rotator.calls.Load(); n != 1 {
		t.Errorf("rotated %d times for one key", n)
	}
	_, other := keys.issue(fleet.RoleUser, "x")
	w.want(w.call(http.MethodPost, target, "", "Authorization", other), http.StatusNotFound, fleet.CodeNotFound)
	for code, status := range map[fleet.Code]int{
		fleet.CodeConflict: http.StatusConflict, fleet.CodeUnavailable: http.StatusServiceUnavailable, fleet.CodeNotFound: http.StatusNotFound,
	} {
		rotator.err = fleet.Errorf(code, "no")
		w.want(w.call(http.MethodPost, target, ""), status, code)
	}
	w.want(newWorld(t).call(http.MethodPost, target, ""), http.StatusNotImplemented, fleet.CodeUnimplemented)
}
