package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Amend changes limits and tags of a living environment.
func (a *API) Amend(ctx context.Context, id string, req gen.AmendEnvironment) (env gen.Environment, err error) {
	resp, err := a.raw.AmendEnvironment(ctx, id, req)
	return env, decode(resp, err, &env)
}
