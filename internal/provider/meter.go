package provider

import (
	"context"

	"github.com/fusevm/fuse/internal/fleet"
)

// Meter is implemented by providers whose host says what its VMs take. A host
// that cannot answers fleet.CodeUnimplemented.
type Meter interface {
	// Usage is that of those lives which could be read.
	Usage(ctx context.Context, refs []Ref) ([]fleet.Usage, error)
}

// Limiter is implemented by environments whose limits can be changed while
// they run. A repeat changes nothing.
type Limiter interface {
	SetLimits(ctx context.Context, l fleet.ResourceLimits) error
}

// SetLimits is an environment's SetLimits.
func SetLimits(ctx context.Context, env Environment, l fleet.ResourceLimits) error {
	if e, ok := env.(Limiter); ok {
		return e.SetLimits(ctx, l)
	}
	return fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s changes no limits of what runs", env.Name()).
		With(fleet.DetailScope, "limits").With(fleet.DetailRemedy, "update the host agent, or create the environment anew")
}
