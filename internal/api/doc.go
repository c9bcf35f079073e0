// Package api is the HTTP edge of the control plane: routes, the wire's
// conventions, event streams. It decides nothing about environments or hosts;
// it translates between the wire, whose contract is api/openapi.yaml, and the
// services. docs/reference/api.md tells the conventions to callers,
// docs/design/api.md the reasons.
package api
