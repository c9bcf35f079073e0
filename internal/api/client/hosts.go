package client

import (
	"bytes"
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Hosts are the verbs of a host's life.
type Hosts struct{ *API }

// Drain begins to empty a host. A nil GraceSeconds and a zero deadline are the
// server's defaults.
func (h Hosts) Drain(ctx context.Context, id string, grace *int64, deadline int64) error {
	return h.act(ctx, id, "drain", gen.ActOnHost{GraceSeconds: grace, DeadlineSeconds: deadline})
}

// CancelDrain stops emptying a host.
func (h Hosts) CancelDrain(ctx context.Context, id string) error {
	return h.act(ctx, id, "cancel-drain", gen.ActOnHost{})
}

// Label sets and removes labels of a host.
func (h Hosts) Label(ctx context.Context, id string, set map[string]string, remove []string) error {
	return h.act(ctx, id, "label", gen.ActOnHost{Set: set, Remove: remove})
}

// Repin accepts another certificate of a host: the one with that fingerprint,
// or with "" the one whose holder proves that it has the host's token.
func (h Hosts) Repin(ctx context.Context, id, fingerprint string) error {
	return h.act(ctx, id, "repin", gen.ActOnHost{CertSha256: fingerprint})
}

func (h Hosts) act(ctx context.Context, id, action string, body gen.ActOnHost) error {
	resp, err := h.raw.ActOnHost(ctx, id, &gen.ActOnHostParams{Action: action}, body)
	return decode(resp, err, nil)
}

// Forget removes a host that will not come back; what was on it is lost.
func (h Hosts) Forget(ctx context.Context, id string) (out gen.ForgottenHost, err error) {
	resp, err := h.raw.ActOnHost(ctx, id, &gen.ActOnHostParams{Action: "forget"}, gen.ActOnHost{})
	return out, decode(resp, err, &out)
}

// Metrics returns what a host agent exports, in the Prometheus text format.
func (h Hosts) Metrics(ctx context.Context, id string) ([]byte, error) {
	resp, err := h.raw.GetHostMetrics(ctx, id)
	var out bytes.Buffer
	err = decode(resp, err, &out)
	return out.Bytes(), err
}

// CreateJoinToken makes a token with which hosts register themselves; its text
// is in the answer and never again.
func (h Hosts) CreateJoinToken(ctx context.Context, req gen.CreateJoinToken) (made gen.NewJoinToken, err error) {
	resp, err := h.raw.CreateJoinToken(ctx, &gen.CreateJoinTokenParams{}, req)
	return made, decode(resp, err, &made)
}

// JoinTokens returns the join tokens, the newest first.
func (h Hosts) JoinTokens(ctx context.Context) (list gen.JoinTokenList, err error) {
	resp, err := h.raw.ListJoinTokens(ctx)
	return list, decode(resp, err, &list)
}

// RevokeJoinToken ends a join token.
func (h Hosts) RevokeJoinToken(ctx context.Context, id string) error {
	resp, err := h.raw.RevokeJoinToken(ctx, id, &gen.RevokeJoinTokenParams{})
	return decode(resp, err, nil)
}
