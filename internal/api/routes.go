package api

import "net/http"

// Body limits. Creates and commands carry files, secrets and input.
const (
	loginLimit = 4 << 10
	bodyLimit  = 64 << 10
	largeLimit = 1 << 20
)

// routes is every route there is; a test holds it to api/openapi.yaml.
func (s *Server) routes() []route {
	env, streams, host, self := environmentRoutes{s}, environmentStreams{s}, hostRoutes{s}, serverRoutes{s}
	return []route{
		{method: http.MethodGet, pattern: "/v1/environments", handle: env.listEnvironments},
		{method: http.MethodPost, pattern: "/v1/environments", bodyLimit: largeLimit, slow: true, handle: env.createEnvironment},
		{method: http.MethodGet, pattern: "/v1/environments/{id}", handle: env.getEnvironment},
		{method: http.MethodDelete, pattern: "/v1/environments/{id}", bodyLimit: bodyLimit, slow: true, handle: env.destroyEnvironment},
		{method: http.MethodPost, pattern: "/v1/environments/{id}", bodyLimit: largeLimit, slow: true, handle: env.actOnEnvironment},
		{method: http.MethodGet, pattern: "/v1/environments/{id}/events", slow: true, handle: streams.streamEvents},
		{method: http.MethodGet, pattern: "/v1/environments/{id}/logs", handle: env.getLogs},
		{method: http.MethodGet, pattern: "/v1/hosts", handle: host.listHosts},
		{method: http.MethodPost, pattern: "/v1/hosts", bodyLimit: bodyLimit, slow: true, handle: host.registerHost},
		{method: http.MethodGet, pattern: "/v1/hosts/{id}", handle: host.getHost},
		{method: http.MethodDelete, pattern: "/v1/hosts/{id}", bodyLimit: bodyLimit, handle: host.removeHost},
		{method: http.MethodPost, pattern: "/v1/hosts/{id}", bodyLimit: bodyLimit, handle: host.actOnHost},
		{method: http.MethodGet, pattern: "/v1/version", access: byAnyone, handle: self.version},
		{method: http.MethodGet, pattern: "/health", access: byAnyone, handle: self.health},
		{method: http.MethodGet, pattern: "/livez", access: byAnyone, handle: self.health},
		{method: http.MethodGet, pattern: "/ready", access: byAnyone, handle: self.ready},
		{method: http.MethodGet, pattern: "/readyz", access: byAnyone, handle: self.ready},
		{method: http.MethodGet, pattern: "/metrics", access: s.metricsAccess(), handle: self.metrics},
		{method: http.MethodGet, pattern: "/openapi.json", access: byNobody, handle: self.openAPI},
		{method: http.MethodPost, pattern: "/login", access: byNobody, bodyLimit: loginLimit, handle: self.login},
		{method: http.MethodPost, pattern: "/logout", access: byNobody, bodyLimit: loginLimit, handle: self.logout},
	}
}

func (s *Server) metricsAccess() access {
	if s.cfg.MetricsOpen {
		return byLocal
	}
	return byToken
}
