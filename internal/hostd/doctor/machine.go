package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/diskspace"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/network"
)

// Machine are the checks that need nothing but the machine. dir is the data
// directory, which need not be there yet, listen the address of the API.
func Machine(dir, listen string) []Check {
	return []Check{
		{"root", root},
		{"tools", tools},
		{"kernel", kernel},
		{"cgroups", cgroups},
		{"docker", docker},
		{"memory", memory},
		{"disk", func(context.Context) Finding { return diskRoom(dir) }},
		{"files", files},
		{"clock", clock},
		{"port", func(ctx context.Context) Finding { return port(ctx, listen) }},
	}
}

// Accelerator is the check that boots a guest: probe says how guests run here,
// with which QEMU, and why not with KVM.
func Accelerator(probe func(ctx context.Context) (accelerator, version, why string, err error)) Check {
	return Check{"kvm", func(ctx context.Context) Finding {
		accel, version, why, err := probe(ctx)
		switch {
		case err != nil:
			remedy := "apt-get install qemu-system-x86 (qemu-system-arm on arm64), 7.2 or newer"
			var known *fleet.Error
			if errors.As(err, &known) && known.Details[fleet.DetailRemedy] != "" {
				remedy = known.Details[fleet.DetailRemedy]
			}
			return fail(remedy, "%v", err)
		case accel != "kvm":
			return warn("turn virtualization on in the firmware, or nested virtualization on the hypervisor, and load the kvm_intel or kvm_amd module; without it guests run ten times slower",
				"QEMU %s without KVM: %s", version, why)
		}
		return ok("QEMU %s, a guest boots with KVM", version)
	}}
}

// LiveSnapshots is the check of what a live snapshot needs so as not to stop its
// machine: works says why QEMU is not given a userfaultfd.
func LiveSnapshots(works func() error) Check {
	return Check{"snapshots", func(context.Context) Finding {
		const costs = "a live snapshot stops its machine for as long as its memory takes to be copied"
		err := works()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return warn("use a kernel with CONFIG_USERFAULTFD, 5.7 or newer", "the kernel has no userfaultfd: %s", costs)
		case err != nil:
			return warn("run the host agent as root, or sysctl -w vm.unprivileged_userfaultfd=1", "%v: %s", err, costs)
		}
		return ok("the kernel's userfaultfd can be used; a live snapshot stops its machine for milliseconds")
	}}
}

func root(context.Context) Finding {
	if uid := os.Geteuid(); uid != 0 {
		return warn("run the host agent as root", "running as user %d: guests get QEMU's user networking, from which they reach what this machine reaches, and no limits", uid)
	}
	return ok("running as root")
}

// programs are what hosts call, with the Debian package of each.
var programs = [][2]string{{"mke2fs", "e2fsprogs"}, {"busybox", "busybox-static"}, {"dpkg-deb", "dpkg"}, {"apt-get", "apt"}}

func tools(context.Context) Finding {
	var missing, pkgs []string
	for _, p := range programs {
		_, err := exec.LookPath(p[0])
		if _, serr := os.Stat(filepath.Join("/usr/sbin", p[0])); err != nil && serr != nil {
			missing, pkgs = append(missing, p[0]), append(pkgs, p[1])
		}
	}
	if len(missing) > 0 {
		return warn("apt-get install "+strings.Join(pkgs, " "), "not installed: %s; images cannot be built here", strings.Join(missing, ", "))
	}
	return ok("what builds images is installed")
}

func kernel(context.Context) Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fail("", "the kernel does not say what it is: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	if err := network.Available(); err != nil {
		return warn("run as root with the kernel's tun, veth and nf_tables modules: modprobe -a tun veth nf_tables",
			"Linux %s, no networks of their own for guests: %v", release, err)
	}
	return ok("Linux %s has network namespaces and taps", release)
}

func cgroups(context.Context) Finding {
	m := cgroup.Open("fuse/doctor")
	if missing := m.Missing(); len(missing) > 0 {
		return warn("mount the cgroup hierarchy with the memory, cpu and pids controllers, and run as root",
			"cgroups v%d; the limits of %s cannot be kept, and one guest may take a neighbour's share", m.Version(), strings.Join(missing, ", "))
	}
	return ok("cgroups v%d, every limit works", m.Version())
}

func docker(context.Context) Finding {
	if os.Geteuid() != 0 {
		return warn("run as root to see it", "whether Docker drops what is forwarded cannot be seen")
	}
	drops, room, err := network.ForwardPolicy()
	switch {
	case err != nil:
		return warn("modprobe nf_tables", "the packet filter cannot be read: %v", err)
	case drops && !room:
		return fail("iptables -P FORWARD ACCEPT, or let Docker make its chain DOCKER-USER", "the FORWARD policy is drop and there is no DOCKER-USER chain: guests have no way out")
	case drops:
		return ok("Docker drops what is forwarded; the host agent adds its accepts to DOCKER-USER")
	}
	return ok("nothing drops what is forwarded")
}

// leastMemory is what one guest of the default size and its process want.
const leastMemoryMB = 1024

func memory(context.Context) Finding {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return warn("mount /proc", "memory cannot be read: %v", err)
	}
	defer f.Close()
	total, available, huge := meminfo(f)
	if available < leastMemoryMB {
		return warn("end what needs much memory, or give this machine more", "%d of %d MiB of memory are available; an environment of the default size does not fit", available, total)
	}
	return ok("%d of %d MiB of memory are available, %d free huge pages", available, total, huge)
}

// meminfo reads memory in MiB and the number of free huge pages.
func meminfo(r io.Reader) (total, available, huge int) {
	for s := bufio.NewScanner(r); s.Scan(); {
		key, rest, _ := strings.Cut(s.Text(), ":")
		field, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		n, err := strconv.Atoi(field)
		if err != nil {
			continue
		}
		switch key {
		case "MemTotal":
			total = n >> 10
		case "MemAvailable":
			available = n >> 10
		case "HugePages_Free":
			huge = n
		}
	}
	return total, available, huge
}

// leastDisk is below what a host should have free: images, and disks that grow.
const leastDiskGB = 10

func diskRoom(dir string) Finding {
	at := dir
	for {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	free, total, err := diskspace.Free(at)
	if err != nil {
		return fail("choose another --data-dir", "%v", err)
	}
	probe, err := os.CreateTemp(at, ".fuse-doctor-*")
	if err != nil {
		return fail("make it writable for this user, or choose another --data-dir", "%s: %v", at, err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return fail("check the file system", "%s: %v", at, err)
	}
	if free>>30 < leastDiskGB {
		return warn("make room, or choose another --data-dir", "%d of %d GiB free at %s; below %d GiB environments soon run out of disk", free>>30, total>>30, at, leastDiskGB)
	}
	return ok("%d of %d GiB free at %s", free>>30, total>>30, at)
}

// leastFiles allows for some hundred guests: a dozen descriptors each.
const leastFiles = 8192

func files(context.Context) Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return warn("", "the limit on open files cannot be read: %v", err)
	}
	if limit.Max < leastFiles {
		return warn(fmt.Sprintf("raise it: LimitNOFILE=%d in the unit, or ulimit -n", leastFiles), "at most %d open files, enough for about %d environments", limit.Max, limit.Max/32)
	}
	return ok("up to %d open files", limit.Max)
}

// clock matters where several machines compare deadlines and certificates.
func clock(context.Context) Finding {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case err != nil:
		return warn("", "the state of the clock cannot be read: %v", err)
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		return warn("apt-get install chrony", "nothing keeps this clock right; certificates and deadlines across machines depend on it")
	}
	return ok("the clock is kept right")
}

func port(ctx context.Context, listen string) Finding {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listen)
	if err == nil {
		if err := l.Close(); err != nil {
			return warn("", "%s: %v", listen, err)
		}
		return ok("%s is free", listen)
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return fail("choose another --listen", "%s cannot be listened on: %v", listen, err)
	}
	var d net.Dialer
	conn, derr := d.DialContext(ctx, "tcp", listen)
	if derr != nil {
		return fail("choose another --listen", "%s is taken, and nothing answers there", listen)
	}
	_ = conn.Close() // nothing was said on it
	return warn("if that is not Fuse, choose another --listen", "%s is taken by a program that runs already", listen)
}
