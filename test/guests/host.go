package guests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/internal/secrets"
)

// Within bounds one boot, or one command, on a busy machine without KVM.
const Within = 8 * time.Minute

// Host is a host with its own images and the kernel of the other tests.
type Host struct {
	t      testing.TB
	dir    string
	Store  *image.Store
	Driver *qemu.Driver
	slots  int
}

// New makes a host, with images of its own unless cfg has some. Without Network
// in cfg its guests have user networking.
func New(t testing.TB, cfg qemu.Config) *Host {
	t.Helper()
	imagetest.Store(t)
	h := &Host{t: t, dir: t.TempDir(), Store: cfg.Images}
	var err error
	if h.Store == nil {
		if err := os.Symlink(filepath.Join(imagetest.Dir(), "kernels"), filepath.Join(h.dir, "kernels")); err != nil {
			t.Fatal(err)
		}
		if h.Store, err = image.Open(image.Config{Dir: h.dir, Fused: filepath.Join(imagetest.Dir(), "fused")}); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Dir, cfg.Registry, cfg.Images = filepath.Join(h.dir, "host"), ulid.Make().String(), h.Store
	cfg.UserNet = cfg.Network.HostNS == "" && len(cfg.Network.Resolvers) == 0
	cfg.Logger, cfg.BootTimeout = slog.New(slog.NewTextHandler(t.Output(), nil)), Within
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if h.Driver, err = qemu.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Driver.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// In makes a host in a world; images may be nil.
func In(t testing.TB, w *World, images *image.Store) *Host {
	t.Helper()
	return New(t, qemu.Config{Images: images, Network: network.Config{HostNS: w.Host.Path(), Resolvers: []netip.Addr{netip.MustParseAddr(Resolver)}}})
}

// Machine is a running machine.
type Machine struct {
	driver.Instance
	VM driver.VM
	h  *Host
}

// Pull gets an image and returns the reference that a machine boots from.
func (h *Host) Pull(ref string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), Within)
	defer cancel()
	img, err := h.Store.Pull(ctx, ref, image.PullOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return ref + "@" + img.Digest
}

// Boot boots a machine with one processor, which goes with the test. change may
// be nil.
func (h *Host) Boot(image string, change func(*driver.VM)) *Machine {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), Within)
	defer cancel()
	h.slots++
	uid := ulid.Make().String()
	vm := driver.VM{
		ID: fmt.Sprint("fuse-guest-", h.slots), UID: uid, Generation: 1, Slot: h.slots, Dir: filepath.Join(h.dir, "host", "vms", uid),
		CPUs: 1, RamMB: 256, StorageGB: 1, Image: image,
	}
	if change != nil {
		change(&vm)
	}
	if err := os.MkdirAll(vm.Dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	c, err := secrets.NewVMCredentials(vm.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Within)
		defer cancel()
		if err := h.Driver.Remove(ctx, vm); err != nil {
			h.t.Error(err)
		}
	})
	inst, err := h.Driver.Start(ctx, vm, driver.Identity{Hostname: vm.ID, MachineID: c.MachineID, Token: c.Token, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = inst.Close() })
	return &Machine{inst, vm, h}
}

// Spent are the CPU seconds that the machine's process has had.
func (m *Machine) Spent() float64 {
	m.h.t.Helper()
	u, err := m.Instance.(driver.Meter).Usage(m.h.t.Context())
	if err != nil {
		m.h.t.Fatal(err)
	}
	return u.CPUSeconds
}

// Exec runs a command and returns its output and how it ended.
func (m *Machine) Exec(spec fleet.ExecSpec, stdin []byte) (string, error) {
	ctx, cancel := context.WithTimeout(m.h.t.Context(), Within)
	defer cancel()
	var out bytes.Buffer
	stdio := fleet.Stdio{Stdout: &out, Stderr: &out}
	if stdin != nil {
		stdio.Stdin = bytes.NewReader(stdin)
	}
	status, err := m.Guest().Exec(ctx, spec, stdio)
	if err == nil && status.ExitCode != 0 {
		err = fmt.Errorf("%q: exit %d: %s", spec.Argv, status.ExitCode, out.String())
	}
	return out.String(), err
}

// Run is Exec for what must succeed.
func (m *Machine) Run(argv ...string) string {
	m.h.t.Helper()
	out, err := m.Exec(fleet.ExecSpec{Argv: argv}, nil)
	if err != nil {
		m.h.t.Error(err)
	}
	return out
}

// Background starts a command that is ended with the test.
func (m *Machine) Background(argv ...string) {
	m.h.t.Helper()
	ctx, cancel := context.WithCancel(m.h.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		var out bytes.Buffer
		_, err := m.Guest().Exec(ctx, fleet.ExecSpec{Argv: argv}, fleet.Stdio{Stdout: &out, Stderr: &out})
		if !errors.Is(err, context.Canceled) && ctx.Err() == nil {
			m.h.t.Errorf("%q ended: %v: %s", argv, err, out.String())
		}
	}()
	m.h.t.Cleanup(func() { cancel(); <-done })
}

// Put writes a program into the guest.
func (m *Machine) Put(path string, program []byte) {
	m.h.t.Helper()
	// A file of the API is bounded, a command's input is not.
	if _, err := m.Exec(fleet.ExecSpec{Argv: []string{"sh", "-c", "cat >" + path + " && chmod 755 " + path}}, program); err != nil {
		m.h.t.Fatal(err)
	}
}

// Publish publishes TCP ports and returns their numbers at the host.
func (m *Machine) Publish(guest ...int) []int {
	m.h.t.Helper()
	want := make([]driver.Port, len(guest))
	for i, p := range guest {
		want[i] = driver.Port{Guest: p, Protocol: fleet.ProtocolTCP}
	}
	got, err := m.Instance.(driver.Publisher).Publish(m.h.t.Context(), want)
	if err != nil {
		m.h.t.Fatal(err)
	}
	numbers := make([]int, len(got))
	for i, p := range got {
		numbers[i] = p.Host
	}
	return numbers
}

// Build builds a static program of this module, and returns its path.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}
