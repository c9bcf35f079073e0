package fleet

import "time"

// Setting is what the fleet is told or finds out while it runs; one field of
// it is set.
type Setting struct {
	Pauses     *Pauses          `json:"pauses,omitempty"`
	Encryption *EncryptionCheck `json:"encryption,omitempty"`
	JoinToken  *JoinToken       `json:"join_token,omitempty"`
	Forgotten  []ForgottenHost  `json:"forgotten,omitempty"`
	Quota      *Quota           `json:"quota,omitempty"`
}

// Quota is what one owner or API key may hold at a time, by dimension. A
// dimension that is missing has the server's default, NoLimit has none.
type Quota struct {
	Limits    map[string]int64 `json:"limits"`
	UpdatedBy string           `json:"updated_by"` // actor
	UpdatedAt time.Time        `json:"updated_at"`
}

// NoLimit is the limit of a dimension that has none, whatever the default.
const NoLimit = -1

// EncryptionCheck is a value that only the right key opens: it tells a wrong
// key also while nothing else is sealed.
type EncryptionCheck struct {
	KeyID  string `json:"key_id"`
	Sealed []byte `json:"sealed"`
}
