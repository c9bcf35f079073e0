package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// ServerStatus says which server leads.
func (a *API) ServerStatus(ctx context.Context) (s gen.ServerStatus, err error) {
	resp, err := a.raw.GetServer(ctx)
	return s, decode(resp, err, &s)
}
