package hostd_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/sim"
)

func rotationOf(number int64, token string) driver.Rotation {
	return driver.Rotation{Number: number, Token: token, CertPEM: []byte("cert of " + token), KeyPEM: []byte("key")}
}

// A rotation counts once, in order, for the life and fleet that it names, and
// over a restart of the agent.
func TestRotate(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		vm := ref("fuse-a", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
		r.mustCreate(vm)
		vm.Generation, vm.OpID = 0, "rotate"
		rotate := func(f hostd.Fence, ref hostd.Ref, rot driver.Rotation) error {
			return r.Rotate(t.Context(), f, ref, rot)
		}
		takes := func(want string) {
			t.Helper()
			if token, cert := r.drv.Credentials(vm.UID); token != want || cert != "cert of "+want {
				t.Errorf("the guest takes %q, want %q", token, want)
			}
		}
		for _, token := range []string{"one", "one"} { // a repeat is success
			if err := rotate(leader, vm, rotationOf(1, token)); err != nil {
				t.Fatal(err)
			}
		}
		takes("one")
		if err := rotate(leader, vm, rotationOf(3, "three")); err != nil {
			t.Fatal(err)
		}
		r.restart(sim.Options{})
		takes("three")
		other := leader
		other.Term--
		stranger := vm
		stranger.UID = "01ARZ3NDEKTSV4RRFFQ69G5FAW"
		bad := rotationOf(4, "")
		for name, c := range map[string]struct {
			err  error
			code fleet.Code
		}{
			"late":       {rotate(leader, vm, rotationOf(2, "two")), fleet.CodeConflict},
			"stale term": {rotate(other, vm, rotationOf(4, "four")), fleet.CodeConflict},
			"another":    {rotate(leader, stranger, rotationOf(4, "four")), fleet.CodeNotFound},
			"no token":   {rotate(leader, vm, bad), fleet.CodeInvalidArgument},
			// From a store that was restored to a time before the third.
			"another of the same number": {rotate(leader, vm, rotationOf(3, "other")), fleet.CodeConflict},
			"number zero":                {rotate(leader, vm, rotationOf(0, "zero")), fleet.CodeInvalidArgument},
		} {
			if fleet.CodeOf(c.err) != c.code {
				t.Errorf("%s: %v", name, c.err)
			}
		}
		takes("three")

		r.drv.FailNext("rotate", 1)
		if err := rotate(leader, vm, rotationOf(4, "four")); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("the guest does not answer: %v", err)
		}
		takes("three")
		if !r.drv.Stop(vm.UID, "guest_poweroff") {
			t.Fatal("it does not run")
		}
		elapse(2 * time.Second)
		if err := rotate(leader, vm, rotationOf(4, "four")); !errors.Is(err, fleet.ErrVMNotRunning) || !strings.Contains(err.Error(), "guest_poweroff") {
			t.Errorf("stopped: %v", err)
		}
		r.mustDestroy(vm)
	})
}
