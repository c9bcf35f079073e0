// Package vmm is how QEMU is called: the machine of each architecture, the
// command line of a VM and of what captures it, and the process itself. The
// command line names no file of ours; all are descriptors.
package vmm

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/tsc"
)

// Accelerators.
const (
	KVM = "kvm"
	TCG = "tcg"
)

// Machine is what differs between architectures.
type Machine struct {
	Arch    string
	Program string
	Package string // Debian's
	Options string // of -machine
	Console string // the kernel's name of the serial port
	tcgCPU  string
	bios    []string // candidates of -bios, the first that is there
	Cmdline string
	// Panic is the device by which a guest's kernel says that it panicked. It
	// has no state, so captures made without it go on with it. Empty: none.
	Panic string
}

// cmdline of every guest. A panic reboots at once; the guest then gets a new
// boot id, by which it is told apart. The kernel's tests of its own ciphers
// would cost half a second of emulation at each boot.
const cmdline = "quiet panic=-1 random.trust_cpu=on cryptomgr.notests=1"

var machines = map[string]Machine{
	fleet.ArchAMD64: {
		Arch: fleet.ArchAMD64, Program: "qemu-system-x86_64", Package: "qemu-system-x86",
		// No legacy devices: less to probe at boot, less to attack.
		Options: "q35,memory-backend=ram,vmport=off,smbus=off,sata=off,usb=off",
		Console: "ttyS0", tcgCPU: "max,la57=off",
		// qboot enters the kernel without a BIOS's own second of work.
		bios:    []string{"/usr/share/qemu/qboot.rom", "/usr/share/qemu/bios-microvm.bin"},
		Cmdline: "tsc=reliable no_timer_check 8250.nr_uarts=1",
		Panic:   "pvpanic",
	},
	fleet.ArchARM64: {
		Arch: fleet.ArchARM64, Program: "qemu-system-aarch64", Package: "qemu-system-arm",
		Options: "virt,memory-backend=ram,gic-version=max",
		Console: "ttyAMA0", tcgCPU: "max",
	},
}

// Host is the machine of this host's architecture.
func Host() (Machine, error) {
	m, ok := machines[fleet.NormalizeArch(runtime.GOARCH)]
	if !ok {
		return Machine{}, fmt.Errorf("qemu: no machine for the architecture %s", runtime.GOARCH)
	}
	return m, nil
}

// KernelArgs is the guest's kernel command line. An emulated processor has this
// machine's own time stamp counter and no means to tell its frequency: a guest
// that measured it on a busy host would get it wrong.
func (m Machine) KernelArgs(accel string) string {
	args := strings.TrimSpace("console=" + m.Console + " " + cmdline + " " + m.Cmdline)
	if khz := tsc.KHz(); accel == TCG && khz > 0 {
		args += fmt.Sprintf(" tsc_early_khz=%d", khz)
	}
	return args
}

// AccelArgs are -accel and -cpu. The translation cache is bounded, since
// under TCG it is most of what a process needs beyond guest RAM; five-level
// paging would only slow the emulation of page walks down.
func (m Machine) AccelArgs(accel string) []string {
	if accel == KVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", fmt.Sprintf("tcg,thread=multi,tb-size=%d", tbSizeMB), "-cpu", m.tcgCPU}
}

// Memory of a VM process beyond guest RAM, in MiB: what admission reserves
// and what the cgroup allows.
const (
	tbSizeMB       = 128
	overheadTCG    = 256
	overheadKVM    = 96
	OverheadSlack  = 256
	ThreadsPerVM   = 96 // vCPUs come on top
	DeviceCPUShare = 0.5
)

// OverheadMB is what a process needs beyond its guest's memory, in MiB.
func OverheadMB(accel string) int {
	if accel == KVM {
		return overheadKVM
	}
	return overheadTCG
}

// CPUModel is what the guest's processor is called in captures.
func (m Machine) CPUModel(accel, host string) string {
	if accel == KVM {
		return "host: " + host
	}
	return m.tcgCPU
}

// BIOS is the program that enters the kernel, empty for QEMU's own.
func (m Machine) BIOS() string {
	for _, rom := range m.bios {
		if _, err := os.Stat(rom); err == nil {
			return rom
		}
	}
	return ""
}
