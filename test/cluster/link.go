package cluster

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Link is a TCP connection point in front of another that can be cut, and that
// counts the HTTP/2 requests which pass.
type Link struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	freed chan struct{} // closed when cut ends
	conns map[*pipe]struct{}
}

// pipe is one connection through a link.
type pipe struct {
	link     *Link
	in, out  net.Conn
	mu       sync.Mutex
	requests int // HEADERS and DATA frames from the client
}

// NewLink makes a link to target.
func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &Link{l: l, target: target, conns: map[*pipe]struct{}{}, freed: make(chan struct{})}
	close(k.freed)
	k.wg.Go(k.accept)
	t.Cleanup(func() {
		k.Heal()
		l.Close()
		k.mu.Lock()
		for p := range k.conns {
			p.close()
		}
		k.mu.Unlock()
		k.wg.Wait()
	})
	return k
}

// Addr is where the link listens.
func (k *Link) Addr() string { return k.l.Addr().String() }

// Cut swallows everything from now on, both ways, as a broken network does: no
// connection is closed, none is refused.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.cut {
		k.cut, k.freed = true, make(chan struct{})
	}
}

// Heal ends a cut. What was under way when it came is lost: its connections are
// closed, as TCP closes them after a long silence.
func (k *Link) Heal() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		k.cut = false
		close(k.freed)
		for p := range k.conns {
			p.close()
		}
	}
}

func (k *Link) accept() {
	for {
		in, err := k.l.Accept()
		if err != nil {
			return
		}
		k.wg.Go(func() { k.serve(in) })
	}
}

func (k *Link) serve(in net.Conn) {
	k.pass()
	out, err := net.Dial("tcp", k.target) //nolint:noctx // closed with the link
	if err != nil {
		in.Close()
		return
	}
	p := &pipe{link: k, in: in, out: out}
	k.mu.Lock()
	k.conns[p] = struct{}{}
	k.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.copy(out, in, p.frames()) })
	both.Go(func() { p.copy(in, out, func([]byte) {}) })
	both.Wait()
	p.close()
	k.mu.Lock()
	delete(k.conns, p)
	k.mu.Unlock()
}

// pass waits while the link is cut.
func (k *Link) pass() {
	k.mu.Lock()
	freed := k.freed
	k.mu.Unlock()
	<-freed
}

func (p *pipe) close() {
	p.in.Close()
	p.out.Close()
}

func (p *pipe) copy(to, from net.Conn, look func([]byte)) {
	defer p.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.link.pass()
		if n > 0 {
			look(buf[:n])
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Frame types of HTTP/2 that carry requests.
const (
	frameData    = 0
	frameHeaders = 1
	frameHead    = 9
)

// frames reads the frames that a client sends.
func (p *pipe) frames() func([]byte) {
	var pending []byte
	skip := len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	return func(b []byte) {
		pending = append(pending, b...)
		for {
			if skip >= len(pending) {
				skip -= len(pending)
				pending = pending[:0]
				return
			}
			pending, skip = pending[skip:], 0
			if len(pending) < frameHead {
				return
			}
			if pending[3] == frameData || pending[3] == frameHeaders {
				p.mu.Lock()
				p.requests++
				p.mu.Unlock()
			}
			skip = frameHead + int(binary.BigEndian.Uint32(append([]byte{0}, pending[:3]...)))
		}
	}
}

// Watch counts the frames of requests that the process pid sends through the
// link from now on, over connections that it has now or makes later.
func (k *Link) Watch(t testing.TB, pid int) (sent func() int) {
	t.Helper()
	before := map[*pipe]int{}
	for _, p := range k.pipesOf(t, pid) {
		before[p] = p.count()
	}
	return func() int {
		t.Helper()
		n := 0
		for _, p := range k.pipesOf(t, pid) {
			if _, known := before[p]; !known {
				before[p] = 0
			}
		}
		for p, had := range before {
			n += p.count() - had
		}
		return n
	}
}

func (k *Link) pipesOf(t testing.TB, pid int) (out []*pipe) {
	t.Helper()
	ports := portsOf(t, pid)
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.conns {
		if addr, ok := p.in.RemoteAddr().(*net.TCPAddr); ok && ports[addr.Port] {
			out = append(out, p)
		}
	}
	return out
}

func (p *pipe) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// portsOf lists the local ports of a process's IPv4 connections.
func portsOf(t testing.TB, pid int) map[int]bool {
	t.Helper()
	sockets := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			sockets[to] = true
		}
	}
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[int]bool{}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 10 || !sockets["socket:["+f[9]+"]"] {
			continue
		}
		var addr, port int
		if _, err := fmt.Sscanf(f[1], "%x:%x", &addr, &port); err == nil {
			ports[port] = true
		}
	}
	return ports
}
