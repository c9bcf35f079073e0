// Package boot turns the initramfs's first process into the init of a machine:
// kernel modules, root filesystem, network and the machine's own files; and, at
// the other end, an orderly power-off. It runs once, as PID 1.
package boot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/guestwire"
)

// CgroupDir holds the cgroups of everything that runs for users.
const CgroupDir = "/sys/fs/cgroup/user"

// deviceWait bounds the wait for the kernel to show a disk or an interface: to read
// of a disk takes as long as that of the host does.
const deviceWait = time.Minute

// Phase is how long one part of the boot took.
type Phase struct {
	Name string
	Took time.Duration
}

// Machine is a booted machine.
type Machine struct {
	Config guestwire.BootConfig
	Phases []Phase
	// Rotated is the hash of the token that counts instead of Config's since a
	// rotation; nil if there was none.
	Rotated *[sha256.Size]byte

	log  *slog.Logger
	late []*os.File // modules to load once the machine answers
}

// Start boots. Each phase leaves a line on log, the failing one included.
func Start(ctx context.Context, log *slog.Logger) (*Machine, error) {
	m := &Machine{log: log}
	for _, p := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"mount", m.mountEarly},
		{"config", m.readConfig},
		{"modules", m.loadModules},
		{"devices", m.setUpDevices},
		{"root", m.switchRoot},
		{"files", m.writeFiles},
	} {
		if err := m.phase(ctx, p.name, p.run); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Machine) phase(ctx context.Context, name string, run func(context.Context) error) error {
	began := time.Now()
	if err := run(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	took := time.Since(began)
	m.Phases = append(m.Phases, Phase{name, took})
	m.log.InfoContext(ctx, "boot phase done", "phase", name, "ms", millis(took), "up_ms", Uptime().Milliseconds())
	return nil
}

// setUpDevices sets up the network while the disk is being read.
func (m *Machine) setUpDevices(ctx context.Context) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return m.mountRoot(ctx) })
	both.Go(func() error { return m.setUpNetwork(ctx) })
	return both.Wait()
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()/100) / 10 }

// Uptime is how long the kernel runs.
func Uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func (m *Machine) readConfig(context.Context) error {
	data, err := os.ReadFile(guestwire.BootConfigPath)
	if err != nil {
		return err
	}
	m.Config, err = guestwire.ParseBootConfig(data)
	return err
}

// loadModules loads the kernel modules that the root and the network need, and
// opens the others while the initramfs still has them.
func (m *Machine) loadModules(context.Context) error {
	paths, err := moduleList(guestwire.ModulesPath)
	if err != nil {
		return err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = loadModule(f)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	if paths, err = moduleList(guestwire.LateModulesPath); err != nil {
		return err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		m.late = append(m.late, f)
	}
	return nil
}

// LoadLate loads the modules that nothing waits for. One that the kernel
// refuses is reported; the machine works without it.
func (m *Machine) LoadLate(ctx context.Context) {
	began := time.Now()
	loaded := 0
	for _, f := range m.late {
		if err := loadModule(f); err != nil {
			m.log.WarnContext(ctx, "kernel module not loaded", "error", err)
		} else {
			loaded++
		}
		_ = f.Close()
	}
	m.late = nil
	m.log.InfoContext(ctx, "late kernel modules loaded", "modules", loaded, "ms", millis(time.Since(began)))
}

func loadModule(f *os.File) error {
	err := unix.FinitModule(int(f.Fd()), "", 0)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "load module", Path: f.Name(), Err: err}
	}
	return nil
}

// moduleList reads one path a line. A kernel with everything built in needs
// no list.
func moduleList(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(data)), nil
}

// poll calls ok until it says yes, for at most deviceWait.
func poll(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, deviceWait)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s did not appear within %v", what, deviceWait)
		}
	}
	return nil
}
