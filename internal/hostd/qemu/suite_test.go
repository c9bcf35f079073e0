package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/driver/drivertest"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// newDriver opens a driver for tests; its network rules go at the test's end.
func newDriver(t testing.TB, cfg Config) *Driver {
	t.Helper()
	cfg.Images = imagetest.Store(t)
	if cfg.Accel == "" {
		cfg.Accel = testAccel(t)
	}
	if cfg.BootTimeout == 0 {
		cfg.BootTimeout = 8 * time.Minute // the machine may be busy with other tests
	}
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// probed is what the test process has found out.
var probed struct {
	sync.Mutex
	accel string
}

// testAccel probes once for the test process.
func testAccel(t testing.TB) string {
	t.Helper()
	cfg := Config{Dir: imagetest.Dir(), Images: imagetest.Store(t)}
	probed.Lock()
	defer probed.Unlock()
	if probed.accel == "" {
		accel, _, _, err := Accelerator(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		probed.accel = accel
	}
	return probed.accel
}

// inventory lists the host's objects that bear the registry's name, found
// without the driver.
func inventory(t testing.TB, registry string) []string {
	t.Helper()
	var all []string
	found, err := proc.Named("fuse-" + registry + "-")
	if err != nil {
		t.Fatal(err)
	}
	for pid, uid := range found {
		all = append(all, fmt.Sprintf("process %d of %s", pid, uid))
	}
	groups, err := cgroup.Open(filepath.Join("fuse", registry)).List()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		all = append(all, "cgroup "+g)
	}
	sum := sha256.Sum256([]byte(registry))
	tag := "fuse-" + hex.EncodeToString(sum[:3]) + "-"
	spaces, _ := filepath.Glob("/run/netns/" + tag + "*")
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something came or went meanwhile
		links, err = netlink.LinkList()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, strings.Replace(tag, "-", "", 1)) {
			all = append(all, "link "+l.Attrs().Name)
		}
	}
	all = append(all, spaces...)
	slices.Sort(all)
	return all
}

func TestDriver(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, suite())
}

func TestDriverCaptures(t *testing.T) {
	t.Parallel()
	drivertest.RunSnapshots(t, suite())
}

func suite() drivertest.Config {
	return drivertest.Config{
		Image:    "minimal",
		Guests:   true,
		Parallel: true,
		Within:   4 * time.Minute, // the machine may be busy with other tests
		New: func(t *testing.T, dir, registry string) driver.Driver {
			d := newDriver(t, Config{Dir: dir, Registry: registry})
			t.Cleanup(func() { uninstall(t, dir, registry) })
			return d
		},
		Crash: func(t *testing.T, vm driver.VM) {
			rec, err := record.Read[processRecord](vm.Dir, fileProcess)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(rec.PID, syscall.SIGSEGV); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, testWithin, "the process ends", func() bool {
				_, err := proc.StartTime(rec.PID)
				return err != nil
			})
		},
		Objects: func(t *testing.T, registry string) []string { return inventory(t, registry) },
	}
}

// uninstall removes the registry's table from the host.
func uninstall(t *testing.T, dir, registry string) {
	d, err := New(Config{Dir: dir, Registry: registry, Images: imagetest.Store(t)})
	if err != nil {
		t.Error(err)
		return
	}
	defer d.Close()
	if d.slots == nil {
		return
	}
	if err := d.slots.Uninstall(context.Background()); err != nil {
		t.Error(err)
	}
}

const testWithin = 2 * time.Minute
