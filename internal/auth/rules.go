package auth

import "net/http"

// Object is what the {id} of a path names, where its owner decides who may
// know of it.
type Object string

// Objects with owners.
const (
	NoObject    Object = ""
	Environment Object = "environment"
	Snapshot    Object = "snapshot"
	Playground  Object = "playground"
	Schedule    Object = "trick schedule"
	Route       Object = "notification route"
)

// Rule is the verb of one route. Every route that asks for a token has one; one
// without is for admins only.
type Rule struct {
	Method, Pattern string
	Verb            Verb
	Object          Object
	// Lists is set where the answer holds many objects, of which the handler
	// shows those that the caller Sees. With an Object those are the lives of one
	// id, which may have had several owners.
	Lists bool
}

// Rules is the table of all routes.
var Rules = []Rule{
	{http.MethodGet, "/v1/environments", ReadEnvironments, NoObject, true},
	{http.MethodPost, "/v1/environments", WriteEnvironments, NoObject, false},
	{http.MethodGet, "/v1/environments/{id}", ReadEnvironments, Environment, false},
	{http.MethodPatch, "/v1/environments/{id}", WriteEnvironments, Environment, false},
	{http.MethodPost, "/v1/environments/{id}", WriteEnvironments, Environment, false},
	{http.MethodDelete, "/v1/environments/{id}", WriteEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/events", ReadEnvironments, Environment, true},
	{http.MethodGet, "/v1/environments/{id}/history", ReadEnvironments, Environment, true},
	{http.MethodGet, "/v1/environments/{id}/logs", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/console", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/usage", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/usage", ReadEnvironments, NoObject, true},
	{http.MethodGet, "/v1/environments/{id}/services", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/processes", ReadEnvironments, Environment, false},
	{http.MethodPost, "/v1/environments/{id}/processes", WriteEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/processes/{process}", ReadEnvironments, Environment, false},
	{http.MethodPost, "/v1/environments/{id}/processes/{process}", WriteEnvironments, Environment, false},
	{http.MethodDelete, "/v1/environments/{id}/processes/{process}", WriteEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/processes/{process}/output", ReadEnvironments, Environment, false},
	{http.MethodPut, "/v1/environments/{id}/processes/{process}/stdin", WriteEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/attach", WriteEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/forward", WriteEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/files", WriteEnvironments, Environment, false},
	{http.MethodPut, "/v1/environments/{id}/files", WriteEnvironments, Environment, false},
	{http.MethodPost, "/v1/environments/{id}/files", WriteEnvironments, Environment, false},
	{http.MethodDelete, "/v1/environments/{id}/files", WriteEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/files/stat", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/files/list", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/files/upload", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/files/watch", ReadEnvironments, Environment, false},
	{http.MethodGet, "/v1/environments/{id}/archive", WriteEnvironments, Environment, false},
	{http.MethodPut, "/v1/environments/{id}/archive", WriteEnvironments, Environment, false},
	{http.MethodPost, "/v1/environments/{id}/snapshots", WriteSnapshots, Environment, false},
	{http.MethodGet, "/v1/snapshots", ReadSnapshots, NoObject, true},
	{http.MethodGet, "/v1/snapshots/resolve", ReadSnapshots, NoObject, true},
	{http.MethodGet, "/v1/snapshots/{id}", ReadSnapshots, Snapshot, false},
	{http.MethodPost, "/v1/snapshots/{id}", WriteSnapshots, Snapshot, false},
	{http.MethodDelete, "/v1/snapshots/{id}", WriteSnapshots, Snapshot, false},
	{http.MethodGet, "/v1/events", ReadEvents, NoObject, true},

	{http.MethodGet, "/v1/webhooks", ReadWebhooks, NoObject, false},
	{http.MethodPost, "/v1/webhooks", WriteWebhooks, NoObject, false},
	{http.MethodGet, "/v1/webhooks/{id}", ReadWebhooks, NoObject, false},
	{http.MethodPatch, "/v1/webhooks/{id}", WriteWebhooks, NoObject, false},
	{http.MethodDelete, "/v1/webhooks/{id}", WriteWebhooks, NoObject, false},
	{http.MethodPost, "/v1/webhooks/{id}", WriteWebhooks, NoObject, false},
	{http.MethodGet, "/v1/webhooks/{id}/deliveries", ReadWebhooks, NoObject, false},

	{http.MethodGet, "/v1/hosts", ReadHosts, NoObject, false},
	{http.MethodPost, "/v1/hosts", WriteHosts, NoObject, false},
	{http.MethodGet, "/v1/hosts/{id}", ReadHosts, NoObject, false},
	{http.MethodPost, "/v1/hosts/{id}", WriteHosts, NoObject, false},
	{http.MethodDelete, "/v1/hosts/{id}", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/hosts/{id}/purge", WriteServer, NoObject, false},
	{http.MethodGet, "/v1/hosts/{id}/metrics", ReadMetrics, NoObject, false},
	{http.MethodGet, "/v1/host-join-tokens", ReadServer, NoObject, false},
	{http.MethodPost, "/v1/host-join-tokens", WriteServer, NoObject, false},
	{http.MethodDelete, "/v1/host-join-tokens/{id}", WriteServer, NoObject, false},

	{http.MethodGet, "/v1/server", ReadServer, NoObject, false},

	{http.MethodGet, "/v1/marquees", ReadPlaygrounds, NoObject, true},
	{http.MethodPost, "/v1/marquees", WriteHosts, NoObject, false},
	{http.MethodGet, "/v1/marquees/{id}", ReadPlaygrounds, NoObject, true},
	{http.MethodPost, "/v1/marquees/{id}", WriteHosts, NoObject, false},
	{http.MethodDelete, "/v1/marquees/{id}", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/marquees/{id}/adopt", WriteHosts, NoObject, false},
	{http.MethodGet, "/v1/marquees/{id}/sweep", ReadHosts, NoObject, true},
	{http.MethodPost, "/v1/marquees/{id}/sweep", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/marquees/{id}/restore", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/marquees/{id}/rescan", WriteHosts, NoObject, false},
	{http.MethodGet, "/v1/playgrounds", ReadPlaygrounds, NoObject, true},
	{http.MethodPost, "/v1/playgrounds", WritePlaygrounds, NoObject, false},
	{http.MethodPost, "/v1/playground-plans", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/playgrounds/{id}", ReadPlaygrounds, Playground, false},
	{http.MethodPost, "/v1/playgrounds/{id}", WritePlaygrounds, Playground, false},
	{http.MethodDelete, "/v1/playgrounds/{id}", WritePlaygrounds, Playground, false},
	{http.MethodPost, "/v1/playgrounds/{id}/extend", WritePlaygrounds, Playground, false},
	{http.MethodGet, "/v1/tricks", ReadPlaygrounds, NoObject, true},
	{http.MethodPost, "/v1/tricks", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/tricks/{id}", ReadPlaygrounds, Playground, false},
	{http.MethodPost, "/v1/tricks/{id}", WritePlaygrounds, Playground, false},
	{http.MethodDelete, "/v1/tricks/{id}", WritePlaygrounds, Playground, false},
	{http.MethodGet, "/v1/tricks/{id}/logs", ReadPlaygrounds, Playground, false},
	{http.MethodGet, "/v1/trick-schedules", ReadPlaygrounds, NoObject, true},
	{http.MethodPost, "/v1/trick-schedules", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/trick-schedules/{id}", ReadPlaygrounds, Schedule, false},
	{http.MethodPost, "/v1/trick-schedules/{id}", WritePlaygrounds, Schedule, false},
	{http.MethodDelete, "/v1/trick-schedules/{id}", WritePlaygrounds, Schedule, false},
	{http.MethodGet, "/v1/notification-routes", ReadPlaygrounds, NoObject, true},
	{http.MethodPost, "/v1/notification-routes", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/notification-routes/{id}", ReadPlaygrounds, Route, false},
	{http.MethodPost, "/v1/notification-routes/{id}", WritePlaygrounds, Route, false},
	{http.MethodDelete, "/v1/notification-routes/{id}", WritePlaygrounds, Route, false},
	{http.MethodGet, "/v1/notification-mail", ReadHosts, NoObject, false},
	{http.MethodPut, "/v1/notification-mail", WriteHosts, NoObject, false},
	{http.MethodDelete, "/v1/notification-mail", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/playground-branches", WritePlaygrounds, NoObject, false},
	{http.MethodPost, "/v1/playgrounds/{id}/branch", WritePlaygrounds, Playground, false},
	{http.MethodGet, "/v1/playground-secrets", ReadPlaygrounds, NoObject, true},
	{http.MethodPut, "/v1/playground-secrets", WritePlaygrounds, NoObject, false},
	{http.MethodDelete, "/v1/playground-secrets/{id}", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/git-hooks", ReadPlaygrounds, NoObject, true},
	{http.MethodPost, "/v1/git-hooks", WritePlaygrounds, NoObject, false},
	{http.MethodDelete, "/v1/git-hooks/{id}", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/playground-templates", ReadPlaygrounds, NoObject, true},
	{http.MethodPut, "/v1/playground-templates", WritePlaygrounds, NoObject, false},
	{http.MethodDelete, "/v1/playground-templates/{id}", WritePlaygrounds, NoObject, false},
	{http.MethodPost, "/v1/playground-templates/{id}", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/playground-previews", ReadPlaygrounds, NoObject, true},
	{http.MethodPut, "/v1/playground-previews", WritePlaygrounds, NoObject, false},
	{http.MethodDelete, "/v1/playground-previews/{id}", WritePlaygrounds, NoObject, false},
	{http.MethodGet, "/v1/playgrounds/{id}/explain", ReadPlaygrounds, Playground, false},
	{http.MethodGet, "/v1/playgrounds/{id}/logs", ReadPlaygrounds, Playground, false},
	{http.MethodGet, "/v1/playgrounds/{id}/exec", WritePlaygrounds, Playground, false},

	{http.MethodGet, "/v1/reconcile", ReadReconcile, NoObject, false},
	{http.MethodGet, "/v1/reconcile/plan", ReadReconcile, NoObject, false},
	{http.MethodPut, "/v1/reconcile/pause", WriteReconcile, NoObject, false},
	{http.MethodDelete, "/v1/reconcile/pause", WriteReconcile, NoObject, false},

	{http.MethodGet, "/v1/dead-letters", ReadReconcile, NoObject, false},
	{http.MethodDelete, "/v1/dead-letters", WriteReconcile, NoObject, false},
	{http.MethodGet, "/v1/dead-letters/{id}", ReadReconcile, NoObject, false},
	{http.MethodDelete, "/v1/dead-letters/{id}", WriteReconcile, NoObject, false},

	{http.MethodGet, "/v1/quotas", ReadQuotas, NoObject, true},
	{http.MethodGet, "/v1/quotas/{id}", ReadQuotas, NoObject, true},
	{http.MethodPatch, "/v1/quotas/{id}", WriteQuotas, NoObject, false},
	{http.MethodDelete, "/v1/quotas/{id}", WriteQuotas, NoObject, false},
	{http.MethodGet, "/v1/images", ReadHosts, NoObject, false},
	{http.MethodGet, "/v1/images/pulls", ReadHosts, NoObject, false},
	{http.MethodPost, "/v1/images/pull", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/images/remove", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/images/prune", WriteHosts, NoObject, false},
	{http.MethodPost, "/v1/schedule/explain", WriteEnvironments, NoObject, false},

	{http.MethodGet, "/v1/api-keys", ReadKeys, NoObject, false},
	{http.MethodPost, "/v1/api-keys", WriteKeys, NoObject, false},
	{http.MethodGet, "/v1/api-keys/{id}", ReadKeys, NoObject, false},
	{http.MethodDelete, "/v1/api-keys/{id}", WriteKeys, NoObject, false},

	{http.MethodGet, "/metrics", ReadMetrics, NoObject, false},
}

var rules = func() map[[2]string]Rule {
	m := make(map[[2]string]Rule, len(Rules))
	for _, r := range Rules {
		m[[2]string{r.Method, r.Pattern}] = r
	}
	return m
}()

// RuleOf returns the rule of a route. ok is false for one that the table does
// not know, and the rule is then one that only admins pass.
func RuleOf(method, pattern string) (r Rule, ok bool) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if r, ok = rules[[2]string{method, pattern}]; !ok {
		r = Rule{Method: method, Pattern: pattern, Verb: WriteServer}
	}
	return r, ok
}
