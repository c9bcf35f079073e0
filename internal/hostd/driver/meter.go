package driver

import (
	"context"

	"github.com/fusevm/fuse/internal/fleet"
)

// Meter is an Instance that says what its VM has taken of the host.
type Meter interface {
	Usage(ctx context.Context) (fleet.Usage, error)
}

// Limiter is an Instance whose limits can be changed while it runs. They are
// durable before they hold, so that whoever adopts the VM keeps to them.
type Limiter interface {
	SetLimits(ctx context.Context, l fleet.ResourceLimits) error
}
