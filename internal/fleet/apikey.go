package fleet

import (
	"regexp"
	"time"
)

// Role is what a principal may do, whatever it owns.
type Role string

// Roles of API keys; the server's own token is master, which no key can have.
const (
	RoleMaster   Role = "master"
	RoleAdmin    Role = "admin"    // everything, keys and the server included
	RoleOperator Role = "operator" // hosts, reconciling, every environment
	RoleUser     Role = "user"     // its owner's environments
	RoleRead     Role = "read"     // looks at its owner's environments
)

// KeyRoles are the roles that an API key may have, the strongest first.
var KeyRoles = []Role{RoleAdmin, RoleOperator, RoleUser, RoleRead}

// APIKey is a credential of the API. Only the hash of its secret is kept: the
// secret is 256 random bits, so that no list of guesses is worth hashing.
type APIKey struct {
	ID    string `json:"id"`
	Label string `json:"label,omitempty"` // for people; need not be unique
	Role  Role   `json:"role"`
	// Owner is the principal it acts for: what it makes belongs to that, and
	// role user and read see nothing else. Keys may share an owner.
	Owner      string    `json:"owner"`
	SecretHash []byte    `json:"secret_hash"` // SHA-256
	CreatedBy  string    `json:"created_by"`  // actor
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"` // zero: never
	// LastUsedAt is coarse: it moves once an hour at most.
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"` // zero: not revoked
	RevokedBy  string    `json:"revoked_by,omitempty"`
}

// Usable reports whether the key is good at that time, and why it is not.
func (k *APIKey) Usable(now time.Time) (why string, ok bool) {
	switch {
	case !k.RevokedAt.IsZero():
		return "revoked", false
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return "expired", false
	}
	return "", true
}

// OwnerRule is what the name of an owner looks like.
var OwnerRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// OwnerMaster owns what the server's own token makes. No key acts for it.
const OwnerMaster = "master"
