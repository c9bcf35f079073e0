package driver

import (
	"context"
	"crypto/subtle"
)

// Rotation is another token and certificate for a guest. Number rises by one
// with each rotation of a life: one that comes late is told by it.
type Rotation struct {
	Number  int64
	Token   string
	CertPEM []byte
	KeyPEM  []byte
}

// After compares a rotation with the guest's newest, which had the number last
// and gave it token: true if it is later, false if it is that one again, and else
// a *StaleRotationError. Another one of the same number is stale too: it comes
// from a store that was restored to a time before.
func (r Rotation) After(last int64, token string) (later bool, err error) {
	same := subtle.ConstantTimeCompare([]byte(r.Token), []byte(token)) == 1
	if r.Number < last || r.Number == last && !same {
		return false, &StaleRotationError{Number: r.Number, Last: last}
	}
	return r.Number > last, nil
}

// Rotator is an Instance whose guest's token and certificate can be replaced.
// What is to come is durable before the guest hears of it, so that whoever
// adopts the VM finds out which of the two it takes. A repeat of the last
// rotation is success; one that is not after it is a *StaleRotationError. The
// core never calls it twice at once for one VM.
type Rotator interface {
	Rotate(ctx context.Context, r Rotation) error
}

// StaleRotationError refuses a rotation that comes after a later one.
type StaleRotationError struct{ Number, Last int64 }

func (*StaleRotationError) Error() string { return "a later rotation has been done already" }
