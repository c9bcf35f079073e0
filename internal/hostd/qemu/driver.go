package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/ports"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/accel"
	"github.com/fusevm/fuse/internal/hostd/vmm/reap"
	"github.com/fusevm/fuse/internal/keylock"
)

// Config says what a Driver works with. Dir, Registry and Images are needed.
type Config struct {
	// Dir is the host's data directory; the driver keeps DIR/qemu.
	Dir string
	// Registry is the id of the host's registry. It is part of the name of
	// every process, cgroup and network object.
	Registry string
	Images   *image.Store
	// QEMU is the program; empty means qemu-system-ARCH in PATH.
	QEMU string
	// Accel is kvm or tcg; empty means KVM if a guest boots with it.
	Accel  string
	Logger *slog.Logger

	// UserNet takes QEMU's user networking even where slots would work.
	UserNet bool
	// Network configures the slots; its Registry is set by the driver.
	Network network.Config
	// Ports are the numbers of published ports; zero: the default range.
	Ports ports.Range

	BootTimeout time.Duration // from QEMU's start to the guest's answer; 2 min
	MinFree     int64         // bytes of disk that a start leaves free; 1 GiB
	UIDBase     int           // user id of slot 0; 700000000
}

// Defaults of Config.
const (
	defaultBootTimeout = 2 * time.Minute
	defaultMinFree     = 1 << 30
	defaultUIDBase     = 700_000_000
)

// Driver runs VMs on QEMU.
type Driver struct {
	cfg     Config
	log     *slog.Logger
	machine vmm.Machine
	bootID  string
	root    bool
	cgroups *cgroup.Manager
	slots   *ports.Slots // nil with user networking
	noSlots error        // why there are none

	prober *accel.Prober
	reaper reap.Reaper
	tender console.Tender

	rotating keylock.Lock // by uid, while a guest's token changes
	*captures

	mu   sync.Mutex
	held map[string]*instance // by uid: those that are not closed
}

var _ driver.Driver = (*Driver)(nil)

// New prepares the host for VMs of one registry. It starts none and touches
// none that run.
func New(cfg Config) (*Driver, error) {
	if cfg.Dir == "" || cfg.Registry == "" || cfg.Images == nil {
		return nil, errors.New("qemu: Dir, Registry and Images are needed")
	}
	cfg = cfg.withDefaults()
	m, err := vmm.Host()
	if err != nil {
		return nil, err
	}
	if cfg.Accel != "" && cfg.Accel != vmm.KVM && cfg.Accel != vmm.TCG {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "accelerator %q is not known", cfg.Accel).
			With(fleet.DetailLimit, "kvm, tcg, or none to find out")
	}
	bootID, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "qemu"), 0o700); err != nil {
		return nil, fmt.Errorf("qemu: %w", err)
	}
	d := &Driver{
		cfg: cfg, log: cfg.Logger, machine: m, bootID: bootID, root: os.Geteuid() == 0,
		cgroups: cgroup.Open(filepath.Join("fuse", cfg.Registry)),
		prober:  cfg.prober(m, bootID),
		held:    map[string]*instance{},
	}
	d.reaper = reap.Reaper{Cgroups: d.cgroups, Prefix: "fuse-" + cfg.Registry + "-", BootID: bootID}
	if err := d.openSlots(); err != nil {
		return nil, err
	}
	d.captures = newCaptures(d)
	d.tender.Start(d.log, fileConsole, fileLog)
	return d, nil
}

func (c Config) withDefaults() Config {
	if c.BootTimeout <= 0 {
		c.BootTimeout = defaultBootTimeout
	}
	if c.MinFree <= 0 {
		c.MinFree = defaultMinFree
	}
	if c.UIDBase <= 0 {
		c.UIDBase = defaultUIDBase
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Network.Registry = c.Registry
	if c.Network.Logger == nil {
		c.Network.Logger = c.Logger
	}
	return c
}

// openSlots takes network slots where the process may have them.
func (d *Driver) openSlots() error {
	if d.cfg.UserNet {
		d.noSlots = errors.New("user networking was asked for")
		return nil
	}
	if d.noSlots = network.Available(); d.noSlots == nil {
		var err error
		d.slots, err = ports.OpenSlots(d.cfg.Network, filepath.Join(d.cfg.Dir, "vms"), d.cfg.Ports)
		return err
	}
	d.log.Warn("user networking instead of network slots", "why", d.noSlots)
	return nil
}

// Close releases what the driver itself holds. VMs go on running.
func (d *Driver) Close() error {
	d.tender.Stop()
	if d.slots != nil {
		return d.slots.Close()
	}
	return nil
}

// keep notes an instance that this driver holds.
func (d *Driver) keep(i *instance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[i.vm.UID] = i
}

// letGo forgets it.
func (d *Driver) letGo(i *instance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held[i.vm.UID] == i {
		delete(d.held, i.vm.UID)
	}
}

// holder returns the instance of a life that is not closed, nil without one.
func (d *Driver) holder(uid string) *instance {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held[uid]
}
