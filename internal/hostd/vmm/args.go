package vmm

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"

	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/guestmem"
	"github.com/fusevm/fuse/internal/hostd/network"
)

// RootSerial names the root disk to the guest.
const RootSerial = "fuse-root"

// RootDisk is QEMU's own name for its device.
const RootDisk = "root-disk"

// firstFile is the descriptor of the first file, after the standard ones.
const firstFile = 3

// Files numbers the descriptors that a process gets.
type Files struct{ list []*os.File }

// Add returns the number that f will have.
func (f *Files) Add(file *os.File) int {
	f.list = append(f.list, file)
	return firstFile + len(f.list) - 1
}

// List is for Launch.
func (f *Files) List() []*os.File { return f.list }

// Close closes all of them.
func (f *Files) Close() {
	for _, file := range f.list {
		_ = file.Close()
	}
	f.list = nil
}

// Layer is one overlay of a disk: the number that its names carry, and its
// descriptors.
type Layer struct {
	Number   int
	FD       int // may be written in the topmost one
	ReadOnly int // the same file once more, for when it is frozen; 0: none
}

// Node is the name of a layer's block node; that of its file ends in -file.
func Node(number int) string {
	if number == 0 {
		return "disk"
	}
	return "disk-" + strconv.Itoa(number)
}

// Set is the number of a layer's set of descriptors.
func Set(number int) int { return 100 + number }

// RootNode is the block node of the image.
const RootNode = "root"

// Spec is one QEMU process.
type Spec struct {
	Accel string
	Name  string // after "guest="
	VM    driver.VM
	// Incarnation is new with each process: by it a guest tells that it is in
	// another one.
	Incarnation string
	Netdev      string
	Root        int     // descriptor of the image; 0: a disk of nothing
	Layers      []Layer // from the image up
	NullSize    int64   // of the disk of nothing, in bytes
	Console     int
	QMP         int      // a listening socket
	Extra       []string // devices of the VM's beside these
	Kernel      int
	Initrd      int
	// Memory is a descriptor of the guest's memory; 0: memory of its own. What
	// is written there others see if it is Shared.
	Memory int
	Shared bool
	// Incoming waits for a state to be resumed instead of booting.
	Incoming bool
}

// Args is the command line, without the program.
func (m Machine) Args(s Spec) []string {
	args := []string{
		"-name", "guest=" + s.Name + ",debug-threads=on",
		"-no-user-config", "-nodefaults", "-display", "none",
		"-machine", m.Options,
	}
	args = append(args, m.AccelArgs(s.Accel)...)
	if rom := m.BIOS(); rom != "" {
		args = append(args, "-bios", rom)
	}
	args = append(args,
		"-smp", strconv.Itoa(s.VM.CPUs),
		"-m", strconv.Itoa(guestmem.Size(s.VM.RamMB, s.VM.HugePages)),
		"-object", s.memory(),
		// A guest that powers off leaves its process waiting, so that the
		// reason can be read even if nobody listened at that moment.
		"-no-shutdown",
		"-action", "panic=none", // the guest reboots by itself
		"-add-fd", fmt.Sprintf("fd=%d,set=3", s.Console),
	)
	args = append(args, s.disks()...)
	args = append(args,
		// A full host disk is an I/O error in the guest, not a frozen guest.
		"-device", "virtio-blk-pci,id="+RootDisk+",drive="+s.top()+",serial="+RootSerial+",werror=report,rerror=report",
		"-netdev", s.Netdev,
		"-device", "virtio-net-pci,netdev=n0,romfile=,mac="+network.GuestMAC.String(),
		"-chardev", "file,id=console,path=/dev/fdset/3,append=on",
		"-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d,server=on,wait=off", s.QMP),
		"-mon", "chardev=qmp,mode=control",
		"-fw_cfg", "name="+IncarnationFile+",string="+s.Incarnation,
		"-kernel", fmt.Sprintf("/proc/self/fd/%d", s.Kernel),
		"-initrd", fmt.Sprintf("/proc/self/fd/%d", s.Initrd),
		"-append", m.KernelArgs(s.Accel),
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
	)
	if m.Panic != "" {
		args = append(args, "-device", m.Panic)
	}
	args = append(args, s.Extra...)
	if s.Incoming {
		args = append(args, "-incoming", "defer", "-S")
	}
	return args
}

// NewIncarnation is one that no process has had.
func NewIncarnation() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// IncarnationFile is where the guest finds the Incarnation, among the files of
// its firmware.
const IncarnationFile = "opt/fuse/incarnation"

func (s Spec) memory() string {
	if s.Memory == 0 {
		return guestmem.Object(s.VM.RamMB, s.VM.HugePages)
	}
	share := "off"
	if s.Shared {
		share = "on"
	}
	return fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=/proc/self/fd/%d,share=%s", s.VM.RamMB, s.Memory, share)
}

func (s Spec) top() string {
	if s.Root == 0 {
		return Node(0)
	}
	return Node(s.Layers[len(s.Layers)-1].Number)
}

func (s Spec) disks() []string {
	if s.Root == 0 {
		return []string{"-blockdev", fmt.Sprintf("driver=null-co,node-name=%s,size=%d", Node(0), s.NullSize)}
	}
	args := []string{
		"-add-fd", fmt.Sprintf("fd=%d,set=2", s.Root),
		"-blockdev", "driver=file,node-name=root-file,filename=/dev/fdset/2,read-only=on",
		"-blockdev", "driver=raw,node-name=" + RootNode + ",file=root-file,read-only=on",
	}
	below := RootNode
	for i, l := range s.Layers {
		node, access := Node(l.Number), ",read-only=on"
		if i == len(s.Layers)-1 {
			access = ",discard=unmap"
		}
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", l.FD, Set(l.Number)))
		if l.ReadOnly != 0 {
			args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", l.ReadOnly, Set(l.Number)))
		}
		args = append(args,
			"-blockdev", fmt.Sprintf("driver=file,node-name=%s-file,filename=/dev/fdset/%d%s", node, Set(l.Number), access),
			"-blockdev", fmt.Sprintf("driver=qcow2,node-name=%s,file=%s-file,backing=%s%s", node, node, below, access))
		below = node
	}
	return args
}
