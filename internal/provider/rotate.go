package provider

import "context"

// Rotator is implemented by environments whose guest can be given another token
// and certificate (seed: TokenSetter). When it returns nil the new ones count
// and the old ones do not. Number rises by one with each rotation of a life: a
// repeat of the last one is success, an earlier one is refused. Only token,
// certificate and key of the credentials count.
type Rotator interface {
	Rotate(ctx context.Context, number int64, c Credentials) error
}
