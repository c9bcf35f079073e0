package guest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// forwardPiece is the most bytes of the guest's that one frame holds.
const forwardPiece = 32 << 10

// forward leads a connection to a port of the guest. All that can fail has
// failed before the connection becomes one of frames.
func (s routes) forward(w http.ResponseWriter, r *web.Request) error {
	upgrade, err := upgradeOf(r.Request)
	if err != nil {
		return err
	}
	text := r.URL.Query().Get("port")
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > fleet.MaxPort {
		return fleet.Invalid("port", "1 to 65535", "name a port that a program of the guest listens at", "%.40q is not allowed", text)
	}
	session, err := s.open(r, "forward", map[string]string{"port": text})
	if err != nil {
		return err
	}
	defer session.Close()
	_, ctx, closeStream, err := s.Streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	guest, err := session.Dial(ctx, port)
	if err != nil {
		return session.Explain(ctx, err)
	}
	defer func() { _ = guest.Close() }() // it only lets go
	conn, err := upgrade(w, r)
	if errors.Is(err, errClosed) {
		return nil // answered, as far as there is somebody to answer
	}
	if err != nil {
		return err
	}
	r.Log.Info("port forwarded", "vm_id", session.VM.ID, "actor", r.Principal().Actor(), "port", port, "request_id", r.ID)
	joinPort(ctx, cancel, conn, guest)
	return nil
}

// joinPort moves bytes both ways until each direction has ended, or one is cut.
func joinPort(ctx context.Context, cancel context.CancelFunc, conn frameConn, guest provider.PortConn) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.close()
	defer context.AfterFunc(ctx, conn.close)()
	ended := make(chan struct{})
	reading.Go(func() {
		if toGuest(ctx, conn, guest) != nil {
			cancel() // the client has left, or the guest takes no more
			return
		}
		close(ended)
		// A client that leaves afterwards is noticed by the next read.
		for {
			if _, _, err := conn.next(ctx); err != nil {
				cancel()
				return
			}
		}
	})
	if fromGuest(ctx, conn, guest) != nil {
		cancel()
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
	cancel()
}

// toGuest passes on what the client sends until its empty frame.
func toGuest(ctx context.Context, conn frameConn, guest provider.PortConn) error {
	for {
		typ, payload, err := conn.next(ctx)
		switch {
		case err != nil:
			return err
		case typ != attachframe.Stdin:
		case len(payload) == 0:
			return guest.CloseWrite()
		default:
			if _, err := guest.Write(payload); err != nil {
				return err
			}
		}
	}
}

// fromGuest passes on what the guest sends, and an empty frame at its end.
func fromGuest(ctx context.Context, conn frameConn, guest provider.PortConn) error {
	buf := make([]byte, forwardPiece)
	var frame []byte
	for {
		n, err := guest.Read(buf)
		if n > 0 {
			frame = attachframe.Append(frame[:0], attachframe.Stdout, buf[:n])
			if err := conn.send(ctx, frame); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return conn.send(ctx, attachframe.Append(frame[:0], attachframe.Stdout, nil))
		case err != nil:
			return err
		}
	}
}
