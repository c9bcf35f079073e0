package fleet

// Setting is what the fleet is told or finds out while it runs; one field of
// it is set.
type Setting struct {
	Pauses     *Pauses          `json:"pauses,omitempty"`
	Encryption *EncryptionCheck `json:"encryption,omitempty"`
}

// EncryptionCheck is a value that only the right key opens: it tells a wrong
// key also while nothing else is sealed.
type EncryptionCheck struct {
	KeyID  string `json:"key_id"`
	Sealed []byte `json:"sealed"`
}
