package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Credentials are the verbs of API keys and guests' tokens.
type Credentials struct{ *API }

// Keys returns all API keys, the newest first.
func (c Credentials) Keys(ctx context.Context) (list gen.KeyList, err error) {
	resp, err := c.raw.ListKeys(ctx)
	return list, decode(resp, err, &list)
}

// Key returns one API key.
func (c Credentials) Key(ctx context.Context, id string) (key gen.Key, err error) {
	resp, err := c.raw.GetKey(ctx, id)
	return key, decode(resp, err, &key)
}

// Create makes an API key; its text is in the answer and never again.
func (c Credentials) Create(ctx context.Context, req gen.CreateKey) (key gen.NewKey, err error) {
	resp, err := c.raw.CreateKey(ctx, req)
	return key, decode(resp, err, &key)
}

// Revoke ends an API key.
func (c Credentials) Revoke(ctx context.Context, id string) error {
	resp, err := c.raw.RevokeKey(ctx, id)
	return decode(resp, err, nil)
}

// RotateToken gives an environment's guest another token and certificate.
func (c Credentials) RotateToken(ctx context.Context, envID string) error {
	resp, err := c.raw.ActOnEnvironmentWithBody(ctx, envID, &gen.ActOnEnvironmentParams{Action: "rotate-token"}, "application/json", nil)
	return decode(resp, err, nil)
}
