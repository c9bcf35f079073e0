package network

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// claim keeps the other registries of a host from a block of the default pool, as
// long as its sockets are open: no address shows yet that it is to be used. The
// managers of one registry share it.
type claim []int

// claimBlock claims a block in the host's namespace; false if another registry has
// it. Two names tell that: the block's, and the block's with the registry's tag.
func (n names) claimBlock(host netns.NsHandle, block netip.Prefix) (c claim, ok bool, err error) {
	name := "@fuse-pool-" + block.String()
	err = inNamespace(host, func() error {
		all, err := bindName(name)
		if err != nil {
			return err
		}
		own, err := bindName(name + "-" + n.tag)
		if err != nil || all >= 0 {
			c, ok = claim{all, own}, err == nil
			return err
		}
		ok = own < 0 // then it is this registry's
		return claim{own}.close()
	})
	if err != nil || !ok {
		return nil, false, errors.Join(err, c.close())
	}
	return c, true, nil
}

// bindName has a socket of a name without a file, which goes with its namespace or
// its process; negative if somebody has it.
func bindName(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		return fd, nil
	}
	cerr := unix.Close(fd)
	if errors.Is(err, unix.EADDRINUSE) {
		err = nil
	}
	return -1, errors.Join(err, cerr)
}

func (c claim) close() error {
	var errs []error
	for _, fd := range c {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
