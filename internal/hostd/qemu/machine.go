package qemu

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/tsc"
)

const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

// machine is what differs between architectures.
type machine struct {
	arch    string
	program string
	pkg     string // Debian's
	options string // of -machine
	console string // the kernel's name of the serial port
	tcgCPU  string
	bios    []string // candidates of -bios, the first that is there
	cmdline string
}

// cmdline of every guest. A panic reboots at once; the guest then gets a new
// boot id, by which it is told apart. The kernel's tests of its own ciphers
// would cost half a second of emulation at each boot.
const cmdline = "quiet panic=-1 random.trust_cpu=on cryptomgr.notests=1"

var machines = map[string]machine{
	fleet.ArchAMD64: {
		arch: fleet.ArchAMD64, program: "qemu-system-x86_64", pkg: "qemu-system-x86",
		// No legacy devices: less to probe at boot, less to attack.
		options: "q35,memory-backend=ram,vmport=off,smbus=off,sata=off,usb=off",
		console: "ttyS0", tcgCPU: "max,la57=off",
		// qboot enters the kernel without a BIOS's own second of work.
		bios:    []string{"/usr/share/qemu/qboot.rom", "/usr/share/qemu/bios-microvm.bin"},
		cmdline: "tsc=reliable no_timer_check 8250.nr_uarts=1",
	},
	fleet.ArchARM64: {
		arch: fleet.ArchARM64, program: "qemu-system-aarch64", pkg: "qemu-system-arm",
		options: "virt,memory-backend=ram,gic-version=max",
		console: "ttyAMA0", tcgCPU: "max",
	},
}

func hostMachine() (machine, error) {
	m, ok := machines[fleet.NormalizeArch(runtime.GOARCH)]
	if !ok {
		return machine{}, fmt.Errorf("qemu: no machine for the architecture %s", runtime.GOARCH)
	}
	return m, nil
}

// kernelArgs is the guest's kernel command line. An emulated processor has this
// machine's own time stamp counter and no means to tell its frequency: a guest
// that measured it on a busy host would get it wrong.
func (m machine) kernelArgs(accel string) string {
	args := strings.TrimSpace("console=" + m.console + " " + cmdline + " " + m.cmdline)
	if khz := tsc.KHz(); accel == accelTCG && khz > 0 {
		args += fmt.Sprintf(" tsc_early_khz=%d", khz)
	}
	return args
}

// accelArgs are -accel and -cpu. The translation cache is bounded, since
// under TCG it is most of what a process needs beyond guest RAM; five-level
// paging would only slow the emulation of page walks down.
func (m machine) accelArgs(accel string) []string {
	if accel == accelKVM {
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
	overheadSlack  = 256
	threadsPerVM   = 96 // vCPUs come on top
	deviceCPUShare = 0.5
)

func overheadMB(accel string) int {
	if accel == accelKVM {
		return overheadKVM
	}
	return overheadTCG
}
