package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Keys returns all API keys, the newest first.
func (a *API) Keys(ctx context.Context) (list gen.KeyList, err error) {
	resp, err := a.raw.ListKeys(ctx)
	return list, decode(resp, err, &list)
}

// Key returns one API key.
func (a *API) Key(ctx context.Context, id string) (key gen.Key, err error) {
	resp, err := a.raw.GetKey(ctx, id)
	return key, decode(resp, err, &key)
}

// CreateKey makes an API key; its text is in the answer and never again.
func (a *API) CreateKey(ctx context.Context, req gen.CreateKey) (key gen.NewKey, err error) {
	resp, err := a.raw.CreateKey(ctx, req)
	return key, decode(resp, err, &key)
}

// RevokeKey ends an API key.
func (a *API) RevokeKey(ctx context.Context, id string) error {
	resp, err := a.raw.RevokeKey(ctx, id)
	return decode(resp, err, nil)
}
