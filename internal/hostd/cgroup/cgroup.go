// Package cgroup limits what VM processes may take of their host. It writes
// the kernel's own files, of cgroups v1 and v2 alike: a group has a name, a
// few limits and processes, and no more is needed.
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of one group; a zero field is no limit.
type Limits struct {
	MemoryBytes int64   // of the process in all, guest RAM included
	CPUs        float64 // hard quota, in CPUs
	Weight      int     // share under contention; 100 is the default
	Pids        int     // threads
}

// controllers that a group uses.
var controllers = []string{"memory", "cpu", "pids"}

const period = 100_000 // of the CPU quota, in microseconds

// Manager makes groups below one directory of the host's hierarchies.
type Manager struct {
	base    string            // "fuse/TAG", below each mount
	v2      string            // mount point, empty with v1
	v1      map[string]string // mount point by controller
	missing []string

	rooted     bool // the host's own programs are in no group
	processors int
}

// Open finds the host's hierarchies. It never fails: what is lacking is said
// by Missing, and limits that need it are not kept.
func Open(base string) *Manager {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return &Manager{base: base, missing: slices.Clone(controllers)}
	}
	defer f.Close()
	m := &Manager{base: base, v1: map[string]string{}, processors: runtime.NumCPU()}
	m.find(bufio.NewScanner(f))
	if own, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		m.rooted = rooted(string(own))
	}
	m.probe()
	return m
}

// find reads mountinfo: "… MOUNTPOINT … - TYPE SOURCE SUPEROPTIONS".
func (m *Manager) find(s *bufio.Scanner) {
	var unified string
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		switch r[0] {
		case "cgroup2":
			unified = l[4]
		case "cgroup":
			for _, c := range strings.Split(r[2], ",") {
				if slices.Contains(controllers, c) && m.v1[c] == "" {
					m.v1[c] = l[4]
				}
			}
		}
	}
	if len(m.v1) == 0 {
		m.v2 = unified
	}
}

// probe makes and removes a group, which tells what works.
func (m *Manager) probe() {
	name := ".probe-" + strconv.Itoa(os.Getpid())
	if m.v2 == "" && len(m.v1) == 0 {
		m.missing = slices.Clone(controllers)
		return
	}
	for _, c := range controllers {
		if m.v2 == "" && m.v1[c] == "" {
			m.missing = append(m.missing, c)
		}
	}
	g, err := m.Create(name, Limits{MemoryBytes: 1 << 30, CPUs: 1, Weight: 100, Pids: 10})
	if err != nil {
		m.missing = slices.Clone(controllers)
		return
	}
	_ = g.Remove(context.Background())
}

// Missing lists the controllers that cannot be used.
func (m *Manager) Missing() []string { return slices.Clone(m.missing) }

// Works reports whether groups can be made at all.
func (m *Manager) Works() bool { return len(m.missing) < len(controllers) }

// mounts are the directories that hold a group's halves, one for v2, one a
// controller for v1.
func (m *Manager) mounts() map[string]string {
	if m.v2 != "" {
		return map[string]string{"": m.v2}
	}
	return m.v1
}

// Group is one group.
type Group struct {
	m    *Manager
	name string
}

// Group names an existing or future group.
func (m *Manager) Group(name string) *Group { return &Group{m, name} }

// Create makes a group with limits, or sets the limits of one that is there.
// On error nothing is left.
func (m *Manager) Create(name string, l Limits) (*Group, error) {
	g := m.Group(name)
	err := g.make()
	if err == nil {
		err = g.limit(l)
	}
	if err != nil {
		_ = g.Remove(context.Background())
		return nil, fmt.Errorf("cgroup %s: %w", g.path(""), err)
	}
	return g, nil
}

func (g *Group) path(mount string) string { return filepath.Join(mount, g.m.base, g.name) }

func (g *Group) make() error {
	for _, mount := range g.m.mounts() {
		if err := g.makeIn(mount); err != nil {
			return err
		}
	}
	return nil
}

// makeFor is how long a group is tried to be made whose base goes meanwhile.
const makeFor = 5 * time.Second

// makeIn tries again where another group's removal took the base, empty by then,
// away in the middle.
func (g *Group) makeIn(mount string) error {
	for end := time.Now().Add(makeFor); ; <-time.After(time.Millisecond) {
		var err error
		if g.m.v2 != "" {
			err = g.enable(mount)
		}
		if err == nil {
			err = os.MkdirAll(g.path(mount), 0o755)
		}
		// A directory that goes is there, is not, or is no longer alive.
		went := errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
		if !went || time.Now().After(end) {
			return err
		}
	}
}

// enable hands the controllers down to the base, level by level (v2).
func (g *Group) enable(mount string) error {
	dir := mount
	for _, part := range append([]string{""}, strings.Split(g.m.base, "/")...) {
		dir = filepath.Join(dir, part)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := write(dir, "cgroup.subtree_control", "+memory +cpu +pids"); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) limit(l Limits) error {
	memory := g.set("memory", "memory.limit_in_bytes", orMinus(l.MemoryBytes))
	if g.m.v2 != "" {
		memory = g.set("memory", "memory.max", orMax(l.MemoryBytes))
	}
	return errors.Join(memory, g.SetCPU(l.CPUs, l.Weight), g.set("pids", "pids.max", orMax(int64(l.Pids))))
}

// SetCPU changes quota and weight of a group that is there; zero is no quota,
// and the default weight.
func (g *Group) SetCPU(cpus float64, weight int) error {
	if weight == 0 {
		weight = 100
	}
	defer g.m.balance()
	if g.m.v2 != "" {
		return errors.Join(
			g.set("cpu", "cpu.max", fmt.Sprintf("%s %d", orMax(int64(cpus*period)), period)),
			g.set("cpu", "cpu.weight", strconv.Itoa(min(max(weight, 1), 10000))))
	}
	return errors.Join(
		g.set("cpu", "cpu.cfs_period_us", strconv.Itoa(period)),
		g.set("cpu", "cpu.cfs_quota_us", orMinus(int64(cpus*period))),
		g.set("cpu", "cpu.shares", strconv.Itoa(max(weight*1024/100, 2))))
}

// set writes a file of a controller, if the host has that.
func (g *Group) set(controller, file, value string) error {
	mount, ok := g.m.mounts()[controller]
	if g.m.v2 != "" {
		mount, ok = g.m.v2, true
	}
	if !ok {
		return nil
	}
	return write(g.path(mount), file, value)
}

func orMax(n int64) string {
	if n <= 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

func orMinus(n int64) string {
	if n <= 0 {
		return "-1"
	}
	return strconv.FormatInt(n, 10)
}

// write sets one of the kernel's files; it must not make one.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Add moves a process with all its threads into the group.
func (g *Group) Add(pid int) error {
	for _, mount := range g.m.mounts() {
		if err := write(g.path(mount), "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("add process %d to cgroup: %w", pid, err)
		}
	}
	return nil
}

// Procs lists the processes in the group; none if there is no such group.
func (g *Group) Procs() ([]int, error) {
	var pids []int
	for _, mount := range g.m.mounts() {
		b, err := os.ReadFile(filepath.Join(g.path(mount), "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("processes of cgroup %s: %w", g.name, err)
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// removeFor is how long Remove waits for processes that are ending.
const removeFor = 5 * time.Second

// Remove deletes the group, which must have no processes but ending ones, and
// its base if that is empty. A group that is not there is success.
func (g *Group) Remove(ctx context.Context) error {
	defer g.m.balance()
	for _, mount := range g.m.mounts() {
		if err := rmdir(ctx, g.path(mount)); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", g.path(mount), err)
		}
		for dir := g.m.base; dir != "."; dir = filepath.Dir(dir) {
			if unix.Rmdir(filepath.Join(mount, dir)) != nil {
				break // in use by others
			}
		}
	}
	return nil
}

func rmdir(ctx context.Context, path string) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(removeFor); ; {
		err := unix.Rmdir(path)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY), time.Now().After(end):
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// List names the groups below the base.
func (m *Manager) List() ([]string, error) {
	var names []string
	for _, mount := range m.mounts() {
		entries, err := os.ReadDir(filepath.Join(mount, m.base))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Version is 2 or 1, that of the hierarchies in use; 0 means none.
func (m *Manager) Version() int {
	switch {
	case m.v2 != "":
		return 2
	case len(m.v1) > 0:
		return 1
	}
	return 0
}
