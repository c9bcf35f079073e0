package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/provider"
)

// FirstContact returns the fingerprint of the certificate of a host that proves
// that it has the token, which is not sent; "" for one that cannot but shows a
// certificate that this machine trusts. The error tells a refused token and
// silence apart as those of calls do.
func FirstContact(ctx context.Context, url, token string) (string, error) {
	fingerprint, err := hostwire.FirstContact(ctx, url, token)
	var fe *fleet.Error
	switch {
	case err == nil || !errors.As(err, &fe):
		return fingerprint, err
	case errors.Is(err, hostwire.ErrWrongToken):
		err = provider.ErrUnauthorized
	default:
		err = errors.Join(provider.ErrNoAnswer, err)
	}
	wrapped := fleet.Wrap(fe.Code, err, fe.Message)
	wrapped.Details = fe.Details
	return "", wrapped
}

// maxMetrics bounds the figures of a host, in bytes.
const maxMetrics = 4 << 20

// Metrics returns what the host exports; see provider.MetricsReader.
func (p *Provider) Metrics(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("metrics of the host: %w", err)
	}
	resp, err := p.control.Do(req)
	if err != nil {
		return nil, callError(ctx, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics+1))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case err != nil:
		return nil, callError(ctx, err)
	case resp.StatusCode == http.StatusUnauthorized:
		return nil, fleet.Wrap(fleet.CodeUnavailable, provider.ErrUnauthorized, "the host refused the token")
	case resp.StatusCode != http.StatusOK:
		return nil, fleet.Errorf(fleet.CodeUnavailable, "the host answered with status %d", resp.StatusCode)
	case len(body) > maxMetrics:
		return nil, fleet.Errorf(fleet.CodeUnavailable, "the host's figures are more than %d bytes", maxMetrics)
	}
	return body, nil
}
