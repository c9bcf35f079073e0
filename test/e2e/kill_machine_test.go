package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// TestMachineKilledAtEveryStep kills server and host agent at each step of
// making and removing a real machine. After the restart nothing of it is left.
func TestMachineKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	dir := machineDir(t)
	before := hostObjects(t)
	for _, p := range []struct{ name, during string }{
		{"qemu.start.image", "create"},
		{"qemu.start.network", "create"},
		{"qemu.start.disk", "create"},
		{"qemu.start.identity", "create"},
		{"qemu.start.spawned", "create"},
		{"qemu.start.process", "create"},
		{"qemu.start.guest", "create"},
		{"qemu.remove.process", "destroy"},
		{"qemu.remove.network", "destroy"},
	} {
		t.Run(p.name, func(t *testing.T) {
			d := dev(t, bins.failing, dir, []string{"FUSE_FAILPOINTS=" + p.name + "=exit"})
			acknowledged := d.create("victim") == nil
			if p.during == "destroy" {
				if !acknowledged {
					t.Fatal("create fails")
				}
				a, err := d.http(http.MethodDelete, "/v1/environments/fuse-victim", "")
				acknowledged = err == nil && a.status < 300
			}
			d.endsAt(p.name)
			if acknowledged {
				t.Error("the request was answered before its step")
			}
			d = dev(t, bins.failing, dir, nil, "--reconcile-interval", "2s")
			testkit.Eventually(t, 2*time.Minute, "the machine is gone", func() bool {
				return len(d.ids()) == 0 && len(hostVMs(t, dir)) == 0
			})
			checkAllocated(t, d, 0)
			d.stop()
			sameObjects(t, before)
		})
	}
}
