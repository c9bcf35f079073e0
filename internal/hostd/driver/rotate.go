package driver

import "context"

// Rotation is another token and certificate for a guest. Number rises by one
// with each rotation of a life: one that comes late is told by it.
type Rotation struct {
	Number  int64
	Token   string
	CertPEM []byte
	KeyPEM  []byte
}

// Rotator is an Instance whose guest's token and certificate can be replaced.
// What is to come is durable before the guest hears of it, so that whoever
// adopts the VM finds out which of the two it takes. A repeat of the last
// rotation is success; a lower number is a *StaleRotationError. The core never
// calls it twice at once for one VM.
type Rotator interface {
	Rotate(ctx context.Context, r Rotation) error
}

// StaleRotationError refuses a rotation that comes after a later one.
type StaleRotationError struct{ Number, Last int64 }

func (*StaleRotationError) Error() string { return "a later rotation has been done already" }
