package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// killPoints are the named steps at which a process of fuse dev is killed, by
// the request that meets them.
//
// lifecycle.destroy.intent lies before the intent is durable: what was asked
// for and never acknowledged may still be there.
var killPoints = []struct{ name, during string }{
	{"lifecycle.create.credentials", "create"},
	{"lifecycle.create.host_create", "create"},
	{"hostd.create.owner_record", "create"},
	{"hostd.create.slot", "create"},
	{"hostd.create.driver", "create"},
	{"hostd.create.answer", "create"},
	{"hostd.create.answered", "create"},
	{"lifecycle.create.profile_files", "create"},
	{"lifecycle.create.startup_script", "create"},
	{"lifecycle.create.settle", "create"},
	{"lifecycle.destroy.intent", "destroy"},
	{"lifecycle.destroy.host", "destroy"},
	{"hostd.destroy.intent", "destroy"},
	{"hostd.destroy.driver", "destroy"},
	{"hostd.destroy.clear", "destroy"},
	{"hostd.destroy.answer", "destroy"},
	{"lifecycle.destroy.settle", "destroy"},
}

// TestKillAtEveryStep kills server and host agent at each step of create and
// destroy. After the restart, what was acknowledged is there, what was not is
// not, nothing is left on the host, and the task id can be used again.
func TestKillAtEveryStep(t *testing.T) {
	for _, p := range killPoints {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d := dev(t, bins.failing, dir, nil, "--driver", "sim", "--reconcile-interval", "2s")
			if err := d.create("kept"); err != nil {
				t.Fatalf("without a failpoint: %v", err)
			}
			if p.during == "destroy" {
				if err := d.create("victim"); err != nil {
					t.Fatal(err)
				}
			}
			d.stop()

			d = dev(t, bins.failing, dir, []string{"FUSE_FAILPOINTS=" + p.name + "=exit"}, "--driver", "sim")
			var acknowledged bool
			if p.during == "create" {
				acknowledged = d.create("victim") == nil
			} else {
				a, err := d.http(http.MethodDelete, "/v1/environments/fuse-victim", "")
				acknowledged = err == nil && a.status < 300
			}
			d.endsAt(p.name)
			if acknowledged {
				t.Fatal("the request was answered before its step")
			}

			d = dev(t, bins.failing, dir, nil, "--driver", "sim", "--reconcile-interval", "2s")
			testkit.Eventually(t, 2*time.Minute, "the victim is gone", func() bool {
				if p.name == "lifecycle.destroy.intent" {
					d.must("rm", "fuse-victim")
				}
				ids := d.ids()
				return len(ids) == 1 && ids[0] == "fuse-kept"
			})
			if got := d.must("exec", "fuse-kept", "--", "echo", "still here"); got != "still here\n" {
				t.Errorf("the kept environment says %q", got)
			}
			if lives := hostVMs(t, dir); len(lives) != 1 {
				t.Errorf("the host has %d machines on disk, want 1: %v", len(lives), lives)
			}
			checkAllocated(t, d, 1)
			if err := d.create("victim"); err != nil {
				t.Errorf("the task id cannot be used again: %v", err)
			}
			for _, id := range []string{"fuse-kept", "fuse-victim"} {
				d.must("rm", id)
			}
			if lives := hostVMs(t, dir); len(lives) != 0 {
				t.Errorf("left on the host: %v", lives)
			}
			checkAllocated(t, d, 0)
		})
	}
}

// hostVMs lists the machines that the host agent keeps directories of.
func hostVMs(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "host", "vms"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// checkAllocated reads the host's books.
func checkAllocated(t *testing.T, d *daemon, want int) {
	t.Helper()
	var h struct {
		Allocated struct {
			VMCount int `json:"vm_count"`
			CPUs    int `json:"cpus"`
		} `json:"allocated"`
	}
	if err := json.Unmarshal([]byte(d.must("host", "get", "local", "--json")), &h); err != nil {
		t.Fatal(err)
	}
	if h.Allocated.VMCount != want || h.Allocated.CPUs != want {
		t.Errorf("the host's books say %d machines with %d CPUs, want %d", h.Allocated.VMCount, h.Allocated.CPUs, want)
	}
}

// TestAcknowledgedSurvivesKill kills the server under a load of creates: every
// environment that a client was told of is there afterwards, and usable.
func TestAcknowledgedSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	args := []string{"--driver", "sim", "--reconcile-interval", "2s", "--sim", "boot=1ms..20ms", "--host-cpus", "10000", "--host-ram-mb", "10000000", "--host-storage-gb", "100000", "--max-vms", "10000"}
	acknowledged := map[string]bool{}
	for round := range testkit.Count(3, 30) {
		d := dev(t, bins.fuse, dir, nil, args...)
		type ack struct {
			task string
			ok   bool
		}
		acks := make(chan ack)
		const workers, each = 8, 12
		for w := range workers {
			go func() {
				for i := range each {
					task := fmt.Sprintf("r%d-w%d-%d", round, w, i)
					acks <- ack{task, d.create(task) == nil}
				}
			}()
		}
		for n := range workers * each {
			a := <-acks
			if a.ok {
				acknowledged[a.task] = true
			}
			if n == workers*each/2 {
				d.kill()
			}
		}
		d = dev(t, bins.fuse, dir, nil, args...)
		listed := map[string]bool{}
		for _, id := range d.ids() {
			listed[strings.TrimPrefix(id, "fuse-")] = true
		}
		for task := range acknowledged {
			if !listed[task] {
				t.Errorf("round %d: %s was acknowledged and is gone", round, task)
			}
		}
		// What was not acknowledged may have been made durable just before the
		// kill; interrupted creates are undone.
		testkit.Eventually(t, 2*time.Minute, "interrupted creates are undone", func() bool {
			return !strings.Contains(d.must("ls"), "provisioning") && !strings.Contains(d.must("ls"), "destroying")
		})
		d.stop()
	}
}
