// Package sim is a driver without VMs, for scale tests and demos: its latency
// and failures are what the options say, and its guest knows a small set of
// commands that behave the same every time. An idle VM costs no goroutine and
// no connection. What runs is told by a small file in the VM's directory, so
// a restarted host agent finds its simulated VMs again.
package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/capture/manifest"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/ports"
)

// Driver simulates VMs.
type Driver struct {
	*captures
	opts Options

	mu      sync.Mutex
	rng     *rand.Rand
	fail    map[string]Failure
	changed chan struct{}        // closed when a delay changes
	vms     map[string]*instance // by uid
	ports   *ports.Table
}

var _ driver.Driver = (*Driver)(nil)

// New makes a simulated host.
func New(opts Options) (*Driver, error) {
	opts = opts.withDefaults()
	d := &Driver{
		opts: opts, vms: map[string]*instance{}, fail: map[string]Failure{}, changed: make(chan struct{}), ports: ports.New(opts.Ports, nil),
		rng: rand.New(rand.NewPCG(opts.Seed, 1)),
	}
	d.captures = &captures{d: d}
	for step, f := range opts.Fail {
		d.fail[step] = f
	}
	if opts.ObjectDir != "" {
		if err := os.MkdirAll(opts.ObjectDir, 0o700); err != nil {
			return nil, fmt.Errorf("sim objects: %w", err)
		}
	}
	return d, nil
}

// FailNext makes a step fail the next n times.
func (d *Driver) FailNext(step string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.fail[step]
	f.Times = n
	d.fail[step] = f
}

// SetDelay changes the delay of a step, also for those who are waiting.
func (d *Driver) SetDelay(step string, r Range) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delay := map[string]Range{step: r}
	for s, r := range d.opts.Delay {
		if s != step {
			delay[s] = r
		}
	}
	d.opts.Delay = delay
	close(d.changed)
	d.changed = make(chan struct{})
}

// Reliable ends all failures of steps.
func (d *Driver) Reliable() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.fail)
}

// pass spends a step's delay, then lets it fail if its turn has come.
func (d *Driver) pass(ctx context.Context, step string) error {
	for begun := time.Now(); ; {
		d.mu.Lock()
		left := d.opts.Delay[step].draw(d.rng) - time.Since(begun)
		changed := d.changed
		d.mu.Unlock()
		if left <= 0 {
			break
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
			return d.fate(ctx, step)
		case <-changed:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
	return d.fate(ctx, step)
}

func (d *Driver) fate(ctx context.Context, step string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.fail[step]
	fails := f.Times > 0
	if fails {
		f.Times--
		d.fail[step] = f
	} else if f.Rate > 0 {
		fails = d.rng.Float64() < f.Rate
	}
	if fails {
		return fleet.Errorf(fleet.CodeUnavailable, "simulated failure of %s", step).With(fleet.DetailStep, step)
	}
	return nil
}

// Probe reports the simulated capacity.
func (d *Driver) Probe(ctx context.Context) (driver.Facts, error) {
	if err := d.pass(ctx, "probe"); err != nil {
		return driver.Facts{}, err
	}
	return driver.Facts{
		Driver: string(fleet.BackendSim), DriverVersion: "1", Arch: fleet.NormalizeArch(runtime.GOARCH),
		CPUs: d.opts.CPUs, RamMB: d.opts.RamMB, StorageGB: d.opts.StorageGB, VMCount: d.opts.VMs,
		OverheadMB: d.opts.OverheadMB, HugePages: d.opts.HugePages, FreeHugePages: d.opts.HugePages,
		Images: d.opts.Images, Missing: []string{"VMs are simulated"},
		Capabilities: []string{fleet.CapSnapshotDisk, fleet.CapSnapshotLive, fleet.CapFork, fleet.CapPause, fleet.CapUsage, fleet.CapLimits},
	}, nil
}

// Start makes a VM in three steps: disk, boot, guest.
func (d *Driver) Start(ctx context.Context, vm driver.VM, id driver.Identity, step func(string)) (driver.Instance, error) {
	if vm.Image != "" && !slices.Contains(d.opts.Images, vm.Image) {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "this host has no image %.80q; it has %s", vm.Image, strings.Join(d.opts.Images, ", ")).
			With(fleet.DetailRemedy, "use one of the host's images")
	}
	if step == nil {
		step = func(string) {}
	}
	inst, err := d.start(ctx, vm, id, step)
	if err != nil {
		return nil, errors.Join(err, d.erase(vm))
	}
	return inst, nil
}

func (d *Driver) start(ctx context.Context, vm driver.VM, id driver.Identity, step func(string)) (*instance, error) {
	step("disk")
	if d.opts.ObjectDir != "" {
		if err := os.WriteFile(d.object(vm.Slot), []byte(vm.UID), 0o600); err != nil {
			return nil, fmt.Errorf("sim object: %w", err)
		}
	}
	if err := d.pass(ctx, "create"); err != nil {
		return nil, err
	}
	step("boot")
	s := state{BootID: ulid.Make().String(), Hostname: id.Hostname, Started: time.Now().UTC()}
	if s.Hostname == "" {
		s.Hostname = vm.ID
	}
	if err := add(vm.Dir, content{State: &s}, os.O_CREATE|os.O_TRUNC); err != nil {
		return nil, err
	}
	if err := d.pass(ctx, "boot"); err != nil {
		return nil, err
	}
	step("guest")
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return d.hold(vm, s), nil
}

func (d *Driver) hold(vm driver.VM, s state) *instance {
	i := &instance{
		d: d, uid: vm.UID, id: vm.ID, dir: vm.Dir, image: vm.Image, state: s,
		writing: make(chan struct{}, 1), done: make(chan struct{}),
	}
	d.mu.Lock()
	d.vms[vm.UID] = i
	d.mu.Unlock()
	return i
}

// Adopt takes hold of a VM whose file says that it runs.
func (d *Driver) Adopt(ctx context.Context, vm driver.VM) (driver.Instance, error) {
	if err := d.pass(ctx, "adopt"); err != nil {
		return nil, err
	}
	c, err := load(vm.Dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, &driver.GoneError{Exit: fleet.ExitRecord{UID: vm.UID, VMID: vm.ID, Cause: "vmm_exited", Detail: "no simulated process", At: time.Now().UTC()}}
	case err != nil:
		return nil, err
	case c.State.Exit != nil:
		return nil, &driver.GoneError{Exit: *c.State.Exit}
	case c.State.Paused:
		m, err := manifest.Read(paused(vm))
		if err != nil {
			return nil, err
		}
		return nil, &driver.PausedError{Info: m.SnapshotInfo}
	}
	if _, err := d.ports.Load(vm); err != nil {
		return nil, err
	}
	return d.hold(vm, *c.State), nil
}

// Remove ends a VM and erases what it left.
func (d *Driver) Remove(ctx context.Context, vm driver.VM) error {
	if err := d.pass(ctx, "remove"); err != nil {
		return err
	}
	return d.erase(vm)
}

func (d *Driver) erase(vm driver.VM) error {
	d.mu.Lock()
	i := d.vms[vm.UID]
	delete(d.vms, vm.UID)
	d.mu.Unlock()
	if i != nil {
		i.stop(fleet.ExitRecord{UID: vm.UID, VMID: vm.ID, Cause: "destroyed", At: time.Now().UTC()})
	}
	errs := []error{erase(vm.Dir), removeAll(paused(vm).Dir), remove(filepath.Join(vm.Dir, ports.File)), d.ports.Release(vm.UID)}
	if d.opts.ObjectDir != "" {
		errs = append(errs, remove(d.object(vm.Slot)))
	}
	return errors.Join(errs...)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return nil
}

func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return nil
}

func (d *Driver) object(slot int) string {
	return filepath.Join(d.opts.ObjectDir, "slot-"+strconv.Itoa(slot))
}

// Sweep removes the objects of slots that no live VM has, and reports those
// whose name it does not know.
func (d *Driver) Sweep(ctx context.Context, live []driver.VM) (driver.SweepReport, error) {
	report := driver.SweepReport{At: time.Now().UTC()}
	if err := d.pass(ctx, "sweep"); err != nil {
		return report, err
	}
	if d.opts.ObjectDir == "" {
		return report, nil
	}
	entries, err := os.ReadDir(d.opts.ObjectDir)
	if err != nil {
		return report, fmt.Errorf("sim objects: %w", err)
	}
	ours, unknown := map[string]bool{}, false
	for _, vm := range live {
		ours["slot-"+strconv.Itoa(vm.Slot)] = true
		unknown = unknown || vm.Slot == 0
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case ours[name]:
		case !strings.HasPrefix(name, "slot-"):
			report.Reported = append(report.Reported, driver.Object{Kind: "file", Name: name, Why: "the name is not ours"})
		case unknown:
			report.Reported = append(report.Reported, driver.Object{Kind: "file", Name: name, Why: "it may be a VM's whose slot is not known"})
		default:
			if err := remove(filepath.Join(d.opts.ObjectDir, name)); err != nil {
				return report, err
			}
			report.Removed = append(report.Removed, driver.Object{Kind: "file", Name: name, Why: "no live VM has the slot"})
		}
	}
	return report, nil
}

// Close lets go of everything. Simulated VMs go on, as their files say.
func (d *Driver) Close() error {
	d.mu.Lock()
	all := slices.Collect(maps.Values(d.vms))
	clear(d.vms)
	d.mu.Unlock()
	for _, i := range all {
		i.leave()
	}
	return nil
}

// Stop ends a VM as if it had stopped by itself; false if it does not run.
func (d *Driver) Stop(uid, cause string) bool {
	d.mu.Lock()
	i := d.vms[uid]
	d.mu.Unlock()
	if i == nil {
		return false
	}
	exit := fleet.ExitRecord{UID: uid, VMID: i.id, Cause: cause, At: time.Now().UTC().Round(0)}
	s := i.state
	s.Exit = &exit
	if add(i.dir, content{State: &s}, 0) != nil {
		return false
	}
	i.stop(exit)
	return true
}

// instance is one simulated VM.
type instance struct {
	d       *Driver
	uid, id string
	dir     string
	image   string
	state   state
	writing chan struct{} // full while the guest's files change

	once sync.Once
	done chan struct{}
	exit fleet.ExitRecord // valid once done is closed

	surfacing sync.Mutex
	made      *surface // nil before its first use
	shut      bool
}

func (i *instance) stop(exit fleet.ExitRecord) {
	i.once.Do(func() { i.exit = exit; close(i.done) })
	i.leave()
}

func (i *instance) Guest() driver.Guest   { return guest{i} }
func (i *instance) Done() <-chan struct{} { return i.done }
func (i *instance) Close() error          { return nil }

func (i *instance) Exit() fleet.ExitRecord {
	select {
	case <-i.done:
		return i.exit
	default:
		return fleet.ExitRecord{}
	}
}

// ImageDigest stands for the digest of a real image.
func (i *instance) ImageDigest() string {
	sum := sha256.Sum256([]byte("sim image " + i.image))
	return "sha256:" + hex.EncodeToString(sum[:])
}
