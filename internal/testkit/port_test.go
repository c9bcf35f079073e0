package testkit

import (
	"net"
	"testing"
)

func TestAddrIsOneTestsUntilItsEnd(t *testing.T) {
	r := &recorder{TB: t}
	seen := map[string]bool{}
	for range 200 {
		addr := Addr(r)
		if seen[addr] {
			t.Fatalf("%s is given twice", addr)
		}
		seen[addr] = true
		for range 2 { // a server starts, and starts again
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, release := range r.cleanups {
		release()
	}
	for addr := range seen {
		l, err := net.Listen("unix", nameOf(addr[len("127.0.0.1:"):]))
		if err != nil {
			t.Errorf("%s is not given back: %v", addr, err)
			continue
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
