package rpc

import (
	"context"
	"net/http"
	"strings"

	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostwire"
)

// Bind ends ctx with a life; release ends the use.
func Bind(ctx, life context.Context) (bound context.Context, release func()) {
	bound, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return bound, func() { stop(); cancel(nil) }
}

// Forward passes a call on to a guest as it is, once reach has admitted it and
// found the guest and its life. Nothing is buffered here beyond a piece each
// way, and the call ends with the life.
func Forward(w http.ResponseWriter, r *http.Request, reach func(http.Header) (life context.Context, guest http.Handler, err error)) {
	path := strings.TrimPrefix(r.URL.Path, hostwire.ForwardPrefix)
	if !guestwire.Forwarded(path) {
		http.NotFound(w, r)
		return
	}
	defer hostwire.StopReading(r.Context())
	life, guest, err := reach(r.Header)
	if err != nil {
		hostwire.RefuseForward(w, r, err)
		return
	}
	ctx, release := Bind(r.Context(), life)
	defer release()
	told := make(chan struct{})
	stop := context.AfterFunc(life, func() { hostwire.LimitWriting(r.Context()); close(told) })
	defer func() {
		if !stop() { // not after the handler has returned
			<-told
		}
	}()
	on := r.WithContext(ctx)
	target := *r.URL
	target.Path = path
	on.URL = &target
	guest.ServeHTTP(w, on)
}
