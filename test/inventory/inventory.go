// Package inventory lists every kind of host object that a VM is made of:
// namespaces, links, nftables, mounts, processes and control groups. A test
// takes it before and after, of this machine or of a host that is a set of
// namespaces, and holds the one against the other.
package inventory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// View is where to look. The zero View is this machine.
type View struct {
	Enter []string // what goes before each command, such as nsenter and its flags; empty: nothing
	Proc  string   // the proc file system of those namespaces; empty: /proc
	// Of tells one's own objects from those of others that may come and go
	// meanwhile: of all whose names have "fuse" in them, those that contain one of
	// these. Nil keeps all.
	Of []string
}

// List is the inventory, sorted. Control groups belong to the machine and are
// listed whatever the view.
func (v View) List() ([]string, error) {
	if v.Proc == "" {
		v.Proc = "/proc"
	}
	var all []string
	add := func(kind string, names ...string) {
		for _, n := range names {
			if n = strings.TrimSpace(n); n != "" {
				all = append(all, kind+" "+n)
			}
		}
	}
	for _, part := range []func(add func(string, ...string)) error{v.links, v.tables, v.mounts, v.processes, groups} {
		if err := part(add); err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	return v.ours(all), nil
}

func (v View) lines(name string, args ...string) ([]string, error) {
	argv := slices.Concat(v.Enter, []string{name}, args)
	for tries := 0; ; tries++ {
		var out, errs bytes.Buffer
		cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // they end by themselves
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, &errs)
		}
		// What others make and remove meanwhile interrupts ip's list of links.
		if tries == 20 || !strings.Contains(errs.String(), "interrupted") {
			return strings.Split(out.String(), "\n"), nil
		}
	}
}

func (v View) links(add func(string, ...string)) error {
	spaces, err := v.lines("ip", "netns", "list")
	if err != nil {
		return err
	}
	for _, l := range spaces {
		name, _, _ := strings.Cut(l, " ")
		add("netns", name)
	}
	links, err := v.lines("ip", "-o", "link")
	if err != nil {
		return err
	}
	for _, l := range links {
		if f := strings.Fields(l); len(f) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			add("link", name)
		}
	}
	return nil
}

func (v View) tables(add func(string, ...string)) error {
	tables, err := v.lines("nft", "list", "tables")
	if err != nil {
		return err
	}
	add("nft table", tables...)
	rules, err := v.lines("nft", "list", "ruleset")
	if err != nil {
		return err
	}
	table := ""
	for _, l := range rules {
		if name, ok := strings.CutPrefix(l, "table "); ok {
			table = name
		}
		if strings.Contains(l, "elements = ") {
			add("nft elements of "+strings.TrimSuffix(table, " {"), l)
		}
	}
	return nil
}

func (v View) mounts(add func(string, ...string)) error {
	// The mounts are those of the namespace's first process.
	path := filepath.Join(v.Proc, "self", "mounts")
	if len(v.Enter) > 0 {
		path = filepath.Join(v.Proc, "1", "mounts")
	}
	mounts, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, l := range strings.Split(string(mounts), "\n") {
		// The directory of namespaces is mounted with the first one, and stays.
		if f := strings.Fields(l); len(f) > 1 && !strings.HasPrefix(f[1], "/proc") && f[1] != "/run/netns" {
			add("mount", f[1])
		}
	}
	return nil
}

// processes lists the machines: every one of ours is named, what others emulate
// is not.
func (v View) processes(add func(string, ...string)) error {
	entries, err := os.ReadDir(v.Proc)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(v.Proc, e.Name(), "comm"))
		if err != nil || !strings.Contains(string(comm), "qemu") {
			continue // another program, or it has ended meanwhile
		}
		if guest := guestName(filepath.Join(v.Proc, e.Name())); guest != "" {
			add("process", e.Name()+" "+guest)
		}
	}
	return nil
}

// guestName is the name that a QEMU was given.
func guestName(proc string) string {
	raw, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(raw), "guest=")
	name, _, _ := strings.Cut(rest, ",")
	return name
}

func groups(add func(string, ...string)) error {
	for _, pattern := range []string{"/sys/fs/cgroup/*/fuse*/*", "/sys/fs/cgroup/fuse*/*"} { // v1, v2
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, d := range dirs {
			if info, err := os.Stat(d); err == nil && info.IsDir() {
				add("cgroup", d)
			}
		}
	}
	return nil
}

func (v View) ours(objects []string) []string {
	if v.Of == nil {
		return objects
	}
	return slices.DeleteFunc(objects, func(o string) bool {
		return strings.Contains(o, "fuse") && !slices.ContainsFunc(v.Of, func(m string) bool { return strings.Contains(o, m) })
	})
}

// Marks are what the names of a host agent's objects contain: the id of the
// registry in its data directory, and the tag of its networks. There are none
// before its first start.
func Marks(dataDir string) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(dataDir, "host", "registry.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var reg struct {
		ID string `json:"registry_id"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &reg)
	}
	if err == nil && reg.ID == "" {
		err = errors.New("no registry_id in it")
	}
	if err != nil {
		return nil, fmt.Errorf("registry of %s: %w", dataDir, err)
	}
	sum := sha256.Sum256([]byte(reg.ID))
	return []string{reg.ID, hex.EncodeToString(sum[:3])}, nil
}

// Same fails the test if what list lists does not return to what it was within
// a minute: the kernel takes links away some time after their namespace.
func Same(t testing.TB, what string, before []string, list func() []string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		diff := cmp.Diff(before, list())
		if diff == "" {
			return
		}
		select {
		case <-deadline:
			t.Errorf("objects of %s (-before +after): %s", what, diff)
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
