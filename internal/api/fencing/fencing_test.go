package fencing_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/api/fencing"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
)

type purger struct {
	asked string
	err   error
}

func (p *purger) Purge(_ context.Context, id, fleetID, _ string, force bool) (hosts.Purged, error) {
	p.asked = strings.Join([]string{id, fleetID, map[bool]string{true: "forced"}[force]}, " ")
	return hosts.Purged{Destroyed: 2}, p.err
}

func TestPurge(t *testing.T) {
	for name, tt := range map[string]struct {
		body  string
		err   error
		code  fleet.Code
		asked string
		want  string
	}{
		"plain":    {body: `{"fleet_id":"F"}`, asked: "h1 F ", want: `{"destroyed":2,"failed":0}`},
		"forced":   {body: `{"fleet_id":"F","force":true}`, asked: "h1 F forced", want: `{"destroyed":2,"failed":0}`},
		"no fleet": {body: `{}`, code: fleet.CodeInvalidArgument},
		"no JSON":  {body: `{`, code: fleet.CodeInvalidArgument},
		"refused":  {body: `{"fleet_id":"F"}`, err: fleet.Errorf(fleet.CodeConflict, "it is led"), code: fleet.CodeConflict, asked: "h1 F "},
	} {
		t.Run(name, func(t *testing.T) {
			p := &purger{err: tt.err}
			route := fencing.Routes(p, idempotency.New(nil))[0]
			w := httptest.NewRecorder()
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/hosts/h1/purge", nil)
			err := route.Handle(w, &web.Request{Request: req, Route: &route, Param: "h1", Payload: []byte(tt.body), Log: slog.New(slog.DiscardHandler)})
			if fleet.CodeOf(err) != tt.code || p.asked != tt.asked {
				t.Fatalf("%v, asked %q", err, p.asked)
			}
			if got := strings.TrimSpace(w.Body.String()); err == nil && got != tt.want {
				t.Errorf("answered %q", got)
			}
		})
	}
}
