package cgroup

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/testkit"
)

// hog is a process that takes all it gets of one processor, in no group.
func hog(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it never ends by itself
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// ran is the processor time that a process has had.
func ran(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/schedstat")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

// looked is the processor time that processes have had at one moment. Where this
// process was held up in the middle, the others went on, and it looks again.
func looked(t *testing.T, pids []int) (all []time.Duration) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "a look without a break", func() bool {
		all = all[:0]
		began := time.Now()
		for _, pid := range pids {
			all = append(all, ran(t, pid))
		}
		return time.Since(began) < 5*time.Millisecond
	})
	return all
}

// Where processors are short, groups have their weights among each other, and
// each has its own beside a process of the host, which weighs 100.
func TestWeightsHold(t *testing.T) {
	m := manager(t)
	m.rooted, m.processors = true, 64
	var pids []int
	for _, weight := range []int{100, 100, 300} {
		g, err := m.Create("w"+strconv.Itoa(len(pids)), Limits{Weight: weight})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		})
		pids = append(pids, hog(t))
		if err := g.Add(pids[len(pids)-1]); err != nil {
			t.Fatal(err)
		}
	}
	outside := hog(t)
	pids = append(pids, outside)
	before := looked(t, pids)
	had := make([]time.Duration, len(pids))
	testkit.Eventually(t, 3*time.Minute, "all have had their turns", func() bool {
		var sum time.Duration
		for i, now := range looked(t, pids) {
			had[i] = now - before[i]
			sum += had[i]
		}
		return sum > 1500*time.Millisecond
	})
	t.Logf("100, 100, 300 and a process outside had %v", had)
	if a, b := had[0].Seconds()/had[1].Seconds(), had[2].Seconds()/had[0].Seconds(); a < 0.7 || a > 1.4 || b < 2 || b > 4.5 {
		t.Errorf("shares of 100, 100, 300 are %v", had)
	}
	if a := had[0].Seconds() / had[3].Seconds(); a < 0.7 || a > 1.4 {
		t.Errorf("a group of weight 100 had %v, a process of the host %v", had[0], had[3])
	}
}

// A quota holds though the processor is free.
func TestQuotaHolds(t *testing.T) {
	m := manager(t)
	g, err := m.Create("vm", Limits{CPUs: 0.2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	pid := hog(t)
	if err := g.Add(pid); err != nil {
		t.Fatal(err)
	}
	began, before := time.Now(), ran(t, pid)
	testkit.Eventually(t, 3*time.Minute, "it has had ten periods", func() bool { return ran(t, pid)-before > 200*time.Millisecond })
	if share := (ran(t, pid) - before).Seconds() / time.Since(began).Seconds(); share > 0.3 {
		t.Errorf("a quota of 0.2 gave %.2f of a processor", share)
	}
}

func TestRooted(t *testing.T) {
	for text, want := range map[string]bool{
		"2:cpuacct:/x\n1:cpu:/\n0::/\n":                   true,
		"4:cpu,cpuacct:/\n3:memory:/user.slice\n":         true,
		"4:cpu,cpuacct:/system.slice\n0::/system.slice\n": false,
		"1:name=systemd:/init.scope\n0::/\n":              true,
		"0::/system.slice/fuse-hostd.service\n":           false,
		"":                                                false,
	} {
		if got := rooted(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// The base has the weight of what is below it, and no more than the processors.
func TestBaseWeighsWhatItHolds(t *testing.T) {
	m := manager(t)
	m.rooted, m.processors = true, 4
	file, unit := "cpu.shares", 1024
	if m.v2 != "" {
		file, unit = "cpu.weight", 100
	}
	base := func() int {
		n, err := strconv.Atoi(read(t, m.Group(""), "cpu", file))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var groups []*Group
	for i, want := range []int{1, 3, 4} {
		g, err := m.Create("g"+strconv.Itoa(i), Limits{Weight: []int{100, 200, 900}[i]})
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
		if got := base(); got != want*unit {
			t.Errorf("after group %d the base weighs %d, want %d", i, got, want*unit)
		}
	}
	if err := groups[2].SetCPU(0, 50); err != nil {
		t.Fatal(err)
	}
	if got := base(); got != 3*unit+unit/2 {
		t.Errorf("after a change it weighs %d", got)
	}
	for i, g := range groups {
		if err := g.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if i == 0 && base() != 2*unit+unit/2 {
			t.Errorf("after a removal it weighs %d", base())
		}
	}
}

// The kernel's own bound holds where there are more processors than it has
// weight for.
func TestBaseWeighsNoMoreThanTheKernelTakes(t *testing.T) {
	m := &Manager{base: "base", v2: t.TempDir(), rooted: true, processors: 128}
	for dir, weight := range map[string]string{"base": "100", "base/a": "6400", "base/b": "6400"} {
		if err := os.MkdirAll(filepath.Join(m.v2, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(m.v2, dir, "cpu.weight"), []byte(weight), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.balance()
	if got := read(t, m.Group(""), "cpu", "cpu.weight"); got != "10000" {
		t.Errorf("the base weighs %s", got)
	}
}
