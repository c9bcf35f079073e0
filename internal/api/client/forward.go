package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/fusevm/fuse/internal/attachframe"
)

// PortConn is a connection to a port of a guest. Read and Write may be called
// at once, each by one caller.
type PortConn struct {
	conn *websocket.Conn
	ctx  context.Context //nolint:containedctx // of the connection
	rest []byte
	over bool
}

// DialPort connects to a TCP port of an environment's guest, by the server. The
// connection ends with ctx.
func (g Guest) DialPort(ctx context.Context, env string, port int) (*PortConn, error) {
	conn, _, err := socket(ctx, g.api, "v1/environments/"+url.PathEscape(env)+"/forward?port="+strconv.Itoa(port), attachframe.WebSocketProtocol)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(attachframe.HeaderSize + attachframe.MaxPayload)
	return &PortConn{conn: conn, ctx: ctx}, nil
}

// Read returns io.EOF once the guest has ended its direction; a connection that
// was cut before is another error.
func (c *PortConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.over {
			return 0, io.EOF
		}
		_, message, err := c.conn.Read(c.ctx)
		if err != nil {
			return 0, errors.Join(io.ErrUnexpectedEOF, err)
		}
		typ, payload, err := attachframe.NewReader(bytes.NewReader(message)).Next()
		if err != nil {
			return 0, err
		}
		if typ == attachframe.Stdout {
			c.rest, c.over = payload, len(payload) == 0
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Write sends bytes to the guest.
func (c *PortConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), attachframe.MaxPayload)]
		if err := c.send(piece); err != nil {
			return n, err
		}
		n, p = n+len(piece), p[len(piece):]
	}
	return n, nil
}

func (c *PortConn) send(p []byte) error {
	return c.conn.Write(c.ctx, websocket.MessageBinary, attachframe.Append(nil, attachframe.Stdin, p))
}

// CloseWrite ends our direction.
func (c *PortConn) CloseWrite() error { return c.send(nil) }

// Close ends the connection.
func (c *PortConn) Close() error { return c.conn.CloseNow() }
