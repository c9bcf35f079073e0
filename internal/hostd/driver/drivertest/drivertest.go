// Package drivertest is the suite that holds every driver to the contract of
// package driver: a VM comes up and answers, survives its driver, is found
// again, ends with a reason, and goes without a trace from any state.
package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/secrets"
)

// Config says what driver to test, and how to look behind its back.
type Config struct {
	// New opens a driver on the host of dir and registry. It is called again
	// for a restart, once the earlier one is closed.
	New   func(t *testing.T, dir, registry string) driver.Driver
	Image string
	// Crash ends the VM's process as an accident would; nil if the driver has
	// none.
	Crash func(t *testing.T, vm driver.VM)
	// Objects lists what a VM of the registry makes of the host outside its
	// own directory: the same before and after.
	Objects func(t *testing.T, registry string) []string
	// Guests says that guests are real: commands give output.
	Guests bool
	// Forget is set for a driver whose VMs end with it: nothing to adopt.
	Forget bool
	// Within bounds one boot, or one call; one minute.
	Within time.Duration
	// Parallel runs parts side by side, each with a host of its own.
	Parallel bool
}

// Run runs the suite.
func Run(t *testing.T, cfg Config) {
	if cfg.Within == 0 {
		cfg.Within = time.Minute
	}
	for _, c := range []struct {
		name string
		run  func(*host)
		need bool
	}{
		{"Refuses", refuses, true},
		{"Lives", lives, true},
		{"Restart", restart, !cfg.Forget},
		{"Crashes", crashes, cfg.Crash != nil},
		{"CrashesUnseen", crashesUnseen, cfg.Crash != nil && !cfg.Forget},
		{"FailsAtEachStep", failsAtEachStep, true},
		{"Sweeps", sweeps, true},
		{"PowersOff", powersOff, cfg.Guests},
	} {
		if c.need {
			t.Run(c.name, func(t *testing.T) {
				if cfg.Parallel {
					t.Parallel()
				}
				c.run(newHost(t, cfg))
			})
		}
	}
}

// host is one host with its registry and the driver that has hold of it.
type host struct {
	t        *testing.T
	cfg      Config
	dir      string
	registry string
	drv      driver.Driver
	slots    int
	before   []string
}

func newHost(t *testing.T, cfg Config) *host {
	h := &host{t: t, cfg: cfg, dir: t.TempDir(), registry: ulid.Make().String()}
	h.drv = cfg.New(t, h.dir, h.registry)
	h.before = h.objects()
	t.Cleanup(func() {
		if err := h.drv.Close(); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	})
	return h
}

func (h *host) objects() []string {
	if h.cfg.Objects == nil {
		return nil
	}
	return h.cfg.Objects(h.t, h.registry)
}

// reopen closes the driver and opens another, as a restarted agent would.
func (h *host) reopen() {
	h.t.Helper()
	if err := h.drv.Close(); err != nil {
		h.t.Fatalf("close the driver: %v", err)
	}
	h.drv = h.cfg.New(h.t, h.dir, h.registry)
}

func (h *host) vm(name string) driver.VM {
	h.t.Helper()
	h.slots++
	uid := ulid.Make().String()
	vm := driver.VM{
		ID: "fuse-" + name, UID: uid, Generation: 1, Slot: h.slots, Dir: filepath.Join(h.dir, "vms", uid),
		CPUs: 1, RamMB: 256, StorageGB: 1, Image: h.cfg.Image,
	}
	if err := os.MkdirAll(vm.Dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	return vm
}

func (h *host) identity(vm driver.VM) driver.Identity {
	h.t.Helper()
	c, err := secrets.NewVMCredentials(vm.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	return driver.Identity{Hostname: vm.ID, MachineID: c.MachineID, Token: c.Token, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM}
}

func (h *host) context() context.Context {
	ctx, cancel := context.WithTimeout(h.t.Context(), h.cfg.Within)
	h.t.Cleanup(cancel)
	return ctx
}

// start boots a VM that is removed at the test's end at the latest.
func (h *host) start(vm driver.VM) driver.Instance {
	h.t.Helper()
	h.t.Cleanup(func() { h.cleanUp(vm) })
	inst, err := h.drv.Start(h.context(), vm, h.identity(vm), nil)
	if err != nil {
		h.t.Fatalf("start: %v", err)
	}
	return inst
}

func (h *host) cleanUp(vm driver.VM) {
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.Within)
	defer cancel()
	if err := h.drv.Remove(ctx, vm); err != nil {
		h.t.Errorf("clean up: %v", err)
	}
}

func (h *host) close(inst driver.Instance) {
	h.t.Helper()
	if err := inst.Close(); err != nil {
		h.t.Errorf("let go of the vm: %v", err)
	}
}

func (h *host) remove(vm driver.VM) {
	h.t.Helper()
	if err := h.drv.Remove(h.context(), vm); err != nil {
		h.t.Fatalf("remove: %v", err)
	}
}

// nothing fails the test unless the host is as it was and the VM's directory
// has nothing of the driver's.
func (h *host) nothing(vms ...driver.VM) {
	h.t.Helper()
	for _, vm := range vms {
		left, err := os.ReadDir(vm.Dir)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range left {
			h.t.Errorf("%s is left in the directory of %s", e.Name(), vm.ID)
		}
	}
	var after []string
	// The kernel takes links down a moment later.
	for deadline := time.Now().Add(h.cfg.Within); time.Now().Before(deadline); h.pause() {
		if after = h.objects(); slices.Equal(h.before, after) {
			return
		}
	}
	if d := cmp.Diff(h.before, after); d != "" {
		h.t.Errorf("the host's objects have changed (-before +after):\n%s", d)
	}
}

// pause leaves the processor to what is waited for, between two looks.
func (h *host) pause() { <-time.After(20 * time.Millisecond) }

// sh runs a command in the guest and returns its output, trimmed.
func (h *host) sh(inst driver.Instance, argv ...string) string {
	h.t.Helper()
	var out, errOut bytes.Buffer
	st, err := inst.Guest().Exec(h.context(), fleet.ExecSpec{Argv: argv}, fleet.Stdio{Stdout: &out, Stderr: &errOut})
	if err != nil || st.ExitCode != 0 {
		h.t.Fatalf("%q in the guest: %+v, %v: %s", argv, st, err, errOut.String())
	}
	return strings.TrimSpace(out.String())
}

// answers fails the test unless the guest does.
func (h *host) answers(inst driver.Instance) {
	h.t.Helper()
	info, err := inst.Guest().Info(h.context())
	if err != nil || !info.Ready || info.BootID == "" {
		h.t.Fatalf("the guest says %+v, %v", info, err)
	}
	if got := h.sh(inst, "echo", "hello"); h.cfg.Guests && got != "hello" {
		h.t.Fatalf("echo in the guest printed %q", got)
	}
	select {
	case <-inst.Done():
		h.t.Fatalf("a running vm is done: %+v", inst.Exit())
	default:
	}
}

// ended waits for the end of a VM and checks its record.
func (h *host) ended(inst driver.Instance, vm driver.VM) fleet.ExitRecord {
	h.t.Helper()
	select {
	case <-inst.Done():
	case <-h.context().Done():
		h.t.Fatal("the end of the vm was not noticed")
	}
	h.checkExit(inst.Exit(), vm)
	return inst.Exit()
}

func (h *host) checkExit(e fleet.ExitRecord, vm driver.VM) {
	h.t.Helper()
	if e.UID != vm.UID || e.VMID != vm.ID || e.Cause == "" || time.Since(e.At) > h.cfg.Within {
		h.t.Errorf("exit record is %+v", e)
	}
}

func refuses(h *host) {
	f, err := h.drv.Probe(h.context())
	if err != nil || f.Driver == "" || f.CPUs < 1 || f.RamMB < 1 || !slices.Contains(f.Images, h.cfg.Image) {
		h.t.Errorf("facts are %+v, %v", f, err)
	}
	vm := h.vm("unknown-image")
	vm.Image = "no-such-image"
	_, err = h.drv.Start(h.context(), vm, h.identity(vm), nil)
	if fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), h.cfg.Image) {
		h.t.Errorf("an unknown image: %v", err)
	}
	h.nothing(vm)
	for range 2 { // never started
		h.remove(vm)
	}
	var gone *driver.GoneError
	if _, err := h.drv.Adopt(h.context(), vm); !errors.As(err, &gone) {
		h.t.Errorf("adopting what never ran: %v", err)
	}
	h.remove(vm)
	h.nothing(vm)
}

func lives(h *host) {
	vm := h.vm("lives")
	var steps []string
	h.t.Cleanup(func() { h.cleanUp(vm) })
	inst, err := h.drv.Start(h.context(), vm, h.identity(vm), func(s string) { steps = append(steps, s) })
	if err != nil {
		h.t.Fatal(err)
	}
	if len(steps) < 2 || len(slices.Compact(slices.Sorted(slices.Values(steps)))) != len(steps) {
		h.t.Errorf("steps are %q", steps)
	}
	h.answers(inst)
	st, err := inst.Guest().Exec(h.context(), fleet.ExecSpec{Argv: []string{"sh", "-c", "exit 7"}}, fleet.Stdio{})
	if h.cfg.Guests && (err != nil || st.ExitCode != 7) {
		h.t.Errorf("exit 7: %+v, %v", st, err)
	}
	h.remove(vm) // while it is held
	h.ended(inst, vm)
	h.close(inst)
	h.close(inst) // twice is fine
	h.nothing(vm)
	h.remove(vm)
	h.nothing(vm)
}

func restart(h *host) {
	vm := h.vm("restart")
	inst := h.start(vm)
	before, err := inst.Guest().Info(h.context())
	if err != nil {
		h.t.Fatal(err)
	}
	h.close(inst)
	h.reopen()
	inst, err = h.drv.Adopt(h.context(), vm)
	if err != nil {
		h.t.Fatalf("adopt: %v", err)
	}
	h.answers(inst)
	after, err := inst.Guest().Info(h.context())
	if err != nil || after.BootID != before.BootID {
		h.t.Errorf("the guest was %+v and is %+v (%v)", before, after, err)
	}
	h.close(inst)
	h.reopen()
	h.remove(vm) // without having been adopted
	h.nothing(vm)
}

func crashes(h *host) {
	vm := h.vm("crashes")
	inst := h.start(vm)
	h.cfg.Crash(h.t, vm)
	h.ended(inst, vm)
	h.close(inst)
	if h.cfg.Forget {
		return
	}
	var gone *driver.GoneError
	if _, err := h.drv.Adopt(h.context(), vm); !errors.As(err, &gone) || gone.Exit != inst.Exit() {
		h.t.Errorf("adopting it: %v, want the exit record %+v", err, inst.Exit())
	}
	h.remove(vm)
	h.nothing(vm)
}

func crashesUnseen(h *host) {
	vm := h.vm("crashes-unseen")
	h.close(h.start(vm))
	h.cfg.Crash(h.t, vm)
	h.reopen()
	for range 2 { // the record stays the same
		var gone *driver.GoneError
		if _, err := h.drv.Adopt(h.context(), vm); !errors.As(err, &gone) {
			h.t.Fatalf("adopting it: %v", err)
		}
		h.checkExit(gone.Exit, vm)
	}
	h.remove(vm)
	h.nothing(vm)
}

// failsAtEachStep ends the context as each step begins.
func failsAtEachStep(h *host) {
	var steps []string
	for i := 0; ; i++ {
		vm := h.vm(fmt.Sprint("step-", i))
		ctx, cancel := context.WithCancel(h.context())
		n := 0
		inst, err := h.drv.Start(ctx, vm, h.identity(vm), func(s string) {
			if n == i {
				steps = append(steps, s)
				cancel()
			}
			n++
		})
		cancel()
		if err == nil {
			h.close(inst)
			h.remove(vm)
			h.nothing(vm)
			if n > i {
				h.t.Errorf("step %q ended well although its context had ended", steps[i])
				continue
			}
			break // all steps have failed once
		}
		if !errors.Is(err, context.Canceled) {
			h.t.Fatalf("after %q: %v, want the context's error", steps, err)
		}
		h.nothing(vm)
	}
	h.t.Logf("failed in turn: %q", steps)
}

func sweeps(h *host) {
	keep, drop := h.vm("keep"), h.vm("drop")
	kept, dropped := h.start(keep), h.start(drop)
	if h.cfg.Guests {
		h.tellsApart(map[string]driver.Instance{keep.ID: kept, drop.ID: dropped})
	}
	rep, err := h.drv.Sweep(h.context(), []driver.VM{keep, drop})
	if err != nil || len(rep.Removed)+len(rep.Reported) > 0 {
		h.t.Errorf("a sweep with nothing to do: %+v, %v", rep, err)
	}
	// A VM of which only the uid is known keeps what may be its own.
	if rep, err = h.drv.Sweep(h.context(), []driver.VM{keep, {UID: drop.UID}}); err != nil || len(rep.Removed) > 0 {
		h.t.Errorf("a sweep beside a VM that is not known: %+v, %v", rep, err)
	}
	h.answers(dropped)
	h.close(dropped)
	// Another registry on the same host sees none of it.
	other := h.cfg.New(h.t, h.t.TempDir(), ulid.Make().String())
	if rep, err := other.Sweep(h.context(), nil); err != nil || len(rep.Removed)+len(rep.Reported) > 0 {
		h.t.Errorf("another registry's sweep: %+v, %v", rep, err)
	}
	if err := other.Close(); err != nil {
		h.t.Error(err)
	}
	with := h.objects()
	if rep, err = h.drv.Sweep(h.context(), []driver.VM{keep}); err != nil || len(rep.Reported) > 0 {
		h.t.Errorf("sweep: %+v, %v", rep, err)
	}
	if len(rep.Removed) == 0 && len(with) > len(h.before) {
		h.t.Error("nothing of an ended life was removed")
	}
	for _, o := range rep.Removed {
		if o.Kind == "" || o.Name == "" || o.Why == "" || strings.Contains(o.Name, keep.UID) {
			h.t.Errorf("removed %+v", o)
		}
	}
	h.answers(kept)
	h.close(kept)
	h.remove(keep)
	h.remove(drop) // its files
	h.nothing(keep, drop)
}

func powersOff(h *host) {
	seen, unseen := h.vm("off-seen"), h.vm("off-unseen")
	inst := h.start(seen)
	powerOff(h, inst)
	if e := h.ended(inst, seen); e.Cause != "guest_poweroff" {
		h.t.Errorf("exit record is %+v", e)
	}
	h.close(inst)

	// The guest goes while nobody listens: its process waits to say why.
	inst = h.start(unseen)
	h.sh(inst, "sh", "-c", "(sleep 1; poweroff -f) >/dev/null 2>&1 </dev/null &")
	h.close(inst)
	h.reopen()
	var gone *driver.GoneError
	for ctx := h.context(); gone == nil && ctx.Err() == nil; h.pause() {
		inst, err := h.drv.Adopt(ctx, unseen)
		if err == nil {
			h.close(inst)
		} else if !errors.As(err, &gone) {
			h.t.Fatalf("adopt: %v", err)
		}
	}
	if gone == nil || gone.Exit.Cause != "guest_poweroff" {
		h.t.Errorf("adopting what powered off: %+v", gone)
	}
	h.remove(seen)
	h.remove(unseen)
	h.nothing(seen, unseen)
}

// powerOff returns once the guest has powered off, or should have.
func powerOff(h *host, inst driver.Instance) {
	ctx, cancel := context.WithCancel(h.context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		// The call may end with the guest, or never.
		_, _ = inst.Guest().Exec(ctx, fleet.ExecSpec{Argv: []string{"poweroff", "-f"}}, fleet.Stdio{})
	}()
	select {
	case <-inst.Done():
	case <-ctx.Done():
	}
	cancel()
	<-over
}

// tellsApart fails the test unless each guest has an identity of its own.
func (h *host) tellsApart(insts map[string]driver.Instance) {
	h.t.Helper()
	seen := map[string]bool{}
	for id, inst := range insts {
		if name := h.sh(inst, "hostname"); name != id {
			h.t.Errorf("hostname is %q, want %q", name, id)
		}
		seen[h.sh(inst, "cat", "/etc/machine-id")] = true
		info, err := inst.Guest().Info(h.context())
		if err != nil {
			h.t.Fatal(err)
		}
		seen[info.BootID] = true
	}
	if len(seen) != 2*len(insts) {
		h.t.Errorf("two guests share something: %v", slices.Collect(maps.Keys(seen)))
	}
}
