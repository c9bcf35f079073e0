package api

import (
	"net/http"

	"github.com/fusevm/fuse/internal/api/web"
)

// Routes is every route there is; a test of cmd/fuse, which adds those of the
// other areas, holds it to api/openapi.yaml.
func (s *Server) Routes() []web.Route { return s.routes() }

func (s *Server) routes() []web.Route {
	env, host, self := environmentRoutes{s}, hostRoutes{s}, serverRoutes{s}
	routes := []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/environments", Handle: env.listEnvironments},
		{Method: http.MethodPost, Pattern: "/v1/environments", BodyLimit: web.LargeLimit, Slow: true, Handle: env.createEnvironment},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}", Handle: env.getEnvironment},
		{Method: http.MethodDelete, Pattern: "/v1/environments/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: env.destroyEnvironment},
		{Method: http.MethodPatch, Pattern: "/v1/environments/{id}", BodyLimit: web.LargeLimit, Handle: env.amendEnvironment},
		{Method: http.MethodPost, Pattern: "/v1/environments/{id}", BodyLimit: web.LargeLimit, Slow: true, Handle: env.actOnEnvironment},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/logs", Handle: env.getLogs},
		{Method: http.MethodGet, Pattern: "/v1/hosts", Handle: host.listHosts},
		{Method: http.MethodPost, Pattern: "/v1/hosts", BodyLimit: web.BodyLimit, Slow: true, Handle: host.registerHost},
		{Method: http.MethodGet, Pattern: "/v1/hosts/{id}", Handle: host.getHost},
		{Method: http.MethodDelete, Pattern: "/v1/hosts/{id}", BodyLimit: web.BodyLimit, Handle: host.removeHost},
		{Method: http.MethodPost, Pattern: "/v1/hosts/{id}", BodyLimit: web.BodyLimit, Handle: host.actOnHost},
		{Method: http.MethodGet, Pattern: "/v1/version", Access: web.ByAnyone, Handle: self.version},
		{Method: http.MethodGet, Pattern: "/health", Access: web.ByAnyone, Handle: self.health},
		{Method: http.MethodGet, Pattern: "/livez", Access: web.ByAnyone, Handle: self.health},
		{Method: http.MethodGet, Pattern: "/ready", Access: web.ByAnyone, Handle: self.ready},
		{Method: http.MethodGet, Pattern: "/readyz", Access: web.ByAnyone, Handle: self.ready},
		{Method: http.MethodGet, Pattern: "/metrics", Access: s.metricsAccess(), Handle: self.metrics},
		{Method: http.MethodGet, Pattern: "/openapi.json", Access: web.ByNobody, Handle: self.openAPI},
		{Method: http.MethodPost, Pattern: "/login", Access: web.ByNobody, BodyLimit: web.LoginLimit, Handle: self.login},
		{Method: http.MethodPost, Pattern: "/logout", Access: web.ByNobody, BodyLimit: web.LoginLimit, Handle: self.logout},
	}
	return append(routes, s.cfg.Extra...)
}

func (s *Server) metricsAccess() web.Access {
	if s.cfg.MetricsOpen {
		return web.ByLocal
	}
	return web.ByToken
}
