package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Metering are the calls about what environments take.
type Metering struct{ API *API }

// List is what all running environments take.
func (m Metering) List(ctx context.Context) (list gen.UsageList, err error) {
	resp, err := m.API.raw.ListUsage(ctx)
	return list, decode(resp, err, &list)
}

// Of is what one environment takes.
func (m Metering) Of(ctx context.Context, id string) (one gen.Usage, err error) {
	resp, err := m.API.raw.GetUsage(ctx, id)
	return one, decode(resp, err, &one)
}
