package serving

import (
	"context"
	"io"
	"net/http"

	"github.com/fusevm/fuse/internal/state"
)

// Leading lets calls to hosts through only while this process owns the fleet,
// and cancels those under way when it does not any more.
type Leading struct {
	Next  http.RoundTripper
	Store *state.Store
}

// RoundTrip implements http.RoundTripper.
func (l Leading) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, _, _, _, err := l.Store.Fence(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	life := l.Store.Life()
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	end := func() {
		stop()
		cancel(nil)
	}
	resp, err := l.Next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = &endingBody{resp.Body, end}
	return resp, nil
}

// endingBody frees what a call holds when its answer has been read or given up.
type endingBody struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (b *endingBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}
