package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// registries are the marks that the names of this test's own objects carry: the
// ids of the registries that its daemons made, and the tags of their networks.
var registries struct {
	sync.Mutex
	dirs []string
}

func ownMarks(t testing.TB) []string {
	t.Helper()
	registries.Lock()
	defer registries.Unlock()
	var marks []string
	for _, dir := range registries.dirs {
		raw, err := os.ReadFile(filepath.Join(dir, "host", "registry.json"))
		if err != nil {
			continue // it has made nothing yet, or is gone with its test
		}
		var reg struct {
			ID string `json:"registry_id"`
		}
		if err := json.Unmarshal(raw, &reg); err != nil || reg.ID == "" {
			t.Fatalf("registry of %s: %v %s", dir, err, raw)
		}
		sum := sha256.Sum256([]byte(reg.ID))
		marks = append(marks, reg.ID, hex.EncodeToString(sum[:3]))
	}
	return marks
}

// ours keeps what belongs to this test, and what nobody can be told to own:
// other agents may come and go on this machine meanwhile.
func ours(t testing.TB, objects []string) []string {
	marks := ownMarks(t)
	return slices.DeleteFunc(objects, func(o string) bool {
		return strings.Contains(o, "fuse") && !slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(o, m) })
	})
}

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
	table := ""
	for _, l := range lines("nft", "list", "ruleset") {
		if name, ok := strings.CutPrefix(l, "table "); ok {
			table = name
		}
		if strings.Contains(l, "elements = ") {
			add("nft elements of "+strings.TrimSuffix(table, " {"), l)
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
		// Every machine of ours is named; what others emulate is not.
		if strings.Contains(p.comm, "qemu") && p.guest() != "" {
			add("process", fmt.Sprintf("%d %s", p.pid, p.guest()))
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
	return ours(t, all)
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

// guest is the name that QEMU was given.
func (p process) guest() string {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cmdline"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(raw), "guest=")
	name, _, _ := strings.Cut(rest, ",")
	return name
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
