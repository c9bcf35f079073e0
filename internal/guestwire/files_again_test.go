package guestwire_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// writer takes files and counts the calls that came to an end.
type writer struct {
	guestwirev1connect.UnimplementedGuestHandler
	took *int
}

func (w writer) WriteFiles(_ context.Context, stream *connect.ClientStream[guestwirev1.WriteFilesRequest]) (*connect.Response[guestwirev1.WriteFilesResponse], error) {
	for stream.Receive() {
		continue // what is received does not matter
	}
	if stream.Err() == nil {
		*w.took++
	}
	return connect.NewResponse(&guestwirev1.WriteFilesResponse{}), stream.Err()
}

// The connection of a guest that has just booted may break once; one that
// breaks again is the caller's to know.
func TestFilesAreWrittenOverASecondConnection(t *testing.T) {
	for broken, want := range map[int]fleet.Code{0: "", 1: "", 2: fleet.CodeUnavailable} {
		took, dials := 0, 0
		_, handler := guestwirev1connect.NewGuestHandler(writer{took: &took})
		srv := httptest.NewUnstartedServer(handler)
		srv.Config.Protocols = new(http.Protocols)
		srv.Config.Protocols.SetUnencryptedHTTP2(true)
		srv.Start()
		c := guestwire.NewClient(func(ctx context.Context) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
			if dials++; err == nil && dials <= broken {
				err = conn.Close() // it breaks as soon as it is used
			}
			return conn, err
		}, "x")
		err := c.WriteFiles(t.Context(), []fleet.GuestFile{{Path: "/a", Mode: 0o644, Data: []byte("x")}})
		if fleet.CodeOf(err) != want && !(err == nil && want == "") {
			t.Errorf("%d broken connections: %v", broken, err)
		}
		if wanted := map[bool]int{true: 1, false: 0}[want == ""]; took != wanted {
			t.Errorf("%d broken connections: written %d times", broken, took)
		}
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		srv.Close()
	}
}
