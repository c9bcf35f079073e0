package e2e

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
)

// counting starts a process that counts in its memory and into a file that it
// keeps open.
const counting = `i=0; exec 3>>/workspace/open; while :; do i=$((i+1)); echo $i >&3; echo $i > /workspace/n.new; mv /workspace/n.new /workspace/n; sleep 0.1; done`

// TestSnapshots walks a real machine through captures, forks and pauses. What runs
// in it goes on where it was each time, and the source is usable after each.
func TestSnapshots(t *testing.T) {
	before := hostObjects(t)
	d := dev(t, bins.fuse, machineDir(t), nil, "--host-cpus", "8")
	d.must("create", "--task-id", "s", "--ram-mb", "192", "--no-golden", "--secret", "K=the-parent-s-secret")
	const id = "fuse-s"
	d.must("process", "start", id, "--", "sh", "-c", counting)
	count := func(vm string) int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(d.must("exec", vm, "--", "sh", "-c", "until cat /workspace/n 2>/dev/null; do sleep 0.1; done")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// grows is that the counter goes on, in the file that it keeps open too, from at
	// least where it was.
	grows := func(vm string, from int) int {
		t.Helper()
		first := count(vm)
		next := strings.TrimSpace(d.must("exec", vm, "--", "sh", "-c", "a=$(tail -n1 /workspace/open); for i in $(seq 100); do sleep 0.2; b=$(tail -n1 /workspace/open); [ $b -gt $a ] && break; done; echo $a $b"))
		a, b, _ := strings.Cut(next, " ")
		if x, _ := strconv.Atoi(a); first < from || x < first {
			t.Errorf("%s: the counter is at %d and %s, was at %d", vm, first, a, from)
		}
		if a == b || b == "" {
			t.Errorf("%s: the counter stands still at %q", vm, next)
		}
		return first
	}
	get := func(vm string) (env gen.Environment) {
		t.Helper()
		if err := json.Unmarshal([]byte(d.must("get", vm, "--json")), &env); err != nil {
			t.Fatal(err)
		}
		return env
	}

	n := grows(id, 1)
	var live gen.Snapshot
	if err := json.Unmarshal([]byte(d.must("snapshot", "create", id, "--live", "--json")), &live); err != nil {
		t.Fatal(err)
	}
	if live.Kind != "live" || live.State != "ready" || live.SizeBytes == 0 || live.Digest == "" || live.Machine["driver"] == "" {
		t.Errorf("snapshot %+v", live)
	}
	t.Logf("live: %d bytes, the machine stood still for %.1f ms, its processes for %.1f ms", live.SizeBytes, live.StopMs, live.FreezeMs)
	n = grows(id, n)
	taken := n // or less

	forks := strings.Fields(d.must("fork", id, "--live", "--count", "2", "-q"))
	if len(forks) != 2 {
		t.Fatalf("forks %v", forks)
	}
	machines, generations := map[string]bool{}, map[string]bool{}
	for _, vm := range forks {
		grows(vm, n)
		machines[d.must("exec", vm, "--", "cat", "/etc/machine-id")] = true
		env := get(vm)
		if env.Certificate == nil || env.Certificate.Cause != "fork" || len(env.Certificate.Renewed) == 0 || !slices.Equal(env.Ancestors, []string{id}) {
			t.Errorf("%s: certificate %+v, ancestors %v", vm, env.Certificate, env.Ancestors)
			continue
		}
		generations[env.Certificate.Generation] = true
	}
	machines[d.must("exec", id, "--", "cat", "/etc/machine-id")] = true
	if len(machines) != 3 || len(generations) != 2 {
		t.Errorf("%d machine ids, %d generations", len(machines), len(generations))
	}
	seed := get(forks[0]).SeedSnapshotID
	if o := d.fuse("snapshot", "rm", seed); o.code == 0 || !strings.Contains(o.err, "in use") {
		t.Errorf("the seed of forks: %+v", o)
	}
	d.must(append([]string{"rm"}, forks...)...)
	grows(id, n)

	d.must("exec", id, "--", "sh", "-c", "echo later > /workspace/later; sync")
	began := time.Now()
	d.must("snapshot", "restore", live.ID)
	if o := d.fuse("exec", id, "--", "cat", "/workspace/later"); o.code == 0 {
		t.Error("what came after the snapshot is there after the restore")
	}
	back := count(id)
	if most := taken + 5 + int(11*time.Since(began).Seconds()); back > most { // ten a second at most
		t.Errorf("the counter is at %d after the restore, at most %d when it was taken and %d since", back, taken, most-taken)
	}
	grows(id, back)

	d.must("pause", id)
	if env := get(id); env.State != "running" || env.Activity != "paused" || env.Paused == nil || env.Paused.KeptBytes == 0 {
		t.Errorf("paused: %+v", env)
	}
	if slices.ContainsFunc(hostObjects(t), func(o string) bool { return strings.HasPrefix(o, "process ") }) {
		t.Error("a paused machine has a process")
	}
	grows(id, back) // a use wakes it

	d.must("rm", id)
	for _, snapshot := range []string{seed, live.ID} { // the seed goes by itself too, in a later cycle
		if o := d.fuse("snapshot", "rm", snapshot); o.code != 0 && (snapshot == live.ID || !strings.Contains(o.err, "not_found")) {
			t.Errorf("rm of %s: %+v", snapshot, o)
		}
	}
	if list := strings.TrimSpace(d.must("snapshot", "ls", "-q")); list != "" {
		t.Errorf("snapshots left: %s", list)
	}
	d.stop()
	sameObjects(t, before)
}
