package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

var _ driver.Publisher = (*instance)(nil)

// echoPort is where every simulated guest listens, and sends back what comes.
const echoPort = 7

// Publish implements driver.Publisher. Numbers are handed out and kept as on a
// real host, but nothing listens at them.
func (i *instance) Publish(_ context.Context, want []driver.Port) ([]driver.Port, error) {
	return i.d.ports.Set(driver.VM{ID: i.id, UID: i.uid, Dir: i.dir}, want, func([]driver.Port) error { return nil })
}

// Dial implements driver.Publisher.
func (i *instance) Dial(_ context.Context, port int) (net.Conn, error) {
	if port != echoPort {
		return nil, fleet.Wrap(fleet.CodeUnavailable, unix.ECONNREFUSED, "nothing listens there in the simulated guest, which has an echo at port 7 alone").
			With(fleet.DetailReason, "connection_refused")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var ends [2]net.Conn
	for n, fd := range fds {
		f := os.NewFile(uintptr(fd), "echo")
		c, cerr := net.FileConn(f)
		ends[n], err = c, errors.Join(err, cerr, f.Close())
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return nil, err
	}
	go func() {
		_, _ = io.Copy(ends[1], ends[1]) // until the other end closes
		_ = ends[1].Close()
	}()
	return ends[0], nil
}
