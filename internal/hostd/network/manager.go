package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Errors that callers tell apart.
var (
	// ErrBusy says that a process holds the tap of a slot: it is in use.
	ErrBusy = errors.New("network slot is in use")
	// ErrNoSlot says that a slot does not exist, or only in part.
	ErrNoSlot = errors.New("no such network slot")
)

// Config says whose slots these are and where they lead.
type Config struct {
	// Registry is the id of the host's data directory. Names derive from it.
	Registry string
	// Pool is cut into a /30 per slot. The zero Pool picks a /20 of
	// 10.192.0.0/12 that nothing else on the host uses.
	Pool netip.Prefix
	// Resolvers answer the guests' queries; empty means the host's own.
	Resolvers []netip.Addr
	// Published is what an earlier process published and is not to be missed
	// before the machines are adopted.
	Published []Published
	// HostNS is the path of the network namespace that plays the host; empty
	// means the one this process is in.
	HostNS string
	// Logger may be nil.
	Logger *slog.Logger
}

// Manager makes and removes the slots of one registry. Its methods may be
// called at once; calls for one slot wait for each other.
type Manager struct {
	names
	firewall
	cfg   Config
	pool  pool
	log   *slog.Logger
	host  netns.NsHandle
	links *netlink.Handle // in the host namespace
	claim claim           // of the pool
	locks keyed

	// failStep lets a test fail a step of Create.
	failStep func(step string) error

	mu        sync.Mutex
	resolvers []netip.Addr
	problems  []string
	published publications
}

// Available says what a process lacks to have slots, nil if nothing.
func Available() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return fmt.Errorf("read own capabilities: %w", err)
	}
	const need = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN
	if caps[0].Effective&need != need {
		return errors.New("network namespaces need root (CAP_NET_ADMIN and CAP_SYS_ADMIN)")
	}
	if _, err := os.Stat(tunDevice); err != nil {
		return fmt.Errorf("tap devices need the kernel's tun driver: %w (modprobe tun)", err)
	}
	return nil
}

// New prepares the host: forwarding, the table of rules, the directory of
// namespaces. It leaves existing slots of the registry as they are.
func New(cfg Config) (*Manager, error) {
	if cfg.Registry == "" {
		return nil, errors.New("network: no registry id")
	}
	if err := Available(); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	sum := sha256.Sum256([]byte(cfg.Registry))
	m := &Manager{names: names{tag: hex.EncodeToString(sum[:3])}, cfg: cfg, log: cfg.Logger, host: netns.None(), published: publications{bySlot: map[int][]Published{}}}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if err := m.open(); err != nil {
		return nil, fmt.Errorf("network: %w", errors.Join(err, m.Close()))
	}
	return m, nil
}

func (m *Manager) open() error {
	var err error
	if m.cfg.HostNS == "" {
		m.host, err = netns.Get()
	} else {
		m.host, err = netns.GetFromPath(m.cfg.HostNS)
	}
	if err != nil {
		return fmt.Errorf("open the host's network namespace: %w", err)
	}
	if m.links, err = netlink.NewHandleAt(m.host, unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	if err := prepareDir(nsDir); err != nil {
		return fmt.Errorf("prepare %s: %w", nsDir, err)
	}
	m.pool, err = choosePool(m.links, m.names, m.cfg.Pool, func(block netip.Prefix) (ok bool, err error) {
		m.claim, ok, err = m.claimBlock(m.host, block)
		return ok, err
	})
	if err != nil {
		return err
	}
	m.firewall = firewall{names: m.names, host: m.host, pool: m.pool}
	for _, p := range m.cfg.Published {
		if m.inRange(p.Slot) == nil {
			m.published.bySlot[p.Slot] = append(m.published.bySlot[p.Slot], p)
		}
	}
	return m.Sync(context.Background())
}

// Close lets go of the manager's own descriptors. Slots and rules stay; where
// there are no slots, the rules have nothing to guard and go too.
func (m *Manager) Close() error {
	return errors.Join(m.removeUnused(), m.release())
}

func (m *Manager) removeUnused() error {
	if m.links == nil {
		return nil
	}
	objects, err := m.List()
	if err != nil {
		return err
	}
	// A link without its namespace is on its way out.
	if slices.ContainsFunc(objects, func(o Object) bool { return o.Kind == "netns" }) {
		return nil
	}
	return m.removeRules()
}

func (m *Manager) release() error {
	if m.links != nil {
		m.links.Close()
		m.links = nil
	}
	err := m.claim.close()
	m.claim = nil
	if m.host.IsOpen() {
		err = errors.Join(err, m.host.Close())
	}
	return err
}

// Slots is the number of slots; they are numbered from 0.
func (m *Manager) Slots() int {
	return m.pool.slots()
}

// Problems lists, for people, what keeps guests from the network although the
// slots work. It is as of the last Sync.
func (m *Manager) Problems() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.problems)
}

// Resolvers are the host's resolvers that answer DNSAddrs, in that order.
func (m *Manager) Resolvers() []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.resolvers)
}

// Sync makes the host side as it should be: forwarding on, our table there
// with the current resolvers, Docker told to let our packets pass. It is safe
// to call at any time; connections of guests survive it.
func (m *Manager) Sync(ctx context.Context) error {
	unlock, err := m.locks.lock(ctx, -1)
	if err != nil {
		return err
	}
	defer unlock()

	if err := m.forwarding(); err != nil {
		return err
	}
	resolvers := m.cfg.Resolvers
	if len(resolvers) == 0 {
		resolvers = hostResolvers()
	}
	if err := m.sync(resolvers, m.published.all()); err != nil {
		return fmt.Errorf("nftables rules of the host: %w", err)
	}
	problems, err := m.syncDocker()
	if err != nil {
		return fmt.Errorf("nftables rules for Docker: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(problems, m.problems) {
		m.log.InfoContext(ctx, "network problems changed", "problems", problems)
	}
	m.resolvers, m.problems = resolvers, problems
	return nil
}

// forwarding turns on IPv4 forwarding, without which nothing leaves a slot.
func (m *Manager) forwarding() error {
	return inNamespace(m.host, func() error {
		const path = "/proc/sys/net/ipv4/ip_forward"
		old, err := os.ReadFile(path)
		if err != nil || len(old) > 0 && old[0] == '1' {
			return err
		}
		m.log.Info("turning on IPv4 forwarding for the guests' way out")
		return writeSysctl("net/ipv4/ip_forward", "1")
	})
}

// Uninstall removes every slot and every rule of this registry. No guest may
// be running.
func (m *Manager) Uninstall(ctx context.Context) error {
	objects, err := m.List()
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.Slot >= 0 {
			if err := m.Remove(ctx, o.Slot); err != nil {
				return err
			}
		}
	}
	return m.removeRules()
}

func (m *Manager) removeRules() error {
	return errors.Join(m.removeDocker(), m.firewall.remove())
}

// keyed is a set of locks by number that honour a context.
type keyed struct {
	mu   sync.Mutex
	held map[int]chan struct{}
}

// lock waits until nobody holds key and returns what gives it back.
func (k *keyed) lock(ctx context.Context, key int) (unlock func(), err error) {
	for {
		k.mu.Lock()
		if k.held == nil {
			k.held = map[int]chan struct{}{}
		}
		holder, busy := k.held[key]
		if !busy {
			mine := make(chan struct{})
			k.held[key] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-holder:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
