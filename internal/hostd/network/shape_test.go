package network

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// send moves size bytes over a new connection between two nodes, in one
// direction, and returns bytes a second.
func send(t *testing.T, l net.Listener, from *node, toServer bool, size int64) float64 {
	t.Helper()
	var client net.Conn
	from.in(func() (err error) {
		client, err = net.DialTimeout("tcp", public+":80", patience)
		return err
	})
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	src, dst := server, client
	if toServer {
		src, dst = client, server
	}
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		_, err := io.CopyN(src, zeros{}, size)
		done <- errors.Join(err, src.Close())
	}()
	n, err := io.Copy(io.Discard, dst)
	if err := errors.Join(err, <-done, dst.Close()); err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return float64(size) / time.Since(began).Seconds()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Each direction is held to its own rate, nobody else's; what was set can be
// changed and taken back; what passed is counted.
func TestShapeHoldsEachDirection(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	q := Queues{w.mgr}
	_, other := w.guest(1)
	var l net.Listener
	w.internet.in(func() (err error) { l, err = net.Listen("tcp", public+":80"); return err })
	defer l.Close()
	const in, out, size = 1 << 20, 512 << 10, 256 << 10
	if err := q.Shape(background, 0, in, out); err != nil {
		t.Fatal(err)
	}
	within := func(what string, got, rate float64) {
		t.Helper()
		if got > 1.3*rate {
			t.Errorf("%s: %.0f KiB/s with a limit of %.0f", what, got/1024, rate/1024)
		}
	}
	free := func(what string, from *node) { // slow moments of a busy machine are none
		t.Helper()
		testkit.Eventually(t, 2*patience, what+" is faster", func() bool { return send(t, l, from, true, size) > 2*out })
	}
	within("out", send(t, l, g, true, size), out)
	within("in", send(t, l, g, false, size), in)
	free("a neighbour without a limit", other)
	if err := q.Shape(background, 0, 4*in, 0); err != nil {
		t.Fatal(err)
	}
	within("in, changed", send(t, l, g, false, 4*size), 4*in)
	free("out without a limit", g)
	if err := q.Shape(background, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := q.Shape(background, 0, 0, 0); err != nil {
		t.Errorf("once more: %v", err)
	}
	gotIn, gotOut, err := q.Traffic(0)
	if err != nil || gotIn < 5*size || gotOut < 2*size {
		t.Errorf("counted %d in, %d out, %v", gotIn, gotOut, err)
	}
	if err := q.Shape(background, 7, 1<<20, 0); err == nil {
		t.Error("a slot that is not there was shaped")
	}
	if _, _, err := q.Traffic(7); !errors.Is(err, ErrNoSlot) {
		t.Errorf("traffic of no slot: %v", err)
	}
}
