package hostd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/sim"
)

// TestUnloggedAnswerIsNone fills the disk while VMs boot: a create whose answer
// cannot be kept is undone and says so, and one that was answered is still
// there after a restart.
func TestUnloggedAnswerIsNone(t *testing.T) {
	slow := sim.Options{Delay: map[string]sim.Range{"boot": {Min: time.Second, Max: time.Second}}}
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.stop()
		at := filepath.Join(r.dir, "host")
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=512k"); err != nil {
			t.Fatalf("mount a tmpfs (as root): %v", err)
		}
		defer func() {
			r.stop()
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		}()
		r.boot(slow)
		errs := make([]error, 30) // their answers do not fit into the log's last page
		var creates sync.WaitGroup
		for i := range errs {
			creates.Go(func() { errs[i] = r.create(ref(fmt.Sprint("vm-", i), fmt.Sprint("u", i))) })
		}
		synctest.Wait()
		ballast := filepath.Join(at, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
		creates.Wait()
		made := map[string]bool{}
		for i, err := range errs {
			var fe *fleet.Error
			switch {
			case err == nil:
				made[fmt.Sprint("u", i)] = true
			case !errors.As(err, &fe) || fe.Details[fleet.DetailReason] != "disk_full":
				t.Errorf("create %d: %v", i, err)
			}
		}
		if len(made) == len(errs) {
			t.Fatal("every answer found room")
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"at once", "after a restart"} {
			for _, vm := range r.listing().VMs {
				if !made[vm.UID] || !vm.Running {
					t.Errorf("%s: listed %+v", when, vm)
				}
			}
			if n := len(r.listing().VMs); n != len(made) {
				t.Errorf("%s: %d listed, %d were answered", when, n, len(made))
			}
			r.restart(slow)
			elapse(time.Second)
		}
	})
}

// TestDamagedAnswerIsNoVerdict loses the record that a create was answered: a
// log with damage cannot say that a VM was never acknowledged.
func TestDamagedAnswerIsNoVerdict(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		r.mustCreate(vm)
		r.stop()
		log := filepath.Join(r.dir, "host", "registry.log")
		doc, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		hurt := strings.Replace(string(doc), `"verb":"create"`, `"verb":"cremate"`, 1)
		if err := os.WriteFile(log, []byte(hurt), 0o600); err != nil || hurt == string(doc) {
			t.Fatalf("no answer damaged, %v", err)
		}
		for range 2 {
			r.boot(sim.Options{})
			elapse(time.Second)
			if vms := r.listing().VMs; len(vms) != 1 || !vms[0].Running {
				t.Errorf("listed: %+v", vms)
			}
			r.mustCreate(vm) // the same operation: answered, not refused
			r.stop()
		}
	})
}

// counting counts the instances that are held.
type counting struct {
	driver.Driver
	held atomic.Int64
}

func (c *counting) Adopt(ctx context.Context, vm driver.VM) (driver.Instance, error) {
	inst, err := c.Driver.Adopt(ctx, vm)
	if err == nil {
		c.held.Add(1)
		inst = &countedInstance{inst, c}
	}
	return inst, err
}

type countedInstance struct {
	driver.Instance
	c *counting
}

func (i *countedInstance) Close() error {
	i.c.held.Add(-1)
	return i.Instance.Close()
}

// TestDestroyDuringAdoption lets go of a VM that is taken hold of and is to be
// removed by then.
func TestDestroyDuringAdoption(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		r.mustCreate(vm)
		r.stop()
		drv, err := sim.New(sim.Options{
			ObjectDir: filepath.Join(r.dir, "objects"), Delay: map[string]sim.Range{"adopt": {Min: 5 * time.Second, Max: 5 * time.Second}},
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg, counted := r.cfg, &counting{Driver: drv}
		cfg.Driver, cfg.Logger = counted, slog.New(slog.DiscardHandler)
		h, err := hostd.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- h.Run(ctx) }()
		elapse(time.Second)
		if err := errors.Join(h.Claim(hostd.Claim{Fence: leader}), h.Destroy(t.Context(), leader, vm)); err != nil {
			t.Error(err)
		}
		if n := counted.held.Load(); n != 0 {
			t.Errorf("%d instances are still held", n)
		}
		cancel()
		if err := errors.Join(<-ran, h.Close()); err != nil {
			t.Error(err)
		}
		r.wantLeft()
	})
}

func TestCloseEndsSlowDrains(t *testing.T) {
	bubble(t, sim.Options{Delay: map[string]sim.Range{"drain": {Min: time.Hour, Max: time.Hour}}}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		r.mustCreate(vm)
		drained := make(chan error, 1)
		go func() {
			_, err := r.Drain(t.Context(), leader, vm, "true")
			drained <- err
		}()
		synctest.Wait()
		begun := time.Now()
		r.stop()
		wantCode(t, "the drain", <-drained, fleet.CodeUnavailable)
		if took := time.Since(begun); took != 15*time.Second {
			t.Errorf("close took %v", took)
		}
		r.boot(sim.Options{})
		if vms := r.listing().VMs; len(vms) != 1 || !vms[0].Running {
			t.Errorf("listed: %+v", vms)
		}
	})
}
