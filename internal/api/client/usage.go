package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Usage is what all running environments take.
func (a *API) Usage(ctx context.Context) (list gen.UsageList, err error) {
	resp, err := a.raw.ListUsage(ctx)
	return list, decode(resp, err, &list)
}

// UsageOf is what one environment takes.
func (a *API) UsageOf(ctx context.Context, id string) (u gen.Usage, err error) {
	resp, err := a.raw.GetUsage(ctx, id)
	return u, decode(resp, err, &u)
}
