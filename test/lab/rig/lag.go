package rig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// lag delays what passes a node's link. Kernels need not have netem, so this
// process carries the frames itself: the node's end of the link leaves the
// bridge, a tap takes its place there, and each frame waits between the two.
type lag struct {
	run   *run
	port  string
	ends  [2]*os.File // the link, the bridge
	wg    sync.WaitGroup
	close func() error
}

// queued is the most frames that wait in one direction; more are lost, as in
// a full queue.
const queued = 4096

type frame struct {
	due  time.Time
	data []byte
}

func newLag(r *run, port string, delay, jitter time.Duration) (*lag, error) {
	k := &lag{run: r, port: port}
	tap := port + "-lag"
	err := inNamespace(r.nsPath("net"), func() (err error) {
		if k.ends[0], err = openLink(port); err != nil {
			return err
		}
		k.ends[1], err = openTap(tap)
		return err
	})
	if err == nil {
		err = inAll([]string{"ip", "-n", r.netns("net")},
			"link set "+tap+" master lan up", "link set "+port+" nomaster")
	}
	if err != nil {
		return nil, errors.Join(err, k.closeEnds())
	}
	for i := range k.ends {
		k.carry(k.ends[i], k.ends[1-i], delay, jitter)
	}
	k.close = sync.OnceValue(func() error {
		err := inAll([]string{"ip", "-n", r.netns("net")}, "link set "+port+" master lan")
		err = errors.Join(err, k.closeEnds()) // the tap goes with its descriptor
		k.wg.Wait()
		return err
	})
	return k, nil
}

func (k *lag) closeEnds() error {
	var errs []error
	for _, f := range k.ends {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// carry takes frames from one end to the other until the ends are closed.
func (k *lag) carry(from, to *os.File, delay, jitter time.Duration) {
	wait := make(chan frame, queued)
	k.wg.Go(func() {
		defer close(wait)
		buf := make([]byte, 65536)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return // closed
			}
			extra := time.Duration(0)
			if jitter > 0 {
				extra = rand.N(jitter)
			}
			select {
			case wait <- frame{time.Now().Add(delay + extra), append([]byte(nil), buf[:n]...)}:
			default: // the queue is full
			}
		}
	})
	k.wg.Go(func() {
		for f := range wait {
			<-time.After(time.Until(f.due))
			_, _ = to.Write(f.data) // a link that is down loses it
		}
	})
}

// openLink opens a link for whole frames, those that come in alone.
func openLink(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	link, err := net.InterfaceByName(name)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}
	if err == nil {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: link.Index})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open link %s: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openTap makes a tap that goes with its descriptor.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", tunDevice, err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make tap %s: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// noChecksumOffload makes a link fill in checksums itself: a frame that leaves
// the kernel on its way has nobody else to do it.
func noChecksumOffload(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:], name)
	req.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("turn off checksum offload of %s: %w", name, errno)
	}
	return nil
}

// inNamespace runs fn on a thread in the network namespace at path. The thread
// is not used again if it cannot come back.
func inNamespace(path string, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- func() error {
			home, err := netns.Get()
			if err != nil {
				return err
			}
			defer home.Close()
			there, err := netns.GetFromPath(path)
			if err != nil {
				return err
			}
			defer there.Close()
			if err := netns.Set(there); err != nil {
				return err
			}
			err = fn()
			if netns.Set(home) == nil {
				runtime.UnlockOSThread()
			}
			return err
		}()
	}()
	return <-result
}
