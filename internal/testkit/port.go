package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Ports of tests lie below those that Linux gives to outgoing connections and
// to listeners on port 0, and below those that host agents publish.
const firstPort, lastPort = 12000, 19999

// Addr is a loopback address for a server that the test starts, and starts
// again, until the test ends.
func Addr(t testing.TB) string {
	t.Helper()
	addr, release, err := ReserveAddr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return addr
}

// ReserveAddr is an address of host on which nothing listens and that no other
// test of this machine gets before release is called. An address of port 0 that
// was closed again is somebody else's connection a moment later.
func ReserveAddr(host string) (addr string, release func(), err error) {
	for range 1000 {
		port := strconv.Itoa(firstPort + rand.IntN(lastPort-firstPort+1))
		addr := net.JoinHostPort(host, port)
		// An abstract name belongs to one process, and to none when that ends.
		held, err := net.Listen("unix", nameOf(port))
		if err != nil {
			continue
		}
		release := func() { _ = held.Close() }
		l, err := net.Listen("tcp", addr)
		if err != nil {
			release()
			continue
		}
		if err := l.Close(); err != nil {
			release()
			return "", nil, err
		}
		return addr, release, nil
	}
	return "", nil, fmt.Errorf("no free port on %s from %d to %d: end what listens there", host, firstPort, lastPort)
}

func nameOf(port string) string { return "@fuse-test-port-" + port }
