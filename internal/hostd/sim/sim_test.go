package sim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/driver/drivertest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestParseOptions(t *testing.T) {
	got, err := ParseOptions("boot=200ms..400ms, remove=5ms,fail=create:0.25,fail=create:once,fail=boot:x3,vms=7,cpus=8,ram_mb=9,storage_gb=10,image=a,image=b,seed=11")
	if err != nil {
		t.Fatal(err)
	}
	want := Options{
		Delay: map[string]Range{"boot": {200 * time.Millisecond, 400 * time.Millisecond}, "remove": {5 * time.Millisecond, 5 * time.Millisecond}},
		Fail:  map[string]Failure{"create": {Times: 1, Rate: 0.25}, "boot": {Times: 3}},
		VMs:   7, CPUs: 8, RamMB: 9, StorageGB: 10, Images: []string{"a", "b"}, Seed: 11,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{
		"boot", "boot=", "boot=x", "boot=2s..1s", "boot=-1s", "vms=0", "vms=x", "nothing=1", "fail=create", "fail=create:2",
		"fail=create:-1", "fail=create:NaN", "fail=nothing:once", "fail=create:x0", "seed=x",
	} {
		if _, err := ParseOptions(bad); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func vm(t *testing.T, uid string, slot int) driver.VM {
	t.Helper()
	return driver.VM{ID: "vm-" + uid, UID: uid, Slot: slot, Dir: t.TempDir(), Image: "minimal"}
}

func start(t *testing.T, d *Driver, v driver.VM) (driver.Instance, error) {
	t.Helper()
	return d.Start(t.Context(), v, driver.Identity{Hostname: "host-" + v.UID}, func(string) {})
}

func TestDelaysAndRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := New(Options{Seed: 1, Delay: map[string]Range{"boot": {time.Second, 3 * time.Second}}, Fail: map[string]Failure{"create": {Rate: 0.5}}})
		if err != nil {
			t.Fatal(err)
		}
		failed := 0
		for range 200 {
			begun := time.Now()
			_, err := start(t, d, vm(t, "u", 1))
			took := time.Since(begun)
			if err != nil {
				failed++
			} else if took < time.Second || took > 3*time.Second {
				t.Errorf("boot took %v", took)
			}
		}
		if failed < 60 || failed > 140 {
			t.Errorf("%d of 200 failed at a rate of one half", failed)
		}
		d.SetDelay("boot", Range{time.Hour, time.Hour})
		d.FailNext("create", 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for err == nil || fleet.CodeOf(err) == fleet.CodeUnavailable {
			_, err = d.Start(ctx, vm(t, "u", 1), driver.Identity{}, func(string) {})
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("boot beyond its time: %v", err)
		}
	})
}

func TestLifeAcrossDrivers(t *testing.T) {
	objects := t.TempDir()
	opts := Options{ObjectDir: objects}
	d, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	runs, stops, never := vm(t, "u1", 1), vm(t, "u2", 2), vm(t, "u3", 3)
	for _, v := range []driver.VM{runs, stops} {
		if _, err := start(t, d, v); err != nil {
			t.Fatal(err)
		}
	}
	inst, err := d.Adopt(t.Context(), runs)
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Guest().WriteFiles(t.Context(), []fleet.GuestFile{{Path: "/kept", Data: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if !d.Stop("u2", "guest_poweroff") || d.Stop("u9", "x") {
		t.Error("stop told wrong")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = New(opts); err != nil {
		t.Fatal(err)
	}
	inst, err = d.Adopt(t.Context(), runs)
	if err != nil {
		t.Fatal(err)
	}
	status, err := inst.Guest().Exec(t.Context(), fleet.ExecSpec{Argv: []string{"test", "-f", "/kept"}}, fleet.Stdio{})
	if err != nil || status.ExitCode != 0 {
		t.Errorf("a file is gone after adoption: %+v, %v", status, err)
	}
	for v, cause := range map[*driver.VM]string{&stops: "guest_poweroff", &never: "vmm_exited"} {
		_, err := d.Adopt(t.Context(), *v)
		var gone *driver.GoneError
		if !errors.As(err, &gone) || gone.Exit.Cause != cause {
			t.Errorf("%s: %v", v.ID, err)
		}
	}
	if err := d.Remove(t.Context(), runs); err != nil {
		t.Fatal(err)
	}
	select {
	case <-inst.Done():
	default:
		t.Error("a removed VM still runs")
	}
	if _, err := inst.Guest().Info(t.Context()); !errors.Is(err, fleet.ErrVMNotRunning) {
		t.Errorf("info of a removed VM: %v", err)
	}
	for range 2 {
		if err := d.Remove(t.Context(), stops); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	for _, dir := range []string{runs.Dir, stops.Dir, objects} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("left: %v, %v", entries, err)
		}
	}
}

// TestDriver runs the drivers' own suite. Its part about real guests is not
// for this driver; simguest's tests are.
func TestDriver(t *testing.T) { drivertest.Run(t, suite()) }

func TestDriverCaptures(t *testing.T) { drivertest.RunSnapshots(t, suite()) }

func suite() drivertest.Config {
	var now *Driver
	objects := map[string]string{} // by registry
	return drivertest.Config{
		Image: "minimal",
		New: func(t *testing.T, dir, registry string) driver.Driver {
			t.Helper()
			objects[registry] = filepath.Join(dir, "objects")
			d, err := New(Options{ObjectDir: objects[registry]})
			if err != nil {
				t.Fatal(err)
			}
			now = d
			return d
		},
		Crash: func(t *testing.T, vm driver.VM) {
			t.Helper()
			if !now.Stop(vm.UID, "vmm_exited") {
				t.Fatalf("%s does not run", vm.ID)
			}
		},
		Objects: func(t *testing.T, registry string) (names []string) {
			t.Helper()
			entries, err := os.ReadDir(objects[registry])
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names
		},
	}
}

func TestSweep(t *testing.T) {
	objects := t.TempDir()
	d, err := New(Options{ObjectDir: objects})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"slot-1", "slot-2", "someone-elses"} {
		if err := os.WriteFile(filepath.Join(objects, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := d.Sweep(t.Context(), []driver.VM{{UID: "u1", Slot: 1}})
	if err != nil || len(r.Removed) != 1 || r.Removed[0].Name != "slot-2" || len(r.Reported) != 1 || r.Reported[0].Name != "someone-elses" {
		t.Errorf("%+v, %v", r, err)
	}
	entries, err := os.ReadDir(objects)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if !slices.Equal(left, []string{"slot-1", "someone-elses"}) {
		t.Errorf("left: %v", left)
	}
}

func TestGuestIsBounded(t *testing.T) {
	d, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	v := vm(t, "u1", 1)
	inst, err := start(t, d, v)
	if err != nil {
		t.Fatal(err)
	}
	err = inst.Guest().WriteFiles(t.Context(), []fleet.GuestFile{{Path: "/big", Data: make([]byte, maxFiles+1)}})
	if fleet.CodeOf(err) != fleet.CodePayloadTooLarge {
		t.Errorf("too much: %v", err)
	}
	// A log that has grown is written anew.
	path := filepath.Join(v.Dir, logFile)
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.WriteString(`{"files":{` + strings.Repeat(" ", maxLog) + "}}\n"); err != nil {
		t.Fatal(err)
	}
	log.Close()
	for _, text := range []string{"first", "second"} {
		if err := inst.Guest().WriteFiles(t.Context(), []fleet.GuestFile{{Path: "/f", Data: []byte(text)}}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := load(v.Dir)
	if err != nil || string(c.Files["/f"].Data) != "second" || c.State.BootID == "" {
		t.Errorf("it adds up to %+v, %v", c, err)
	}
	if on, err := os.Stat(path); err != nil || on.Size() > 1<<10 {
		t.Errorf("it has %d bytes, %v", on.Size(), err)
	}
	info, err := inst.Guest().Info(t.Context())
	if err != nil || !info.Ready || info.BootID == "" {
		t.Errorf("info: %+v, %v", info, err)
	}
}
