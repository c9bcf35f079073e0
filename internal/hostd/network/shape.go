package network

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Shaping lets a burst through and then holds packets back for a while, rather
// than dropping what comes too fast: senders find the rate by themselves.
const (
	shapeBurstPart = 50       // of a second's bytes
	shapeQueuePart = 10       // of a second's bytes, waiting
	shapeBurstMin  = 16 << 10 // some packets of the largest size
	shapeQueueMin  = 64 << 10
)

// Queues hold back and count what passes between guests and the world.
type Queues struct{ *Manager }

// Shape holds what passes between slot n's guest and the world to so many bytes
// a second, in to the guest and out of it; zero is no limit. What this program
// itself sends to the guest goes another way and is not held back.
func (q Queues) Shape(ctx context.Context, n int, in, out int64) error {
	m := q.Manager
	unlock, err := m.enter(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	// Each end of the veth holds back what it sends.
	if err := shape(m.links, m.linkName(n), in); err != nil {
		return fmt.Errorf("hold back what network slot %d is sent: %w", n, err)
	}
	err = inSlot(m.nsPath(n), func(links *netlink.Handle) error { return shape(links, uplinkName, out) })
	if err != nil {
		return fmt.Errorf("hold back what network slot %d sends: %w", n, err)
	}
	return nil
}

// inSlot calls fn with the links of a namespace that has a path.
func inSlot(path string, fn func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	links, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer links.Close()
	return fn(links)
}

func shape(links *netlink.Handle, name string, rate int64) error {
	link, err := links.LinkByName(name)
	if err != nil {
		return err
	}
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if rate <= 0 {
		err := links.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "tbf"})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return nil // there is none
		}
		return err
	}
	burst := uint32(min(max(rate/shapeBurstPart, shapeBurstMin), math.MaxInt32))
	queue := uint32(min(max(rate/shapeQueuePart, shapeQueueMin), math.MaxInt32))
	return links.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: uint64(rate), Limit: queue + burst, Buffer: netlink.Xmittime(uint64(rate), burst),
	})
}

// Traffic is how many bytes have passed between slot n's guest and the world
// since the slot was made, in to the guest and out of it.
func (q Queues) Traffic(n int) (in, out uint64, err error) {
	m := q.Manager
	link, err := m.links.LinkByName(m.linkName(n))
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s: %w", ErrNoSlot, m.linkName(n), err)
	}
	if s := link.Attrs().Statistics; s != nil {
		in, out = s.TxBytes, s.RxBytes
	}
	return in, out, nil
}
