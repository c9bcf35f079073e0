package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/testkit"
)

// snapshotKills are the steps of captures, forks and standstills at which a
// process of fuse dev is killed, by the command that meets them. SNAP stands for a
// snapshot of fuse-src that was taken before.
var snapshotKills = []struct {
	args   []string
	points []string
}{
	{[]string{"snapshot", "create", "fuse-src"}, []string{
		"snapshots.take.claimed", "hostd.snapshot.begun", "hostd.snapshot.written", "hostd.snapshot.answer", "snapshots.take.written",
	}},
	{[]string{"snapshot", "create", "fuse-src", "--live"}, []string{"hostd.snapshot.written", "snapshots.take.written"}},
	{[]string{"snapshot", "restore", "SNAP"}, []string{
		"snapshots.restore.claimed", "hostd.restore.kept", "hostd.restore.answer", "snapshots.restore.done",
	}},
	{[]string{"snapshot", "rm", "SNAP"}, []string{
		"snapshots.remove.claimed", "hostd.snapshot.condemned", "hostd.snapshot.discarded", "snapshots.remove.gone",
	}},
	{[]string{"fork", "fuse-src"}, []string{
		"snapshots.take.claimed", "hostd.snapshot.written", "snapshots.take.written", "snapshots.fork.child", "hostd.fork.driver", "hostd.fork.thawed",
		"hostd.create.answer", "lifecycle.create.host_create", "lifecycle.create.settle",
	}},
	{[]string{"fork", "fuse-src", "--live", "--count", "3"}, []string{"snapshots.fork.child@2", "hostd.fork.driver@2", "hostd.fork.thawed@3", "lifecycle.create.settle@2"}},
	{[]string{"pause", "fuse-src"}, []string{"pausing.pause.claimed", "hostd.pause.answer", "pausing.pause.done"}},
	{[]string{"resume", "fuse-src"}, []string{"pausing.resume.claimed", "hostd.resume.kept", "hostd.resume.answer", "pausing.resume.done"}},
	{[]string{"exec", "fuse-src", "--", "true"}, []string{"pausing.resume.claimed", "hostd.resume.kept"}},
}

// TestKillAtEveryStepOfSnapshots kills server and host agent at each step of what
// is done with captures. After the restart nothing is on its way, the source runs
// with what it wrote or with what it was put back to, what was made for a request
// without an answer is gone or whole, and records and bytes agree.
func TestKillAtEveryStepOfSnapshots(t *testing.T) {
	for _, k := range snapshotKills {
		for _, point := range k.points {
			t.Run(strings.Join(append(slices.Clone(k.args), point), " "), func(t *testing.T) {
				t.Parallel()
				killSnapshot(t, k.args, point)
			})
		}
	}
}

func killSnapshot(t *testing.T, args []string, point string) {
	dir := t.TempDir()
	sim := []string{"--driver", "sim", "--reconcile-interval", "1s"}
	d := dev(t, bins.failing, dir, nil, sim...)
	d.must("create", "--task-id", "src", "--cpus", "1", "--secret", "K=v")
	write(t, d, "before")
	snap := strings.TrimSpace(d.must("snapshot", "create", "fuse-src", "-q"))
	write(t, d, "after")
	wakes := args[0] == "resume" || args[0] == "exec"
	if wakes {
		d.must("pause", "fuse-src")
	}
	d.stop()

	args = slices.Clone(args)
	for i, a := range args {
		if a == "SNAP" {
			args[i] = snap
		}
	}
	d = dev(t, bins.failing, dir, []string{"FUSE_FAILPOINTS=" + point + "=exit"}, sim...)
	if o := d.fuse(args...); o.code == 0 {
		t.Fatal("the request was answered before its step")
	}
	d.endsAt(point)

	d = dev(t, bins.failing, dir, nil, sim...)
	removes := args[0] == "snapshot" && args[1] == "rm"
	testkit.Eventually(t, 2*time.Minute, "nothing is on its way, and records and bytes agree", func() bool {
		return settled(t, d, removes)
	})
	want := "after\n"
	got := d.must("exec", "fuse-src", "--", "cat", "/workspace/f")
	if args[0] == "snapshot" && args[1] == "restore" && got == "before\n" {
		want = got // it was put back before the answer was lost
	}
	if got != want {
		t.Errorf("the source says %q, want %q", got, want)
	}
	if args[0] == "pause" {
		d.must("resume", "fuse-src")
	}
	for _, id := range d.ids() {
		if got := d.must("exec", id, "--", "echo", "on"); got != "on\n" {
			t.Errorf("%s says %q", id, got)
		}
	}
	checkAllocated(t, d, len(d.ids()))
	// The same request works now.
	if wakes {
		d.must("pause", "fuse-src")
	}
	if !removes {
		d.must(args...)
	}
	if args[0] == "pause" {
		d.must("resume", "fuse-src")
	}
	d.must(append([]string{"rm"}, d.ids()...)...)
	testkit.Eventually(t, 2*time.Minute, "all of it can be removed", func() bool {
		for _, s := range snapshotsOf(d) { // the newest first
			d.fuse("snapshot", "rm", s.ID)
		}
		return len(snapshotsOf(d)) == 0 && len(artifacts(t, dir)) == 0
	})
	if lives := hostVMs(t, dir); len(lives) != 0 {
		t.Errorf("left on the host: %v", lives)
	}
	checkAllocated(t, d, 0)
}

func write(t *testing.T, d *daemon, text string) {
	d.t.Helper()
	from := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(from, []byte(text+"\n"), 0o600); err != nil {
		d.t.Fatal(err)
	}
	d.must("cp", from, "fuse-src:/workspace/f")
}

func snapshotsOf(d *daemon) []gen.Snapshot {
	d.t.Helper()
	var list gen.SnapshotList
	if err := json.Unmarshal([]byte(d.must("snapshot", "ls", "--json")), &list); err != nil {
		d.t.Fatal(err)
	}
	return list.Snapshots
}

// artifacts lists the captures that the host agent keeps directories of.
func artifacts(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "host", "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out
}

// settled is that environments run or stand still, snapshots are ready, seeds of
// forks have one, and the host keeps what the records say.
func settled(t *testing.T, d *daemon, removes bool) bool {
	var envs struct{ Environments []gen.Environment }
	if json.Unmarshal([]byte(d.must("ls", "--json")), &envs) != nil {
		return false
	}
	seeds := map[string]bool{}
	for _, e := range envs.Environments {
		if e.State != "running" || e.Activity != "" && e.Activity != "paused" {
			return false
		}
		seeds[e.SeedSnapshotID] = true
	}
	var ids []string
	for _, s := range snapshotsOf(d) {
		if s.State != "ready" || s.Ephemeral && !seeds[s.ID] || removes {
			return false
		}
		ids = append(ids, s.ID)
	}
	slices.Sort(ids)
	return slices.Equal(ids, artifacts(t, d.dir)) && len(hostVMs(t, d.dir)) == len(envs.Environments)
}
