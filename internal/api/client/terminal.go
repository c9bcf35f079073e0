package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"strconv"
	"sync"

	"github.com/coder/websocket"

	"github.com/fusevm/fuse/internal/attachframe"
)

// Terminal is an attached terminal. Its methods may be called at once, each by
// one caller.
type Terminal struct {
	conn *websocket.Conn
	ctx  context.Context //nolint:containedctx // of the connection
	keys *Keyboard
	// taken is how much the process had of what was typed before this
	// connection; below zero: a server or guest that does not say.
	taken int64
}

// Attach shows the terminal of a process from an offset of its output on; what
// is typed is keys's, of which the terminal learns what was taken. It ends with
// ctx.
func (g Guest) Attach(ctx context.Context, env, id string, offset int64, size attachframe.Size, keys *Keyboard) (*Terminal, error) {
	q := url.Values{"tty": {"1"}, "process": {id}, "offset": {strconv.FormatInt(offset, 10)}, "input": {keys.name}}
	if size, ok := size.Clamp(); ok {
		q.Set("rows", strconv.Itoa(size.Rows))
		q.Set("cols", strconv.Itoa(size.Cols))
	}
	conn, header, err := socket(ctx, g.api, "v1/environments/"+url.PathEscape(env)+"/attach?"+q.Encode(), attachframe.WebSocketProtocol)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(attachframe.HeaderSize + attachframe.MaxPayload)
	taken, err := strconv.ParseInt(header.Get(attachframe.InputHeader), 10, 64)
	if err != nil || taken < 0 {
		taken = -1
	}
	return &Terminal{conn: conn, ctx: ctx, keys: keys, taken: taken}, nil
}

// Next returns the next piece of output, or how the process ended.
func (t *Terminal) Next() ([]byte, *attachframe.ExitStatus, error) {
	for {
		_, message, err := t.conn.Read(t.ctx)
		if err != nil {
			return nil, nil, err
		}
		typ, payload, err := attachframe.NewReader(bytes.NewReader(message)).Next()
		switch {
		case err != nil:
			return nil, nil, err
		case typ == attachframe.Stdout:
			return payload, nil, nil
		case typ == attachframe.Taken:
			var in attachframe.Input
			if err := json.Unmarshal(payload, &in); err != nil {
				return nil, nil, err
			}
			t.keys.taken(in.Taken)
		case typ == attachframe.Exit:
			exit := &attachframe.ExitStatus{}
			return nil, exit, json.Unmarshal(payload, exit)
		}
	}
}

func (t *Terminal) send(p []byte) error {
	return t.conn.Write(t.ctx, websocket.MessageBinary, attachframe.Append(nil, attachframe.Stdin, p))
}

// Resize tells the terminal's size.
func (t *Terminal) Resize(size attachframe.Size) error {
	return t.conn.Write(t.ctx, websocket.MessageBinary, attachframe.AppendJSON(nil, attachframe.Resize, size))
}

// Close leaves the terminal; its process goes on.
func (t *Terminal) Close() { _ = t.conn.CloseNow() }

// Bounds of what is typed, in bytes.
const (
	// keysWindow waits to be taken before more is accepted.
	keysWindow = 1 << 20
	// keysPiece is sent at once.
	keysPiece = 32 << 10
)

// Keyboard is what is typed into a process, over as many terminals one after
// another as it takes: what a cut takes away is sent again, once.
type Keyboard struct {
	name string

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	buf     []byte        // not known to be taken
	at      int64         // where buf begins in all that was typed
	told    int64         // at, as the process counts
}

// NewKeyboard has a name of its own.
func NewKeyboard() *Keyboard {
	return &Keyboard{name: rand.Text(), changed: make(chan struct{})}
}

func (k *Keyboard) changedLocked() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// Type adds what was typed. It waits while too much is on its way.
func (k *Keyboard) Type(ctx context.Context, p []byte) error {
	full := func() bool { return len(k.buf) >= keysWindow }
	for len(p) > 0 {
		if err := k.await(ctx, full); err != nil {
			return err
		}
		k.mu.Lock()
		n := min(len(p), max(keysWindow-len(k.buf), 0))
		k.buf = append(k.buf, p[:n]...)
		p = p[n:]
		k.changedLocked()
		k.mu.Unlock()
	}
	return nil
}

// Flush waits until all that was typed has been taken.
func (k *Keyboard) Flush(ctx context.Context) error {
	return k.await(ctx, func() bool { return len(k.buf) > 0 })
}

// await waits while something holds.
func (k *Keyboard) await(ctx context.Context, holds func() bool) error {
	for {
		k.mu.Lock()
		wait, over := k.changed, !holds()
		k.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// taken forgets what the process has.
func (k *Keyboard) taken(total int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := min(max(total-k.told, 0), int64(len(k.buf)))
	k.buf = k.buf[n:]
	k.at, k.told = k.at+n, k.told+n
	k.changedLocked()
}

// Send sends what is typed to a terminal, first what was not taken over the one
// before, until ctx or the connection ends. One Send runs at a time.
func (k *Keyboard) Send(ctx context.Context, t *Terminal) error {
	if t.taken >= 0 {
		k.taken(t.taken)
		k.mu.Lock()
		k.told = t.taken // less than was told before: the process has forgotten this keyboard
		k.mu.Unlock()
	}
	k.mu.Lock()
	sent := k.at
	k.mu.Unlock()
	for {
		if err := k.await(ctx, func() bool { return k.at+int64(len(k.buf)) <= sent }); err != nil {
			return err
		}
		k.mu.Lock()
		sent = max(sent, k.at)
		rest := k.buf[sent-k.at:]
		piece := bytes.Clone(rest[:min(len(rest), keysPiece)])
		k.mu.Unlock()
		if err := t.send(piece); err != nil {
			return err
		}
		sent += int64(len(piece))
		if t.taken < 0 { // nobody will tell
			k.mu.Lock()
			total := k.told + int64(len(piece))
			k.mu.Unlock()
			k.taken(total)
		}
	}
}
