package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/amend"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
)

// Amender changes living environments.
type Amender interface {
	Amend(ctx context.Context, id, actor string, r amend.Request) error
}

func (s environmentRoutes) amendEnvironment(w http.ResponseWriter, r *web.Request) error {
	var body gen.AmendEnvironment
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req := amend.Request{Tags: body.Tags, Secrets: body.Secrets}
	if body.Limits != nil {
		req.Limits = new(toLimits(*body.Limits))
	}
	if body.Expose != nil {
		req.Expose = []fleet.ExposeSpec{} // an empty list is one, too
		for _, e := range *body.Expose {
			req.Expose = append(req.Expose, fleet.ExposeSpec{Port: e.Port, As: e.As, Protocol: fleet.Protocol(e.Protocol), HostPort: e.HostPort})
		}
	}
	for _, f := range []struct {
		name string
		from *int64
		to   **time.Duration
	}{
		{"max_runtime_seconds", body.MaxRuntimeSeconds, &req.MaxRuntime},
		{"idle_timeout_seconds", body.IdleTimeoutSeconds, &req.IdleTimeout},
	} {
		if f.from == nil {
			continue
		}
		d, err := seconds(f.name, *f.from)
		if err != nil {
			return err
		}
		*f.to = &d
	}
	if err := s.cfg.Amender.Amend(r.Context(), r.Param, r.Principal().Actor(), req); err != nil {
		return err
	}
	return s.getEnvironment(w, r)
}

// tagged reports whether tags hold everything wanted: KEY=VALUE, or KEY for any
// value.
func tagged(tags map[string]string, wanted []string) bool {
	for _, want := range wanted {
		k, v, exact := strings.Cut(want, "=")
		if got, ok := tags[k]; !ok || exact && got != v {
			return false
		}
	}
	return true
}
