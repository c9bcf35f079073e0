package guest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/fleet"
)

// rawConn is a connection of bare frames.
type rawConn struct {
	net.Conn
	frames *attachframe.Reader
}

// hijack makes the connection one of bare frames.
func hijack(w http.ResponseWriter, _ *web.Request) (frameConn, error) {
	if err := leads(w); err != nil {
		return nil, err
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fleet.Wrap(fleet.CodeInvalidArgument, err, "this connection cannot be upgraded").
			With(fleet.DetailRemedy, "ask over HTTP/1.1")
	}
	if ww, ok := w.(*web.Writer); ok {
		ww.Status, ww.Stream = http.StatusSwitchingProtocols, true
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		_ = conn.Close()
		return nil, errClosed
	}
	c := &rawConn{conn, attachframe.NewReader(buffered(rw.Reader, conn))}
	hello := fmt.Sprintf("HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n", attachframe.Protocol)
	if taken := w.Header().Get(attachframe.InputHeader); taken != "" {
		hello += attachframe.InputHeader + ": " + taken + "\r\n"
	}
	hello += "\r\n"
	if err := c.send(context.Background(), []byte(hello)); err != nil {
		_ = conn.Close()
		return nil, errClosed
	}
	return c, nil
}

// buffered reads first what the server had read ahead.
func buffered(r *bufio.Reader, conn net.Conn) io.Reader {
	if n := r.Buffered(); n > 0 {
		ahead, err := r.Peek(n)
		if err == nil {
			return io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), conn)
		}
	}
	return conn
}

func (c *rawConn) next(context.Context) (attachframe.Type, []byte, error) { return c.frames.Next() }

func (c *rawConn) send(_ context.Context, frame []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err := c.Write(frame)
	return err
}

func (c *rawConn) ping(context.Context) error { return nil } // the protocol has none; TCP's own finds a dead client

func (c *rawConn) close() { _ = c.Conn.Close() }

// socketConn is a WebSocket whose binary messages hold a frame each.
type socketConn struct{ *websocket.Conn }

// acceptWebSocket makes the connection a WebSocket. Pages of other sites are
// refused, whatever cookie they bring.
func acceptWebSocket(w http.ResponseWriter, r *web.Request) (frameConn, error) {
	if err := leads(w); err != nil {
		return nil, err
	}
	conn, err := websocket.Accept(w, r.Request, &websocket.AcceptOptions{Subprotocols: []string{attachframe.WebSocketProtocol}})
	if err != nil {
		return nil, errClosed // it has been answered
	}
	if ww, ok := w.(*web.Writer); ok {
		ww.Status, ww.Stream = http.StatusSwitchingProtocols, true
	}
	conn.SetReadLimit(attachframe.HeaderSize + attachframe.MaxPayload)
	return socketConn{conn}, nil
}

func (c socketConn) next(ctx context.Context) (attachframe.Type, []byte, error) {
	_, message, err := c.Read(ctx)
	if err != nil {
		return 0, nil, err
	}
	return attachframe.NewReader(bytes.NewReader(message)).Next()
}

func (c socketConn) send(ctx context.Context, frame []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return c.Write(ctx, websocket.MessageBinary, frame)
}

func (c socketConn) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return c.Ping(ctx)
}

func (c socketConn) close() { _ = c.Close(websocket.StatusNormalClosure, "") }
