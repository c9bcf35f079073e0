package renew

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Linux is the kernel of a guest. Interface is the one that the host knows.
type Linux struct{ Interface string }

// Requests of the random device: RNDADDENTROPY is _IOW('R', 3, int[2]),
// RNDRESEEDCRNG _IO('R', 7).
const (
	rndAddEntropy  = 0x40085203
	rndReseedCRNG  = 0x5207
	maxPoolEntropy = 512 // bytes of one call
)

// poolInfo is the kernel's rand_pool_info.
type poolInfo struct {
	bits, size int32
	data       [maxPoolEntropy]byte
}

// Reseed implements Kernel: the bytes count as entropy, and the generator
// takes them in at once.
func (Linux) Reseed(entropy []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info := poolInfo{}
	n := copy(info.data[:], entropy)
	info.bits, info.size = int32(n*8), int32(n)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndAddEntropy, uintptr(unsafe.Pointer(&info))); errno != 0 {
		return fmt.Errorf("add entropy: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndReseedCRNG, 0); errno != 0 {
		return fmt.Errorf("reseed: %w", errno)
	}
	return nil
}

// SetClock implements Kernel.
func (Linux) SetClock(now time.Time) (time.Duration, error) {
	var before unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &before); err != nil {
		return 0, err
	}
	ts := unix.NsecToTimespec(now.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return 0, fmt.Errorf("set the clock: %w", err)
	}
	return time.Duration(now.UnixNano() - before.Nano()), nil
}

// SetHostname implements Kernel.
func (Linux) SetHostname(name string) error {
	if name == "" {
		return errors.New("the machine has no name")
	}
	return unix.Sethostname([]byte(name))
}

// FirstAddress implements Kernel.
func (l Linux) FirstAddress() (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var of [2]netip.Addr
	for i, request := range []uint{unix.SIOCGIFADDR, unix.SIOCGIFNETMASK} {
		r, err := unix.NewIfreq(l.Interface)
		if err != nil {
			return "", err
		}
		if err := unix.IoctlIfreq(fd, request, r); err != nil {
			return "", err
		}
		raw, err := r.Inet4Addr()
		if err != nil {
			return "", err
		}
		of[i], _ = netip.AddrFromSlice(raw)
	}
	mask := of[1].As4()
	bits, _ := net.IPMask(mask[:]).Size()
	return netip.PrefixFrom(of[0], bits).String(), nil
}

// Addresses implements Kernel.
func (l Linux) Addresses() ([]string, error) {
	dev, err := net.InterfaceByName(l.Interface)
	if err != nil {
		return nil, err
	}
	addrs, err := dev.Addrs()
	if err != nil {
		return nil, err
	}
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out, nil
}
