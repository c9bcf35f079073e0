package main

import (
	"context"
	"io"
	"net/http"

	"github.com/fusevm/fuse/internal/state"
)

// leading lets calls to hosts through only while this process owns the fleet,
// and cancels those under way when it does not any more.
type leading struct {
	next  http.RoundTripper
	store *state.Store
}

// RoundTrip implements http.RoundTripper.
func (l leading) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, _, _, _, err := l.store.Fence(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	life := l.store.Life()
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	end := func() {
		stop()
		cancel(nil)
	}
	resp, err := l.next.RoundTrip(r.WithContext(ctx))
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
