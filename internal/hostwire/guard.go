package hostwire

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Guard admits holders of the token that speak a version close enough, tells
// callers the host's version and release, and lets handlers stop their streams.
// Digests of the token are compared, so neither content nor length shows in the
// time it takes.
func Guard(token, release string, next http.Handler) http.Handler {
	want, own := sha256.Sum256([]byte(token)), Own(release)
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(shown))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		own.Stamp(w.Header())
		if r.Method != http.MethodGet {
			if _, err := Meet(own, PeerOf(r.Header)); err != nil {
				if errs.IsSupported(r) {
					_ = errs.Write(w, r, ToConnect(err)) // fails only if the caller is gone
				} else {
					http.Error(w, err.Error(), http.StatusNotImplemented)
				}
				return
			}
		}
		ctx := context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

type controllerKey struct{}

// StopReading ends a blocked read of the stream that a handler serves. It is
// called before the handler returns.
func StopReading(ctx context.Context) {
	if rc, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		_ = rc.SetReadDeadline(time.Unix(1, 0)) // unsupported only without HTTP/2, where streams are refused
	}
}

// partingTime is how long a call whose end has come may go on writing.
const partingTime = 3 * time.Second

// LimitWriting ends a write that the caller does not take, after a moment. It
// is called before the handler returns.
func LimitWriting(ctx context.Context) {
	if rc, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		_ = rc.SetWriteDeadline(time.Now().Add(partingTime)) // as above
	}
}
