package webhooks

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Poster sends single messages that are signed and guarded like those of
// webhooks, for who keeps a queue of its own.
type Poster struct {
	client       *http.Client
	allowPrivate bool
}

// NewPoster makes a Poster.
func NewPoster(allowPrivate bool, timeout time.Duration) *Poster {
	return &Poster{newClient(allowPrivate, timeout), allowPrivate}
}

// Check refuses an address that cannot be a receiver.
func (p *Poster) Check(url string) error { return checkURL(url, p.allowPrivate) }

// Secret checks a secret, or makes one if it is empty.
func (*Poster) Secret(given string) (string, error) {
	if given == "" {
		return newSecret()
	}
	_, err := secretKey(given)
	return given, err
}

// Shown is an address without what may be secret in it.
func (*Poster) Shown(url string) string { return shown(url) }

// Post sends one message. Its error tells nothing secret; one of code forbidden
// is the receiver's, by which trying again is of no use.
func (p *Poster) Post(ctx context.Context, url, id, secret string, body []byte) error {
	key, err := secretKey(secret)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the address cannot be used")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "fuse-notifications/1")
	sign(r.Header, id, time.Now(), body, [][]byte{key})
	resp, err := p.client.Do(r)
	if err != nil {
		return fleet.Errorf(fleet.CodeUnavailable, "%s", reasonOf(err))
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) // so that the connection can be used again
	switch {
	case resp.StatusCode/100 == 2:
		return nil
	case resp.StatusCode == http.StatusGone:
		return fleet.Errorf(fleet.CodeForbidden, "answered %d, which means that it wants no more", resp.StatusCode)
	}
	return fleet.Errorf(fleet.CodeUnavailable, "answered %d", resp.StatusCode)
}

// Close ends idle connections.
func (p *Poster) Close() { p.client.CloseIdleConnections() }
