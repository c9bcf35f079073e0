package fleet

import "time"

// HostDrain is a drain of a host that is under way. It lies in the host's row,
// so that the next process goes on with it.
type HostDrain struct {
	ID        string    `json:"id"`
	Actor     string    `json:"actor"`
	StartedAt time.Time `json:"started_at"`
	// Deadline is when what is still there is ended, whatever it is doing.
	Deadline time.Time `json:"deadline"`
	// Grace is the time from the end of an environment's own drain to its end.
	Grace time.Duration `json:"grace"`
	// Was is the host's state before, to which a cancelled drain goes back.
	Was   HostState `json:"was"`
	Total int       `json:"total"` // environments that were there at its start
}

// JoinToken lets hosts register themselves. Of the token itself only what
// checks a proof of it is kept, with which nobody can join.
type JoinToken struct {
	ID        string    `json:"id"`
	StoredKey []byte    `json:"stored_key"`
	ServerKey []byte    `json:"server_key"`
	Owner     string    `json:"owner"` // of the hosts that join with it
	CreatedBy string    `json:"created_by"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
	MaxUses   int       `json:"max_uses"`
	Uses      []JoinUse `json:"uses,omitempty"`
	// HostID, Region and Labels are what a host that joins gets, where set.
	HostID string            `json:"host_id,omitempty"`
	Region string            `json:"region,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// JoinUse is one host that joined with a token. The same host that tries again,
// because it did not hear the answer, is no second use.
type JoinUse struct {
	HostID     string    `json:"host_id"`
	RegistryID string    `json:"registry_id"`
	At         time.Time `json:"at"`
}

// ForgottenHost is a host that was given up for lost. If it comes back, what it
// runs is compared with what was decided before it takes anything new.
type ForgottenHost struct {
	ID         string    `json:"id"`
	RegistryID string    `json:"registry_id"`
	MachineID  string    `json:"machine_id,omitempty"`
	Actor      string    `json:"actor"`
	At         time.Time `json:"at"`
	Lost       int       `json:"lost"` // environments that ended with it
}

// Details of the refusal of a certificate that is not the registered one.
const (
	// ReasonCertificate is the DetailReason of that refusal.
	ReasonCertificate = "certificate_changed"
	// DetailShown is the fingerprint that was shown instead.
	DetailShown = "certificate_shown"
)
