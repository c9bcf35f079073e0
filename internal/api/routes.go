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
	return []route{
		{method: http.MethodGet, pattern: "/v1/environments", handle: s.listEnvironments},
		{method: http.MethodPost, pattern: "/v1/environments", bodyLimit: largeLimit, slow: true, handle: s.createEnvironment},
		{method: http.MethodGet, pattern: "/v1/environments/{id}", handle: s.getEnvironment},
		{method: http.MethodDelete, pattern: "/v1/environments/{id}", bodyLimit: bodyLimit, slow: true, handle: s.destroyEnvironment},
		{method: http.MethodPost, pattern: "/v1/environments/{id}", bodyLimit: largeLimit, slow: true, handle: s.actOnEnvironment},
		{method: http.MethodGet, pattern: "/v1/environments/{id}/events", slow: true, handle: s.streamEvents},
		{method: http.MethodGet, pattern: "/v1/environments/{id}/logs", handle: s.getLogs},
		{method: http.MethodGet, pattern: "/v1/hosts", handle: s.listHosts},
		{method: http.MethodPost, pattern: "/v1/hosts", bodyLimit: bodyLimit, slow: true, handle: s.registerHost},
		{method: http.MethodGet, pattern: "/v1/hosts/{id}", handle: s.getHost},
		{method: http.MethodDelete, pattern: "/v1/hosts/{id}", bodyLimit: bodyLimit, handle: s.removeHost},
		{method: http.MethodPost, pattern: "/v1/hosts/{id}", bodyLimit: bodyLimit, handle: s.actOnHost},
		{method: http.MethodGet, pattern: "/v1/version", access: byAnyone, handle: s.version},
		{method: http.MethodGet, pattern: "/health", access: byAnyone, handle: s.health},
		{method: http.MethodGet, pattern: "/livez", access: byAnyone, handle: s.health},
		{method: http.MethodGet, pattern: "/ready", access: byAnyone, handle: s.ready},
		{method: http.MethodGet, pattern: "/readyz", access: byAnyone, handle: s.ready},
		{method: http.MethodGet, pattern: "/metrics", access: s.metricsAccess(), handle: s.metrics},
		{method: http.MethodGet, pattern: "/openapi.json", access: byNobody, handle: s.openAPI},
		{method: http.MethodPost, pattern: "/login", access: byNobody, bodyLimit: loginLimit, handle: s.login},
		{method: http.MethodPost, pattern: "/logout", access: byNobody, bodyLimit: loginLimit, handle: s.logout},
	}
}

func (s *Server) metricsAccess() access {
	if s.cfg.MetricsOpen {
		return byAnyone
	}
	return byToken
}
