package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// hostObjects is the inventory of this machine: every kind of object that a
// VM is made of.
func hostObjects(t testing.TB) []string {
	t.Helper()
	var all []string
	add := func(kind string, names ...string) {
		for _, n := range names {
			if n = strings.TrimSpace(n); n != "" {
				all = append(all, kind+" "+n)
			}
		}
	}
	lines := func(name string, args ...string) []string {
		out, err := exec.Command(name, args...).Output()
		if err != nil {
			t.Fatalf("%s %v: %v", name, args, err)
		}
		return strings.Split(string(out), "\n")
	}
	for _, l := range lines("ip", "netns", "list") {
		name, _, _ := strings.Cut(l, " ")
		add("netns", name)
	}
	for _, l := range lines("ip", "-o", "link") {
		if f := strings.Fields(l); len(f) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			add("link", name)
		}
	}
	add("nft table", lines("nft", "list", "tables")...)
	for _, l := range lines("nft", "-a", "list", "ruleset") {
		if strings.Contains(l, "elements = ") {
			add("nft elements", l)
		}
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(l); len(f) > 1 && !strings.HasPrefix(f[1], "/proc") {
			add("mount", f[1])
		}
	}
	for _, p := range processes() {
		if strings.Contains(p.comm, "qemu") {
			add("process", fmt.Sprintf("%s %d", p.comm, p.pid))
		}
	}
	dirs, err := filepath.Glob("/sys/fs/cgroup/*/fuse*/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if info, err := os.Stat(d); err == nil && info.IsDir() {
			add("cgroup", d)
		}
	}
	slices.Sort(all)
	return all
}

// sameObjects fails the test if the inventory does not return to what it was.
func sameObjects(t testing.TB, before []string) {
	t.Helper()
	var diff string
	deadline := time.After(10 * time.Second)
	for {
		if diff = cmp.Diff(before, hostObjects(t)); diff == "" {
			return
		}
		select {
		case <-deadline:
			t.Errorf("host objects (-before +after): %s", diff)
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

type process struct {
	pid  int
	comm string
}

func processes() []process {
	var out []process
	entries, _ := os.ReadDir("/proc") // always there
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm")); err == nil {
			out = append(out, process{pid, strings.TrimSpace(string(comm))})
		}
	}
	return out
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
