package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/kept"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/accel"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/testkit"
)

// bench is a driver and what a test needs beside it.
type bench struct {
	t        testing.TB
	d        *Driver
	registry string
	dir      string
	slots    int
}

func newBench(t testing.TB, cfg Config) *bench {
	t.Helper()
	b := &bench{t: t, registry: ulid.Make().String(), dir: t.TempDir()}
	cfg.Dir, cfg.Registry = b.dir, b.registry
	b.d = newDriver(t, cfg)
	t.Cleanup(func() {
		if b.d.slots != nil {
			if err := b.d.slots.Uninstall(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := b.d.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bench) vm() driver.VM {
	b.t.Helper()
	b.slots++
	uid := ulid.Make().String()
	vm := driver.VM{
		ID: fmt.Sprint("fuse-bench-", b.slots), UID: uid, Slot: b.slots, Dir: filepath.Join(b.dir, "vms", uid),
		CPUs: 1, RamMB: 256, StorageGB: 1, Image: "minimal",
	}
	if err := os.MkdirAll(vm.Dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	return vm
}

func (b *bench) identity(vm driver.VM) driver.Identity {
	b.t.Helper()
	c, err := secrets.NewVMCredentials(vm.ID)
	if err != nil {
		b.t.Fatal(err)
	}
	return driver.Identity{Hostname: vm.ID, MachineID: c.MachineID, Token: c.Token, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM}
}

func (b *bench) start(vm driver.VM) (driver.Instance, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	return b.d.Start(ctx, vm, b.identity(vm), nil)
}

// run starts a VM that is removed at the test's end.
func (b *bench) run(vm driver.VM) driver.Instance {
	b.t.Helper()
	inst, err := b.start(vm)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := errors.Join(inst.Close(), b.d.Remove(context.Background(), vm)); err != nil {
			b.t.Error(err)
		}
	})
	return inst
}

// refused checks the error of a start that must fail, and that it left nothing.
func (b *bench) refused(vm driver.VM, code fleet.Code, step, text string) *fleet.Error {
	b.t.Helper()
	inst, err := b.start(vm)
	if err == nil {
		b.t.Fatalf("it started: %v", errors.Join(inst.Close(), b.d.Remove(context.Background(), vm)))
	}
	var fe *fleet.Error
	if !errors.As(err, &fe) || fe.Code != code || fe.Details[fleet.DetailStep] != step || !strings.Contains(err.Error(), text) {
		b.t.Fatalf("want %s in step %s with %q, got %v (%+v)", code, step, text, err, fe)
	}
	if left := b.left(vm); len(left) > 0 {
		b.t.Errorf("left: %q", left)
	}
	return fe
}

// left lists what a VM has on the host.
func (b *bench) left(vm driver.VM) []string {
	b.t.Helper()
	var all []string
	ended := false
	for end := time.Now().Add(testWithin); !ended && time.Now().Before(end); {
		if all != nil {
			<-time.After(20 * time.Millisecond)
		}
		all = inventory(b.t, b.registry)
		ended = len(all) == 0
	}
	entries, err := os.ReadDir(vm.Dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, "file "+e.Name())
	}
	return all
}

// script makes an executable that stands for QEMU.
func script(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "qemu")
	head := "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'QEMU emulator version 7.2.22'; exit; }\n"
	if err := os.WriteFile(path, []byte(head+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestQEMUMissing(t *testing.T) {
	b := newBench(t, Config{QEMU: "no-such-qemu", Accel: vmm.TCG})
	fe := b.refused(b.vm(), fleet.CodeUnavailable, stepProcess, "QEMU is missing")
	if !strings.Contains(fe.Details[fleet.DetailRemedy], "apt-get install qemu-system") {
		t.Errorf("remedy is %q", fe.Details[fleet.DetailRemedy])
	}
}

func TestQEMUCrashesAtBoot(t *testing.T) {
	b := newBench(t, Config{QEMU: script(t, "echo 'cannot frobnicate the machine' >&2; exit 3"), Accel: vmm.TCG})
	b.refused(b.vm(), fleet.CodeUnavailable, stepProcess, "exit status 3): cannot frobnicate the machine")
	b = newBench(t, Config{QEMU: script(t, "kill -SEGV $$"), Accel: vmm.TCG})
	b.refused(b.vm(), fleet.CodeUnavailable, stepProcess, "killed by signal 11 (segmentation fault)): it printed nothing")
}

func TestQEMUThatTheVMsUserCannotRun(t *testing.T) {
	path := script(t, "exit 0")
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, Config{QEMU: path, Accel: vmm.TCG})
	b.refused(b.vm(), fleet.CodeUnavailable, stepProcess, "may not run "+path)
}

func TestRealQEMURefusesItsArguments(t *testing.T) {
	b := newBench(t, Config{})
	b.d.machine.Options += ",no-such-option=on"
	b.refused(b.vm(), fleet.CodeUnavailable, stepProcess, "no-such-option")
}

func TestGuestNeverAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{BootTimeout: time.Second})
	b.d.machine.Cmdline += " rdinit=/bin/none init=/bin/none panic=0 loglevel=7"
	fe := b.refused(b.vm(), fleet.CodeDeadlineExceeded, stepGuest, "its console ends with")
	if fe.Details[fleet.DetailLimit] != "1s" {
		t.Errorf("details are %v", fe.Details)
	}
}

// quitter is a guest agent that says its last words and powers off.
const quitter = `package main
import ("fmt"; "syscall")
func main() { fmt.Println("the root is nowhere to be seen"); syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF); select {} }
`

func TestGuestEndsWhileBooting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := filepath.Join(dir, "main.go")
	if err := os.WriteFile(src, []byte(quitter), 0o600); err != nil {
		t.Fatal(err)
	}
	fused := filepath.Join(dir, "fused")
	cmd := exec.Command("go", "build", "-o", fused, src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b := newBench(t, Config{})
	imagetest.Store(t)
	st, err := image.Open(image.Config{Dir: imagetest.Dir(), Fused: fused})
	if err != nil {
		t.Fatal(err)
	}
	b.d.cfg.Images = st
	b.refused(b.vm(), fleet.CodeUnavailable, stepGuest, "the guest ended while booting (guest_poweroff): console: ")
}

func TestHostDiskNearlyFull(t *testing.T) {
	b := newBench(t, Config{MinFree: 1 << 60})
	fe := b.refused(b.vm(), fleet.CodeUnavailable, stepImage, "nearly full")
	if !errors.Is(fe, fleet.ErrNoCapacity) {
		t.Errorf("%v is not ErrNoCapacity", fe)
	}
	for _, key := range []string{fleet.DetailLimit, fleet.DetailUsage, fleet.DetailRemedy, fleet.DetailScope} {
		if fe.Details[key] == "" {
			t.Errorf("no %s in %v", key, fe.Details)
		}
	}
}

func TestHostDiskFull(t *testing.T) {
	b := newBench(t, Config{})
	vm := b.vm()
	if err := unix.Mount("tmpfs", vm.Dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(vm.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	fe := b.refused(vm, fleet.CodeUnavailable, stepDisk, "the host's disk is full")
	if !errors.Is(fe, fleet.ErrNoCapacity) || fe.Details[fleet.DetailRemedy] == "" {
		t.Errorf("details are %v", fe.Details)
	}
}

// TestHalfMade removes VMs whose start stopped after each step, as if the
// process had died there, with a driver that knows nothing of them.
func TestHalfMade(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{})
	for n, name := range []string{stepImage, stepNetwork, stepDisk, stepIdentity, stepProcess} {
		vm := b.vm()
		half := b.startUntil(vm, n+1)
		if name == stepProcess {
			// Died between the start of QEMU and its record.
			if err := os.Rename(filepath.Join(vm.Dir, fileProcess), filepath.Join(vm.Dir, fileProcess+".new")); err != nil {
				t.Fatal(err)
			}
			if _, err := b.d.Adopt(t.Context(), vm); err == nil || strings.Contains(err.Error(), "gone") {
				t.Errorf("adopting a VM with a process but no record: %v", err)
			}
		}
		if n > 0 && len(inventory(t, b.registry)) == 0 {
			t.Errorf("%s: nothing was made", name)
		}
		half.release()
		for range 2 {
			if err := b.d.Remove(t.Context(), vm); err != nil {
				t.Fatalf("after %s: %v", name, err)
			}
		}
		if left := b.left(vm); len(left) > 0 {
			t.Errorf("after %s: left %q", name, left)
		}
	}
	// The same by sweep, which does not know the VM's directory.
	vm := b.vm()
	b.startUntil(vm, 5).release()
	report, err := b.d.Sweep(t.Context(), nil)
	if err != nil || len(report.Reported) > 0 {
		t.Errorf("sweep: %+v, %v", report, err)
	}
	kinds := map[string]bool{}
	for _, o := range report.Removed {
		kinds[o.Kind] = true
	}
	for _, kind := range []string{"process", "cgroup", "netns"} {
		if !kinds[kind] {
			t.Errorf("no %s was removed: %+v", kind, report.Removed)
		}
	}
	if err := removeFiles(vm.Dir); err != nil {
		t.Error(err)
	}
	if left := b.left(vm); len(left) > 0 {
		t.Errorf("after the sweep: left %q", left)
	}
}

// startUntil carries out the first n steps of a start.
func (b *bench) startUntil(vm driver.VM, n int) *boot {
	b.t.Helper()
	half := &boot{d: b.d, vm: vm, id: b.identity(vm)}
	for _, do := range []func(context.Context) error{half.findImage, half.makeNetwork, half.makeDisk, half.makeIdentity, half.startProcess}[:n] {
		if err := do(context.Background()); err != nil {
			b.t.Fatal(err)
		}
	}
	return half
}

// release drops what the dying process would have held.
func (b *boot) release() {
	b.closeFiles()
	if b.inst != nil {
		_ = b.inst.Close()
	}
}

func TestProcessIsConfined(t *testing.T) {
	testkit.Leaks(t)
	b := newBench(t, Config{})
	vm := b.vm()
	inst := b.run(vm)
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil {
		t.Fatal(err)
	}
	status := procFile(t, rec.PID, "status")
	uid := fmt.Sprint(b.d.user(vm.Slot))
	for _, want := range []string{
		"Uid:\t" + strings.Join([]string{uid, uid, uid, uid}, "\t"), "Gid:\t" + strings.Join([]string{uid, uid, uid, uid}, "\t"),
		"Groups:\t \n", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in its status:\n%s", want, status)
		}
	}
	if sid, err := unix.Getsid(rec.PID); err != nil || sid != rec.PID {
		t.Errorf("session %d, %v", sid, err)
	}
	mine, _ := os.Readlink("/proc/self/ns/net")
	if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", rec.PID)); err != nil || its == mine {
		t.Errorf("it is in this program's network namespace (%v)", err)
	}
	if pids, err := b.d.cgroups.Group(vm.UID).Procs(); err != nil || len(pids) != 1 || pids[0] != rec.PID {
		t.Errorf("its cgroup has %v, %v", pids, err)
	}
	if maps := procFile(t, rec.PID, "cmdline"); strings.Contains(maps, b.dir) {
		t.Error("its command line has a path of ours")
	}
	for name, mode := range map[string]os.FileMode{fileGuest: 0o600, fileQMP: 0o600, fileConsole: 0o600, chain.File(0): 0o600} {
		if st, err := os.Stat(filepath.Join(vm.Dir, name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if _, err := os.Stat(filepath.Join(vm.Dir, fileInitrd)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the initramfs with its secrets is still there (%v)", err)
	}
	if _, err := b.start(vm); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("starting it again: %v", err)
	}
	reboot(t, inst, vm, true)
}

// One boot, and one call, of a guest on a machine that is busy with other tests.
const (
	bootWithin = 4 * time.Minute
	callWithin = 20 * time.Second
)

// ending begins a command whose answer may never come, since the guest ends with
// it; over waits for that no longer.
func ending(t *testing.T, inst driver.Instance, argv ...string) (over func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = inst.Guest().Exec(ctx, fleet.ExecSpec{Argv: argv}, fleet.Stdio{})
	}()
	return func() { cancel(); <-ended }
}

// reboot checks that a guest comes back by itself, as another boot, in the
// same process, and after a panic if that is wanted.
func reboot(t *testing.T, inst driver.Instance, vm driver.VM, panics bool) {
	before, err := inst.Guest().Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A service of the manifest and a secret, which are memory there.
	if err := inst.Guest().WriteFiles(t.Context(), []fleet.GuestFile{
		{Path: fleet.FuseSecretsPath, Data: []byte(`{"key":"hidden"}`), Mode: 0o600},
		{Path: fleet.GuestManifestPath, Data: []byte(`{"version":"1","services":{"web":{"command":["sh","-c","echo up $KEY >>/started; sleep 1000"],"env":{"KEY":{"secret":"key"}}}}}`), Mode: 0o600},
	}); err != nil {
		t.Fatal(err)
	}
	started := func(want string) {
		t.Helper()
		testkit.Eventually(t, bootWithin, "the service runs: "+want, func() bool {
			var out bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), callWithin)
			defer cancel()
			_, err := inst.Guest().Exec(ctx, fleet.ExecSpec{Argv: []string{"cat", "/started", "/fuse/secrets.json"}}, fleet.Stdio{Stdout: &out})
			return err == nil && out.String() == want+`{"key":"hidden"}`
		})
	}
	started("up hidden\n")
	if _, err := inst.Guest().Exec(t.Context(), fleet.ExecSpec{Argv: []string{"sync"}}, fleet.Stdio{}); err != nil {
		t.Fatal(err)
	}
	over := ending(t, inst, "reboot", "-f")
	testkit.Eventually(t, bootWithin, "the guest answers with another boot id", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), callWithin)
		defer cancel()
		after, err := inst.Guest().Info(ctx)
		return err == nil && after.Ready && after.BootID != before.BootID
	})
	over()
	if _, err := record.Read[fleet.ExitRecord](vm.Dir, fileExit); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a reboot left an exit record (%v)", err)
	}
	started("up hidden\nup hidden\n")
	passed := httptest.NewServer(inst.Guest().(http.Handler))
	defer passed.Close()
	console := guestwire.NewSurface(passed.Client(), passed.URL).Console
	told := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, bootWithin, "the reboots are told", func() bool {
			res, err := console.ReadConsole(t.Context(), connect.NewRequest(&guestwirev1.ReadConsoleRequest{}))
			if err != nil {
				t.Fatal(err)
			}
			var causes []string
			for _, r := range res.Msg.GetReboots() {
				causes = append(causes, r.GetCause())
			}
			return slices.Equal(causes, want) && strings.Count(string(res.Msg.GetOutput()), "msg=ready") == 1+len(want)
		})
	}
	told("reboot")
	if panics {
		testkit.Eventually(t, bootWithin, "the guest can say that it panics", func() bool { // the module is loaded when it answers already
			ctx, cancel := context.WithTimeout(t.Context(), callWithin)
			defer cancel()
			st, err := inst.Guest().Exec(ctx, fleet.ExecSpec{Argv: []string{"grep", "-q", "^pvpanic_mmio .* Live", "/proc/modules"}}, fleet.Stdio{})
			return err == nil && st.ExitCode == 0
		})
		over := ending(t, inst, "sh", "-c", "sync; echo c >/proc/sysrq-trigger")
		testkit.Eventually(t, bootWithin, "the panic is noted before the guest is back", func() bool {
			raw, err := os.ReadFile(filepath.Join(vm.Dir, kept.File))
			return err == nil && strings.Contains(string(raw), `"panic":true`)
		})
		over()
		told("reboot", "panic")
		started("up hidden\nup hidden\nup hidden\n")
	}
	var out bytes.Buffer
	st, err := inst.Guest().Exec(t.Context(), fleet.ExecSpec{Argv: []string{"hostname"}}, fleet.Stdio{Stdout: &out})
	if err != nil || st.ExitCode != 0 || strings.TrimSpace(out.String()) != vm.ID {
		t.Errorf("after the reboot hostname says %q, %+v, %v", out.String(), st, err)
	}
}

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestUserNetworking(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{UserNet: true})
	vm := b.vm()
	inst := b.run(vm)
	var out bytes.Buffer
	st, err := inst.Guest().Exec(t.Context(), fleet.ExecSpec{Argv: []string{"hostname"}}, fleet.Stdio{Stdout: &out})
	if err != nil || st.ExitCode != 0 || strings.TrimSpace(out.String()) != vm.ID {
		t.Errorf("hostname says %q, %+v, %v", out.String(), st, err)
	}
	f, err := b.d.Probe(t.Context())
	if err != nil || !strings.Contains(strings.Join(f.Missing, "\n"), "user networking instead of network slots") {
		t.Errorf("missing is %q, %v", f.Missing, err)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	again, err := b.d.Adopt(t.Context(), vm)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := again.Guest().Info(t.Context()); err != nil || !info.Ready {
		t.Errorf("adopted: %+v, %v", info, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestAnotherHostBoot(t *testing.T) {
	b := newBench(t, Config{})
	vm := b.vm()
	rec := processRecord{UID: vm.UID, Ident: proc.Ident{PID: os.Getpid(), Start: 1, BootID: "an earlier boot"}}
	if err := record.Write(vm.Dir, fileProcess, rec); err != nil {
		t.Fatal(err)
	}
	var gone *driver.GoneError
	if _, err := b.d.Adopt(t.Context(), vm); !errors.As(err, &gone) || gone.Exit.Cause != causeRebooted {
		t.Errorf("adopt: %v", err)
	}
	if err := b.d.Remove(t.Context(), vm); err != nil { // and this process lives on
		t.Error(err)
	}
}

func TestAPidThatIsAnothersNow(t *testing.T) {
	b := newBench(t, Config{})
	vm := b.vm()
	rec := processRecord{UID: vm.UID, Ident: proc.Ident{PID: os.Getpid(), Start: 1, BootID: b.d.bootID}}
	if err := record.Write(vm.Dir, fileProcess, rec); err != nil {
		t.Fatal(err)
	}
	if err := b.d.Remove(t.Context(), vm); err != nil { // this process lives on
		t.Error(err)
	}
}

func TestProbeIsBoundedAndKept(t *testing.T) {
	if err := unix.Access(accel.KVMDevice, unix.R_OK|unix.W_OK); err != nil {
		b := newBench(t, Config{})
		if p, err := b.d.prober.Accelerator(t.Context()); err != nil || p.Accel != vmm.TCG || !strings.Contains(p.Why, accel.KVMDevice) {
			t.Errorf("without the device: %+v, %v", p, err)
		}
		return
	}
	count := filepath.Join("/tmp", "fuse-probe-count-"+ulid.Make().String()) // every user may write there
	t.Cleanup(func() { _ = os.Remove(count) })
	for text, tt := range map[string]struct {
		want         string
		first, total time.Duration // no shorter than a script may take that is not to be too late
	}{
		"echo x >> " + count + "; exec sleep 100":               {"it is silent", 2 * time.Second, time.Minute},
		"echo x >> " + count + "; echo hello; exec sleep 100":   {"it does not come to an end", 10 * time.Second, 12 * time.Second},
		"echo x >> " + count + "; echo no KVM here >&2; exit 1": {"no KVM here", time.Minute, time.Minute},
		"echo x >> " + count + "; echo through":                 {"", time.Minute, time.Minute},
	} {
		want := tt.want
		b := newBench(t, Config{QEMU: script(t, text), Accel: vmm.TCG})
		cfg := b.d.cfg
		cfg.Accel = ""
		pr := cfg.prober(b.d.machine, b.d.bootID)
		pr.First, pr.Total = tt.first, tt.total
		if err := errors.Join(os.WriteFile(count, nil, 0o600), os.Chmod(count, 0o666)); err != nil {
			t.Fatal(err)
		}
		expected := vmm.TCG
		if want == "" {
			expected = vmm.KVM
		}
		for range 2 {
			p, err := pr.Accelerator(t.Context())
			if err != nil || p.Accel != expected || !strings.Contains(p.Why, want) {
				t.Errorf("%q: %+v, %v", text, p, err)
			}
			pr = cfg.prober(b.d.machine, b.d.bootID) // only the file remembers
			pr.First, pr.Total = tt.first, tt.total
		}
		if n, err := os.ReadFile(count); err != nil || len(n) != len("x\n") {
			t.Errorf("%q: probed %q (%v)", text, n, err)
		}
	}
}
