package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image/cpio"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// BenchmarkColdBoot compares, in turns, a start up to the end of the first
// command with a bare QEMU that boots the same kernel and root to its own init.
// The goal is a ratio of 1.5 at most.
func BenchmarkColdBoot(b *testing.B) {
	h := newBench(b, Config{})
	initrd := bareInitrd(b)
	bareBoot(b, h, initrd) // files are in the page cache from here on
	var bare, ours time.Duration
	for b.Loop() {
		bare += bareBoot(b, h, initrd)
		begun := time.Now()
		vm := h.vm()
		inst := h.bootAndExec(vm)
		ours += time.Since(begun)
		h.end(inst, vm)
	}
	b.ReportMetric(float64(bare.Milliseconds())/float64(b.N), "bare-ms")
	b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "fuse-ms")
	b.ReportMetric(ours.Seconds()/bare.Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkEightAtOnce starts eight VMs at the same time and waits for the
// first command in each.
func BenchmarkEightAtOnce(b *testing.B) {
	h := newBench(b, Config{})
	for b.Loop() {
		insts := make([]driver.Instance, 8)
		vms := make([]driver.VM, len(insts))
		for i := range vms {
			vms[i] = h.vm()
		}
		var wg sync.WaitGroup
		for i, vm := range vms {
			wg.Go(func() { insts[i] = h.bootAndExec(vm) })
		}
		wg.Wait()
		b.StopTimer()
		for i, vm := range vms {
			h.end(insts[i], vm)
		}
		b.StartTimer()
	}
}

// BenchmarkIdleMemory measures what an idle VM's process holds beyond the
// memory that is the guest's: resident, and its own share of that.
func BenchmarkIdleMemory(b *testing.B) {
	h := newBench(b, Config{})
	vm := h.vm()
	inst := h.bootAndExec(vm)
	defer h.end(inst, vm)
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil {
		b.Fatal(err)
	}
	var rss, pss, guest int64
	for b.Loop() {
		rss, pss, guest = beyondGuest(b, rec.PID, int64(vm.RamMB)<<10)
	}
	b.ReportMetric(float64(rss)/1024, "rss-MiB")
	b.ReportMetric(float64(pss)/1024, "pss-MiB")
	b.ReportMetric(float64(guest)/1024, "guest-MiB")
	b.ReportMetric(0, "ns/op")
}

func (b *bench) bootAndExec(vm driver.VM) driver.Instance {
	inst, err := b.start(vm)
	if err != nil {
		b.t.Error(err)
		return nil
	}
	st, err := inst.Guest().Exec(context.Background(), fleet.ExecSpec{Argv: []string{"true"}}, fleet.Stdio{})
	if err != nil || st.ExitCode != 0 {
		b.t.Errorf("first command: %+v, %v", st, err)
	}
	return inst
}

func (b *bench) end(inst driver.Instance, vm driver.VM) {
	if inst == nil {
		return
	}
	if err := errors.Join(inst.Close(), b.d.Remove(context.Background(), vm)); err != nil {
		b.t.Error(err)
	}
}

const bareInit = `#!/busybox sh
/busybox mkdir -p /dev /proc /root
/busybox mount -t devtmpfs dev /dev
while read m; do /busybox insmod $m; done < ` + guestwire.ModulesPath + `
/busybox mount -t ext4 /dev/vda /root
/busybox mount --move /dev /root/dev
exec /busybox switch_root /root /sbin/init
`

// bareInitrd has the same modules and a shell script instead of the guest
// agent.
func bareInitrd(b *testing.B) string {
	b.Helper()
	k, err := imagetest.Store(b).Kernel(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	modules, err := os.ReadFile(filepath.Join(filepath.Dir(k.Path), "modules.cpio"))
	if err != nil {
		b.Fatal(err)
	}
	path, err := exec.LookPath("busybox")
	if err != nil {
		b.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	out := filepath.Join(b.TempDir(), "bare.cpio")
	f, err := os.Create(out)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(modules); err != nil {
		b.Fatal(err)
	}
	a := cpio.NewWriter(f)
	_ = a.File("busybox", 0o755, int64(len(busybox)), strings.NewReader(string(busybox)))
	_ = a.File("init", 0o755, int64(len(bareInit)), strings.NewReader(bareInit))
	if err := a.Close(); err != nil {
		b.Fatal(err)
	}
	return out
}

// bareBoot boots to the init of the root itself, which invites to a shell.
func bareBoot(b *testing.B, h *bench, initrd string) time.Duration {
	b.Helper()
	img, err := imagetest.Store(b).Get("minimal")
	if err != nil {
		b.Fatal(err)
	}
	k, err := imagetest.Store(b).Kernel(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	p, err := h.d.prober.Accelerator(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	overlay := filepath.Join(b.TempDir(), "bare.qcow2")
	d, err := disk.CreateOverlay(overlay, img.Path, 1<<30)
	if err != nil {
		b.Fatal(err)
	}
	d.Close()
	m := h.d.machine
	args := append(m.AccelArgs(p.Accel), "-nodefaults", "-display", "none", "-machine", m.Options, "-m", "256",
		"-object", "memory-backend-ram,id=ram,size=256M", "-serial", "stdio", "-kernel", k.Path, "-initrd", initrd,
		"-append", m.KernelArgs(p.Accel), "-drive", "if=virtio,format=qcow2,file="+overlay,
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile=")
	if rom := m.BIOS(); rom != "" {
		args = append(args, "-bios", rom)
	}
	begun := time.Now()
	cmd := exec.Command(p.Program, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	limit := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	var text strings.Builder
	for r := bufio.NewReader(out); ; {
		c, err := r.ReadByte()
		if err != nil {
			b.Fatalf("the bare guest ended: %s", console.Printable(text.String()))
		}
		text.WriteByte(c)
		if c == '.' && strings.HasSuffix(text.String(), "activate this console.") {
			return time.Since(begun)
		}
	}
}

// beyondGuest sums a process's mappings, in KiB, apart from the one of ram KiB.
func beyondGuest(b *testing.B, pid int, ram int64) (rss, pss, guest int64) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		b.Fatal(err)
	}
	isGuest := false
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasSuffix(f[0], ":") {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch {
		case f[0] == "Size:":
			isGuest = n == ram
		case f[0] == "Rss:" && isGuest:
			guest += n
		case f[0] == "Rss:":
			rss += n
		case f[0] == "Pss:" && !isGuest:
			pss += n
		}
	}
	return rss, pss, guest
}
