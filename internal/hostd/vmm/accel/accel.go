// Package accel finds out how guests run on a host: with KVM where a guest
// really boots with it, in software emulation elsewhere.
package accel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// KVMDevice is the kernel's, File the name of the record.
const (
	KVMDevice = "/dev/kvm"
	File      = "probe.json"
	// A guest that KVM can run says its first word in a fraction of a second
	// and is through with its kernel in two; one that hangs stays silent.
	probeFirst = 3 * time.Second
	probeTotal = 20 * time.Second
)

// Config says what a Prober works with.
type Config struct {
	Dir    string // of its record
	QEMU   string // the program; empty means qemu-system-ARCH in PATH
	Accel  string // what the configuration says; empty: find out
	Images *image.Store
	UID    int // that a guest's process runs as
	Logger *slog.Logger
}

// Found is what was found out about this host's QEMU. It holds for one boot of
// the host and one QEMU.
type Found struct {
	BootID  string `json:"boot_id"`
	Program string `json:"program"`
	Version string `json:"version"`
	Accel   string `json:"accel"`
	// Why KVM is not used, empty if it is.
	Why string `json:"why,omitempty"`
}

// Prober finds out what this host's QEMU can do, once.
type Prober struct {
	cfg     Config
	machine vmm.Machine
	bootID  string
	lock    chan struct{} // one token: the right to probe
	found   *Found

	// First is how long a guest may be silent, Total how long it may take in all.
	First, Total time.Duration
}

// New makes a Prober.
func New(cfg Config, m vmm.Machine, bootID string) *Prober {
	return &Prober{cfg: cfg, machine: m, bootID: bootID, lock: make(chan struct{}, 1), First: probeFirst, Total: probeTotal}
}

// Accelerator says how guests run here. The first call of a boot of the host
// tries KVM by booting a guest with it; the device node alone proves nothing,
// since some nested hosts have one whose guests hang.
func (b *Prober) Accelerator(ctx context.Context) (Found, error) {
	select {
	case b.lock <- struct{}{}:
		defer func() { <-b.lock }()
	case <-ctx.Done():
		return Found{}, ctx.Err()
	}
	if b.found != nil {
		return *b.found, nil
	}
	program, err := b.Program()
	if err != nil {
		return Found{}, err
	}
	p := Found{BootID: b.bootID, Program: program}
	if p.Version, err = qemuVersion(ctx, program); err != nil {
		return Found{}, err
	}
	dir := b.cfg.Dir
	old, err := record.Read[Found](dir, File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.cfg.Logger.Warn("result of an earlier probe unreadable", "error", err)
	}
	switch {
	case b.cfg.Accel != "":
		p.Accel, p.Why = b.cfg.Accel, "the configuration says so"
	case err == nil && old.BootID == p.BootID && old.Program == p.Program && old.Version == p.Version:
		p = old
	default:
		if err := b.tryKVM(ctx, &p); err != nil {
			return Found{}, err
		}
		if err := record.Write(dir, File, p); err != nil {
			return Found{}, err
		}
		b.cfg.Logger.Info("accelerator probed", "accelerator", p.Accel, "why", p.Why, "qemu", p.Version)
	}
	b.found = &p
	return p, nil
}

// Program finds QEMU.
func (b *Prober) Program() (string, error) {
	name := b.cfg.QEMU
	if name == "" {
		name = b.machine.Program
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fleet.Errorf(fleet.CodeUnavailable, "QEMU is missing on this host: %s was not found", name).
			With(fleet.DetailStep, "process").
			With(fleet.DetailRemedy, "apt-get install "+b.machine.Package)
	}
	return path, nil
}

// tryKVM boots a kernel without a root. It panics at its end, which resets the
// machine, which ends QEMU: that is a guest that ran.
func (b *Prober) tryKVM(ctx context.Context, p *Found) error {
	p.Accel = vmm.TCG
	if err := unix.Access(KVMDevice, unix.R_OK|unix.W_OK); err != nil {
		p.Why = fmt.Sprintf("%s: %v", KVMDevice, err)
		return nil
	}
	k, err := b.cfg.Images.Kernel(ctx, nil)
	if err != nil {
		return fmt.Errorf("probe KVM: %w", err)
	}
	kernel, err := os.Open(k.Path)
	if err != nil {
		return fmt.Errorf("probe KVM: %w", err)
	}
	defer func() { _ = kernel.Close() }()
	if err := b.bootProbe(ctx, p.Program, kernel); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.Why = "a guest does not boot with " + KVMDevice + ": " + err.Error()
		return nil
	}
	p.Accel = vmm.KVM
	return nil
}

// bootProbe runs QEMU as a VM's would be: as a user of its own, who must be
// allowed to use the device.
func (b *Prober) bootProbe(ctx context.Context, program string, kernel *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.Total, errors.New("it does not come to an end"))
	defer cancel()
	ctx, silent := context.WithCancelCause(ctx)
	defer silent(nil)
	args := []string{
		"-no-user-config", "-nodefaults", "-display", "none", "-machine", b.machine.Options, "-m", "256",
		"-object", "memory-backend-ram,id=ram,size=256M", "-no-reboot", "-serial", "stdio", "-kernel", "/proc/self/fd/3",
		"-append", "console=" + b.machine.Console + " earlycon panic=-1",
	}
	args = append(args, b.machine.AccelArgs(vmm.KVM)...)
	if rom := b.machine.BIOS(); rom != "" {
		args = append(args, "-bios", rom)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{kernel}
	// The process dies with the thread that starts it, so that one stays ours.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = vmm.Credential(b.cfg.UID, KVMGroup())
	}
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(b.First, func() { silent(errors.New("it is silent")) })
	defer timer.Stop()
	out := &firstWrite{then: func() { timer.Stop() }}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, console.Printable(out.kept.String()))
	}
	return nil
}

// firstWrite keeps a bounded part of what is written and tells of the first.
type firstWrite struct {
	kept bytes.Buffer // not embedded: its ReadFrom would bypass Write
	then func()
}

func (w *firstWrite) Write(b []byte) (int, error) {
	if w.kept.Len() == 0 {
		w.then()
	}
	if w.kept.Len() < console.TailBytes {
		w.kept.Write(b[:min(len(b), console.TailBytes)])
	}
	return len(b), nil
}

var versionText = regexp.MustCompile(`version (\d+)\.(\d+)\.(\d+)`)

// minVersion is the oldest QEMU that is known to do what is asked of it.
var minVersion = []int{7, 2}

func qemuVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").CombinedOutput()
	if err != nil {
		return "", fleet.Errorf(fleet.CodeUnavailable, "ask QEMU for its version: %w: %s", err, console.Printable(string(out)))
	}
	return parseVersion(string(out))
}

func parseVersion(text string) (string, error) {
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return "", fleet.Errorf(fleet.CodeUnavailable, "QEMU's version is not to be read from %q", console.Printable(text))
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	version := m[1] + "." + m[2] + "." + m[3]
	if slices.Compare([]int{major, minor}, minVersion) < 0 {
		return "", fleet.Errorf(fleet.CodeUnavailable, "QEMU %s is too old", version).
			With(fleet.DetailLimit, fmt.Sprintf("%d.%d or newer", minVersion[0], minVersion[1])).
			With(fleet.DetailRemedy, "install a newer one, such as Debian 12's")
	}
	return version, nil
}

// KVMGroup is the group that may use /dev/kvm, or -1.
func KVMGroup() int {
	var st unix.Stat_t
	if err := unix.Stat(KVMDevice, &st); err != nil || st.Mode&0o060 != 0o060 {
		return -1
	}
	return int(st.Gid)
}
