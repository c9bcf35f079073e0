package sshdtest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Link forwards connections to a server and can be cut or held up.
type Link struct {
	Address string // 127.0.0.1:port

	listener net.Listener
	to       string
	left     atomic.Int64 // bytes that still come back; negative: all
	mu       sync.Mutex
	held     chan struct{} // not nil: nothing passes until it is closed
	refuse   bool
	accepted int
	conns    map[net.Conn]bool
	goes     sync.WaitGroup
}

// NewLink makes a link to a server until the test ends.
func NewLink(t testing.TB, to string) *Link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &Link{Address: l.Addr().String(), listener: l, to: to, conns: map[net.Conn]bool{}}
	k.left.Store(-1)
	k.goes.Go(k.accept)
	t.Cleanup(func() {
		l.Close()
		k.Release()
		k.Cut()
		k.goes.Wait()
	})
	return k
}

// CutAfter cuts every connection once n more bytes have come back.
func (k *Link) CutAfter(n int64) { k.left.Store(n) }

// Cut cuts every connection now; new ones pass.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		c.Close()
	}
}

// Refuse closes new connections at once, as long as it is on.
func (k *Link) Refuse(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = on
}

// Accepted counts the connections that were ever made.
func (k *Link) Accepted() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.accepted
}

// Open counts the connections that are open.
func (k *Link) Open() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.conns) / 2
}

// Hold lets nothing pass, without cutting anything, until Release.
func (k *Link) Hold() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = make(chan struct{})
	}
}

// Release ends a Hold.
func (k *Link) Release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held != nil {
		close(k.held)
		k.held = nil
	}
}

func (k *Link) accept() {
	for {
		in, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.mu.Lock()
		refuse := k.refuse
		k.accepted++
		k.mu.Unlock()
		if refuse {
			in.Close()
			continue
		}
		out, err := new(net.Dialer).DialContext(context.Background(), "tcp", k.to)
		if err != nil {
			in.Close()
			continue
		}
		k.mu.Lock()
		k.conns[in], k.conns[out] = true, true
		k.mu.Unlock()
		k.goes.Go(func() { k.forward(out, in, false) })
		k.goes.Go(func() { k.forward(in, out, true) })
	}
}

func (k *Link) forward(to, from net.Conn, back bool) {
	defer func() {
		to.Close()
		from.Close()
		k.mu.Lock()
		delete(k.conns, to)
		delete(k.conns, from)
		k.mu.Unlock()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		k.mu.Lock()
		held := k.held
		k.mu.Unlock()
		if held != nil {
			<-held
		}
		if back && k.left.Load() >= 0 {
			left := k.left.Add(int64(-n))
			if left < 0 {
				to.Write(buf[:max(int64(n)+left, 0)]) //nolint:errcheck // it is cut
				k.left.Store(0)
				return
			}
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}
