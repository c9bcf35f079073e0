package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fusevm/fuse/test/inventory"
)

// registries are the data directories of each test's daemons, by the name of the
// test: tests run side by side.
var registries = struct {
	sync.Mutex
	dirs map[string][]string
}{dirs: map[string][]string{}}

// whole is the name of the test that a subtest is part of.
func whole(t testing.TB) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// owns notes that a test's daemon has a data directory.
func owns(t testing.TB, dir string) {
	registries.Lock()
	defer registries.Unlock()
	registries.dirs[whole(t)] = append(registries.dirs[whole(t)], dir)
}

// ownMarks are what the names of this test's own objects carry: the ids of the
// registries that its daemons made, and the tags of their networks.
func ownMarks(t testing.TB) []string {
	t.Helper()
	registries.Lock()
	defer registries.Unlock()
	marks := []string{} // not nil: before the first daemon nothing is ours
	for _, dir := range registries.dirs[whole(t)] {
		of, err := inventory.Marks(dir)
		if err != nil {
			t.Fatal(err)
		}
		marks = append(marks, of...)
	}
	return marks
}

// hostObjects is the inventory of this machine, as far as it belongs to this
// test or nobody can be told to own it.
func hostObjects(t testing.TB) []string {
	t.Helper()
	all, err := inventory.View{Of: ownMarks(t)}.List()
	if err != nil {
		t.Fatal(err)
	}
	registries.Lock()
	defer registries.Unlock()
	own := registries.dirs[whole(t)]
	return slices.DeleteFunc(all, func(object string) bool { // what another test has mounted
		path, ok := strings.CutPrefix(object, "mount "+os.TempDir()+"/")
		return ok && !slices.ContainsFunc(own, func(dir string) bool { return strings.HasPrefix(filepath.Join(os.TempDir(), path), dir) })
	})
}

// sameObjects fails the test if the inventory does not return to what it was.
func sameObjects(t testing.TB, before []string) {
	t.Helper()
	inventory.Same(t, "the host", before, func() []string { return hostObjects(t) })
}

// fds counts the daemon's open descriptors.
func (d *daemon) fds() int {
	d.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	return len(entries)
}

// goroutines reads the daemon's own metric.
func (d *daemon) goroutines() int { return int(d.metric("go_goroutines")) }

// metric reads a figure without labels from /metrics.
func (d *daemon) metric(name string) float64 {
	d.t.Helper()
	a, err := d.http("GET", "/metrics", "")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, l := range strings.Split(a.raw, "\n") {
		if v, ok := strings.CutPrefix(l, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				d.t.Fatal(err)
			}
			return n
		}
	}
	d.t.Fatalf("no %s in /metrics", name)
	return 0
}

// runIn runs a program in a directory.
func runIn(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
