package network

import (
	"errors"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"
)

// Object is a host object that carries this registry's name.
type Object struct {
	Kind string // netns, veth, nft or port
	Name string
	Slot int // -1 if it belongs to no slot
}

// List finds every object of this registry, finished or not. A veth outlives
// its removed namespace for a moment.
func (m *Manager) List() ([]Object, error) {
	var all []Object
	entries, err := os.ReadDir(nsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if n, ok := slotOf(e.Name(), m.nsName); ok {
			all = append(all, Object{Kind: "netns", Name: e.Name(), Slot: n})
		}
	}
	links, err := dumped(m.links.LinkList)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if n, ok := slotOf(l.Attrs().Name, m.linkName); ok {
			all = append(all, Object{Kind: "veth", Name: l.Attrs().Name, Slot: n})
		}
	}
	for _, p := range m.published.all() {
		name := "tcp " + strconv.Itoa(int(p.Host))
		if p.UDP {
			name = "udp " + strconv.Itoa(int(p.Host))
		}
		all = append(all, Object{Kind: "port", Name: name, Slot: p.Slot})
	}
	rules, err := m.listRules()
	if err != nil {
		return nil, err
	}
	return append(all, rules...), nil
}

// maxDumps is how often a list is asked for that the kernel cannot make in one
// piece.
const maxDumps = 100

// dumped is a list of the kernel's, whole: one during which something came or
// went may lack what was there all along, and is asked for again.
func dumped[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		all, err := list()
		if try == maxDumps || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}
