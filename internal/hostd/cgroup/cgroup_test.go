package cgroup

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

func manager(t *testing.T) *Manager {
	t.Helper()
	base := "fuse-test-" + strconv.Itoa(os.Getpid()) + "/" + strings.ToLower(t.Name())
	m := Open(base)
	if !m.Works() {
		t.Fatalf("cgroups do not work here: %v", m.Missing())
	}
	t.Cleanup(func() {
		for _, mount := range m.mounts() {
			if _, err := os.Stat(filepath.Join(mount, base)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left (%v)", filepath.Join(mount, base), err)
			}
		}
	})
	return m
}

func read(t *testing.T, g *Group, controller, file string) string {
	t.Helper()
	mount := g.m.v2
	if mount == "" {
		mount = g.m.v1[controller]
	}
	b, err := os.ReadFile(filepath.Join(g.path(mount), file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestGroupLimitsAProcess(t *testing.T) {
	m := manager(t)
	g, err := m.Create("vm", Limits{MemoryBytes: 64 << 20, CPUs: 1.5, Weight: 200, Pids: 7})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"pids.max": "7"}
	if m.v2 != "" {
		want["memory.max"], want["cpu.max"], want["cpu.weight"] = "67108864", "150000 100000", "200"
	} else {
		want["memory.limit_in_bytes"], want["cpu.cfs_quota_us"], want["cpu.shares"] = "67108864", "150000", "2048"
	}
	for file, value := range want {
		controller, _, _ := strings.Cut(file, ".")
		if got := read(t, g, controller, file); got != value {
			t.Errorf("%s is %q, want %q", file, got, value)
		}
	}
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Procs(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("Procs = %v, %v", pids, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Remove(ctx); err == nil {
		t.Error("a group with a process was removed")
	}
	if names, err := m.List(); err != nil || !slices.Equal(names, []string{"vm"}) {
		t.Errorf("List = %v, %v", names, err)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := g.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if pids, err := g.Procs(); err != nil || len(pids) != 0 {
		t.Errorf("Procs of a group that is gone: %v, %v", pids, err)
	}
}

// The base goes with its last group, also while another group is made in it.
func TestGroupsThatComeAndGoTogether(t *testing.T) {
	m := manager(t)
	var both sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		both.Go(func() {
			for range testkit.Count(100, 5000) {
				g, err := m.Create(name, Limits{Pids: 5})
				if err == nil {
					err = g.Remove(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	both.Wait()
}

func TestCreateTwiceSetsTheLimitsAnew(t *testing.T) {
	m := manager(t)
	for _, pids := range []string{"5", "9", "max"} {
		n, _ := strconv.Atoi(pids)
		g, err := m.Create("vm", Limits{Pids: n})
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, g, "pids", "pids.max"); got != pids {
			t.Errorf("pids.max is %s, want %s", got, pids)
		}
	}
	if err := m.Group("vm").Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFindKnowsBothVersions(t *testing.T) {
	for name, c := range map[string]struct {
		in     string
		v2     string
		memory string
	}{
		"v2": {"30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate", "/sys/fs/cgroup", ""},
		"v1": {"1 2 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"1 2 0:2 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n" +
			"1 2 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw", "", "/sys/fs/cgroup/memory"},
		"none": {"1 2 0:1 / / rw - ext4 /dev/vda rw\nbroken line", "", ""},
	} {
		m := &Manager{v1: map[string]string{}}
		m.find(bufio.NewScanner(strings.NewReader(c.in)))
		if m.v2 != c.v2 || m.v1["memory"] != c.memory {
			t.Errorf("%s: v2 %q, v1 %v", name, m.v2, m.v1)
		}
	}
}
