package bounds

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// qemu is a machine that never boots, with a disk of nothing.
func qemu(t *testing.T) (*qmp.Client, int) {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "qmp")
	program := "qemu-system-x86_64"
	if fleet.NormalizeArch(strings.TrimSpace(string(must(exec.Command("uname", "-m").Output()))) /* of this machine */) == fleet.ArchARM64 {
		program = "qemu-system-aarch64"
	}
	cmd := exec.Command(program, "-M", "virt,accel=tcg", "-S", "-m", "32", "-nodefaults", "-display", "none",
		"-blockdev", "driver=null-co,node-name=disk,size=1048576", "-device", "virtio-blk-pci,drive=disk,id="+vmm.RootDisk,
		"-qmp", "unix:"+sock+",server=on,wait=off")
	if program == "qemu-system-x86_64" {
		cmd.Args[2] = "q35,accel=tcg"
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var c *qmp.Client
	testkit.Eventually(t, 2*time.Minute, "QEMU listens", func() (ok bool) {
		var err error
		c, err = qmp.Dial(context.Background(), sock, func(qmp.Event) {})
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c, cmd.Process.Pid
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// slots notes what the network was asked for.
type slots struct{ in, out int64 }

func (s *slots) Shape(_ context.Context, _ int, in, out int64) error {
	s.in, s.out = in, out
	return nil
}
func (s *slots) Traffic(int) (uint64, uint64, error) { return 11, 22, nil }

func TestLimitsReachTheMachine(t *testing.T) {
	c, pid := qemu(t)
	group, err := cgroup.Open("fuse/bounds-test").Create("vm", cgroup.Limits{CPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = group.Remove(context.Background()) })
	net := &slots{}
	m := Machine{VM: driver.VM{ID: "vm", UID: "u", CPUs: 2, Dir: t.TempDir()}, PID: pid, QMP: c, Group: group, Net: net, Beside: 0.5}
	l := fleet.ResourceLimits{CPUMillis: 700, CPUWeight: 42, DiskReadBps: 1 << 20, DiskWriteBps: 2 << 20, DiskIOPS: 300, NetInBps: 5000, NetOutBps: 6000}
	if err := m.Apply(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := throttled(t, c); got != [3]int64{1 << 20, 2 << 20, 300} || net.in != 5000 || net.out != 6000 {
		t.Errorf("the disk has %v, the network %+v", got, net)
	}
	if err := m.Apply(t.Context(), fleet.ResourceLimits{}); err != nil {
		t.Fatal(err)
	}
	if got := throttled(t, c); got != [3]int64{} || net.in != 0 {
		t.Errorf("without limits the disk has %v, the network %+v", got, net)
	}
	if err := m.SetLimits(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	net.in = 0
	if err := m.Start(t.Context()); err != nil || net.in != 5000 {
		t.Errorf("started again it has %+v, %v", net, err)
	}
	disk := filepath.Join(m.VM.Dir, "disk.qcow2")
	if err := os.WriteFile(disk, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := m.Usage(t.Context())
	if err != nil || u.UID != "u" || u.CPUSeconds <= 0 || u.MemoryBytes < 1<<20 || u.DiskBytes < 64<<10 || u.NetInBytes != 11 || u.NetOutBytes != 22 {
		t.Errorf("%+v, %v", u, err)
	}
	m.PID = 1 << 30
	if _, err := m.Usage(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a process that is gone: %v", err)
	}
}

// throttled is what QEMU says of the disk.
func throttled(t *testing.T, c *qmp.Client) [3]int64 {
	t.Helper()
	var blocks []struct {
		Inserted struct {
			Read  int64 `json:"bps_rd"`
			Write int64 `json:"bps_wr"`
			IOPS  int64 `json:"iops"`
		} `json:"inserted"`
	}
	if err := c.Execute(t.Context(), "query-block", nil, &blocks); err != nil || len(blocks) != 1 {
		t.Fatal(err, len(blocks))
	}
	i := blocks[0].Inserted
	return [3]int64{i.Read, i.Write, i.IOPS}
}

func TestWhatAHostCannotKeepIsRefused(t *testing.T) {
	for _, c := range []struct {
		m Machine
		l fleet.ResourceLimits
	}{{Machine{}, fleet.ResourceLimits{NetInBps: 5000}}, {Machine{Net: &slots{}}, fleet.ResourceLimits{CPUMillis: 500}}} {
		if err := c.m.Apply(t.Context(), c.l); fleet.CodeOf(err) != fleet.CodeUnimplemented {
			t.Errorf("%+v: %v", c.l, err)
		}
	}
	if err := (Machine{}).Apply(t.Context(), fleet.ResourceLimits{CPUMillis: 1}); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("got %v", err)
	}
}

func TestLimitsAreKept(t *testing.T) {
	vm := driver.VM{ID: "vm", UID: "u", CPUs: 2, Dir: t.TempDir(), Limits: fleet.ResourceLimits{CPUMillis: 1500}}
	if l, err := Of(vm); err != nil || l.CPUMillis != 1500 {
		t.Errorf("of the create: %+v, %v", l, err)
	}
	if err := Keep(vm, fleet.ResourceLimits{CPUWeight: 7}); err != nil {
		t.Fatal(err)
	}
	l, err := Of(vm)
	if err != nil || l != (fleet.ResourceLimits{CPUWeight: 7}) {
		t.Errorf("changed: %+v, %v", l, err)
	}
	if cpus, weight := CPU(vm, l, 0.5); cpus != 2.5 || weight != 7 {
		t.Errorf("%v CPUs, weight %d", cpus, weight)
	}
	if cpus, weight := CPU(vm, vm.Limits, 0.5); cpus != 1.5 || weight != 200 {
		t.Errorf("%v CPUs, weight %d", cpus, weight)
	}
	other := vm
	other.UID = "another"
	if _, err := Of(other); err == nil {
		t.Error("limits of another life were read")
	}
	doc, _ := json.Marshal("x")
	if err := os.WriteFile(filepath.Join(vm.Dir, File), doc, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := Of(vm); err == nil || l != vm.Limits {
		t.Errorf("a damaged file: %+v, %v", l, err)
	}
}
