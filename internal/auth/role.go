package auth

import (
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
)

// Verb is something that the API does for a caller.
type Verb string

// Verbs. Reading never changes anything; what a route does is in Rules.
const (
	ReadEnvironments  Verb = "environments.read"
	WriteEnvironments Verb = "environments.write" // make, use, change, end
	ReadSnapshots     Verb = "snapshots.read"
	WriteSnapshots    Verb = "snapshots.write"
	ReadPlaygrounds   Verb = "playgrounds.read"
	WritePlaygrounds  Verb = "playgrounds.write"
	ReadEvents        Verb = "events.read"
	ReadHosts         Verb = "hosts.read" // marquees too
	WriteHosts        Verb = "hosts.write"
	ReadReconcile     Verb = "reconcile.read" // dead letters too
	WriteReconcile    Verb = "reconcile.write"
	ReadWebhooks      Verb = "webhooks.read"
	WriteWebhooks     Verb = "webhooks.write"
	ReadMetrics       Verb = "metrics.read"
	ReadServer        Verb = "server.read"
	WriteServer       Verb = "server.write"
	ReadQuotas        Verb = "quotas.read"
	WriteQuotas       Verb = "quotas.write"
	ReadKeys          Verb = "keys.read"
	WriteKeys         Verb = "keys.write"
)

// matrix says which roles may do what. Admins may do all of it, and so may the
// holder of the server's own token.
var matrix = map[Verb][]fleet.Role{
	ReadEnvironments:  {fleet.RoleOperator, fleet.RoleUser, fleet.RoleRead},
	WriteEnvironments: {fleet.RoleOperator, fleet.RoleUser},
	ReadSnapshots:     {fleet.RoleOperator, fleet.RoleUser, fleet.RoleRead},
	WriteSnapshots:    {fleet.RoleOperator, fleet.RoleUser},
	ReadPlaygrounds:   {fleet.RoleOperator, fleet.RoleUser, fleet.RoleRead},
	WritePlaygrounds:  {fleet.RoleOperator, fleet.RoleUser},
	ReadEvents:        {fleet.RoleOperator, fleet.RoleUser, fleet.RoleRead},
	ReadHosts:         {fleet.RoleOperator},
	WriteHosts:        {fleet.RoleOperator},
	ReadReconcile:     {fleet.RoleOperator},
	WriteReconcile:    {fleet.RoleOperator},
	ReadWebhooks:      {fleet.RoleOperator},
	WriteWebhooks:     {fleet.RoleOperator},
	ReadMetrics:       {fleet.RoleOperator},
	ReadServer:        {fleet.RoleOperator},
	WriteServer:       {},
	ReadQuotas:        {fleet.RoleOperator, fleet.RoleUser, fleet.RoleRead},
	WriteQuotas:       {fleet.RoleOperator},
	ReadKeys:          {},
	WriteKeys:         {},
}

// Can reports whether the principal's role allows a verb. An unknown verb is
// for admins.
func (p Principal) Can(v Verb) bool {
	switch p.Role {
	case fleet.RoleMaster, fleet.RoleAdmin:
		return true
	}
	return slices.Contains(matrix[v], p.Role)
}

// SeesAll reports whether the principal's role reaches past its own objects.
func (p Principal) SeesAll() bool {
	switch p.Role {
	case fleet.RoleMaster, fleet.RoleAdmin, fleet.RoleOperator:
		return true
	}
	return false
}

// Sees reports whether an object of that owner exists for the principal. What
// does not is answered as if it were not there.
func (p Principal) Sees(owner string) bool { return p.SeesAll() || owner != "" && owner == p.Name }

// Refuse is the error for a verb that the principal's role does not allow.
func (p Principal) Refuse(v Verb) error {
	return fleet.Errorf(fleet.CodeForbidden, "a key of role %s may not do this", p.Role).
		With(fleet.DetailScope, string(v)).
		With(fleet.DetailRemedy, "use a key of another role; docs/operate/access.md lists what each may do")
}
