package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// refuses is about what cannot be captured or gone on from.
func (c *captures) refuses() {
	vm := c.vm("refuses")
	a := c.artifact()
	if _, err := c.drv().Snapshot(c.context(), vm, driver.SnapshotRequest{To: a, Live: true}); !errors.Is(err, fleet.ErrVMNotRunning) {
		c.t.Errorf("capturing what does not run: %v", err)
	}
	if _, err := c.drv().Inspect(c.context(), a, false); !errors.Is(err, fs.ErrNotExist) {
		c.t.Errorf("inspecting nothing: %v", err)
	}
	inst := c.start(vm)
	c.write(inst, "word")
	snap, _ := c.take(vm, true)
	for name, change := range map[string]func(*driver.VM){
		"another size of memory": func(vm *driver.VM) { vm.RamMB *= 2 },
		"more processors":        func(vm *driver.VM) { vm.CPUs++ },
	} {
		other := c.vm("other")
		change(&other)
		if _, err := c.drv().Fork(c.context(), other, c.identity(other), snap, nil); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			c.t.Errorf("%s: %v", name, err)
		}
		c.nothingIn(other)
	}
	c.damaged(snap)
	c.answers(inst)
	c.close(inst)
	c.remove(vm)
	for _, a := range c.made {
		for range 2 {
			if err := c.drv().Discard(c.context(), a); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.nothing(vm)
}

// damaged changes one bit of each file in turn, or cuts it, beside the other
// files of a capture.
func (c *captures) damaged(snap driver.Artifact) {
	files, err := os.ReadDir(snap.Dir)
	if err != nil || len(files) == 0 {
		c.t.Fatalf("the capture has %v, %v", files, err)
	}
	for _, f := range files {
		for _, cut := range []bool{false, true} {
			bad := c.artifact()
			for _, g := range files {
				from, to := filepath.Join(snap.Dir, g.Name()), filepath.Join(bad.Dir, g.Name())
				if g.Name() == f.Name() {
					spoiled(c, from, to, cut)
				} else if err := os.Link(from, to); err != nil {
					c.t.Fatal(err)
				}
			}
			vm := c.vm("damaged")
			var damaged *driver.DamagedError
			for range 2 { // it stays so
				if _, err := c.drv().Fork(c.context(), vm, c.identity(vm), bad, nil); !errors.As(err, &damaged) {
					c.t.Errorf("%s, cut: %v: %v", f.Name(), cut, err)
				}
			}
			if _, err := c.drv().Inspect(c.context(), bad, false); !errors.As(err, &damaged) {
				c.t.Errorf("%s: inspected: %v", f.Name(), err)
			}
			c.nothingIn(vm)
		}
	}
}

// spoiled makes a copy that is short, or has another bit.
func spoiled(c *captures, from, to string, cut bool) {
	b, err := os.ReadFile(from)
	if err != nil {
		c.t.Fatal(err)
	}
	if cut {
		b = b[:len(b)/2]
	} else {
		b[len(b)/3] ^= 0x40
	}
	if err := os.WriteFile(to, b, 0o600); err != nil { //nolint:gosec // below the test's own directory
		c.t.Fatal(err)
	}
}

// nothingIn is nothing for a VM beside others that run.
func (c *captures) nothingIn(vm driver.VM) {
	c.t.Helper()
	left, err := os.ReadDir(vm.Dir)
	if err != nil || len(left) > 0 {
		c.t.Errorf("left of %s: %v, %v", vm.ID, left, err)
	}
}

// failsAtEachStep ends the context as each step of each verb begins: the
// machine is as it was, and nothing is left.
func (c *captures) failsAtEachStep() {
	vm := c.vm("steps")
	inst := c.start(vm)
	c.begin(inst)
	snap, _ := c.take(vm, true)
	with := c.objects()
	for _, verb := range []struct {
		name string
		call func(ctx context.Context, step func(string)) error
	}{
		{"snapshot", func(ctx context.Context, step func(string)) error {
			a := c.artifact()
			_, err := c.drv().Snapshot(ctx, vm, driver.SnapshotRequest{To: a, Live: true, Step: step})
			return c.emptied(a, err)
		}},
		{"disk snapshot", func(ctx context.Context, step func(string)) error {
			a := c.artifact()
			_, err := c.drv().Snapshot(ctx, vm, driver.SnapshotRequest{To: a, Step: step})
			return c.emptied(a, err)
		}},
		{"fork", func(ctx context.Context, step func(string)) error {
			child := c.vm("steps-child")
			_, err := c.drv().Fork(ctx, child, c.identity(child), snap, step)
			if err != nil {
				c.nothingIn(child)
			}
			return err
		}},
		{"restore", func(ctx context.Context, step func(string)) error {
			_, err := c.drv().Restore(ctx, vm, snap, step)
			return err
		}},
		{"pause", func(ctx context.Context, step func(string)) error {
			_, err := c.drv().Pause(ctx, vm, step)
			return err
		}},
	} {
		c.failing(verb.name, verb.call)
		c.has(inst, "first", true)
		c.settled(verb.name, with)
	}
	c.close(inst)
	c.remove(vm)
	if err := c.drv().Discard(c.context(), snap); err != nil {
		c.t.Fatal(err)
	}
	c.nothing(vm)
}

func (c *captures) emptied(a driver.Artifact, err error) error {
	if err == nil {
		return nil
	}
	if left, rerr := os.ReadDir(a.Dir); rerr != nil || len(left) > 0 {
		c.t.Errorf("left of a failed capture: %v, %v", left, rerr)
	}
	return err
}

// failing ends the context at the first step, then at the second, up to the
// last but one: the last one's success is none of its business.
func (c *captures) failing(verb string, call func(context.Context, func(string)) error) {
	var steps []string
	for i := 0; ; i++ {
		ctx, cancel := context.WithCancelCause(c.context())
		n, name := 0, ""
		stop := errors.New("stopped at a step")
		err := call(ctx, func(s string) {
			if n == i {
				name = s
				cancel(stop)
			}
			n++
		})
		cancel(nil)
		if name == "" {
			c.t.Fatalf("%s: it ended after %q, and none of them is the last: %v", verb, steps, err)
		}
		steps = append(steps, name)
		if name == lastStep[verb] {
			if err == nil {
				c.t.Errorf("%s: the step %s ended well although its context had ended", verb, name)
			}
			break
		}
		if err == nil {
			c.t.Fatalf("%s: the step %s ended well although its context had ended", verb, name)
		}
		if !errors.Is(err, context.Canceled) && !errors.Is(err, stop) {
			c.t.Errorf("%s: the step %s: %v, want the context's error", verb, name, err)
		}
	}
	c.t.Logf("%s failed in turn: %q", verb, steps)
}

// lastStep of each verb, after which nothing can fail.
var lastStep = map[string]string{"snapshot": "disk", "disk snapshot": "disk", "fork": "resume", "restore": "resume", "pause": "disk"}

// settled waits until the host's objects are what they were.
func (c *captures) settled(verb string, want []string) {
	c.t.Helper()
	for ctx := c.context(); fmt.Sprint(c.objects()) != fmt.Sprint(want); c.pause() {
		if ctx.Err() != nil {
			c.t.Errorf("after %s: the host has %q, and had %q", verb, c.objects(), want)
			return
		}
	}
}
