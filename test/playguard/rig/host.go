package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
)

// Flavour is the Compose that sessions on a host find.
type Flavour string

// Flavours. V2 has to be built first: test/tools holds its version.
const (
	V1 Flavour = "v1"
	V2 Flavour = "v2"
)

// Host is a Docker host behind SSH: an sshd whose sessions see a machine id, a
// boot id, tools and a Docker socket of their own, and a link in front of it.
type Host struct {
	Docker  *dockertest.Daemon
	Flavour Flavour
	SSH     *sshdtest.Server
	Link    *sshdtest.Link
	Root    string
	Layout  model.Layout

	t    testing.TB
	api  *api
	dir  string
	bin  string // first in the path of what runs on the host
	boot string
}

// composeV2 is where the build puts Compose v2.
const composeV2 = "build/bin/docker-compose-v2"

// Root is the directory of the host of that name.
func Root(d *dockertest.Daemon, name string) string {
	return filepath.Join(d.Dir, "hosts", name, "opt", "fuse")
}

// NewHost puts an sshd in front of a daemon until the test ends.
func NewHost(t testing.TB, d *dockertest.Daemon, f Flavour, name string) *Host {
	t.Helper()
	dir := filepath.Join(d.Dir, "hosts", name)
	h := &Host{Docker: d, Flavour: f, t: t, api: newAPI(t, d), dir: dir, bin: filepath.Join(dir, "bin"), boot: filepath.Join(dir, "boot_id"), Root: Root(d, name)}
	layout, err := model.NewLayout(h.Root)
	if err != nil {
		t.Fatal(err)
	}
	h.Layout = layout
	if err := os.MkdirAll(h.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	h.write(filepath.Join(dir, "machine-id"), fmt.Sprintf("%032x\n", len(name)*1000+int(name[0])))
	h.Boot(1)
	if err := os.Symlink(debianDocker(), filepath.Join(h.bin, "docker")); err != nil {
		t.Fatal(err)
	}
	o := Sessions(t, d, f, dir)
	o.Config[0] += " HOME=" + dir
	o.Mounts["/usr/local/sbin"] = h.bin
	o.Mounts["/etc/machine-id"], o.Mounts["/proc/sys/kernel/random/boot_id"] = filepath.Join(dir, "machine-id"), h.boot
	h.SSH = sshdtest.Start(t, o)
	h.Link = sshdtest.NewLink(t, h.SSH.Address)
	return h
}

// Sessions are the options of an sshd whose sessions find a daemon, and that Compose;
// dir is for what they have of their own.
func Sessions(t testing.TB, d *dockertest.Daemon, f Flavour, dir string) sshdtest.Options {
	t.Helper()
	lib, none := filepath.Join(dir, "lib"), filepath.Join(dir, "none")
	plugins := filepath.Join(lib, "docker", "cli-plugins")
	for _, p := range []string{none, plugins} {
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mounts := map[string]string{"/usr/local/lib": lib}
	// A plugin that this machine happens to have is not the host's.
	for _, p := range []string{"/usr/lib/docker/cli-plugins", "/usr/libexec/docker/cli-plugins"} {
		if _, err := os.Stat(p); err == nil {
			mounts[p] = none
		}
	}
	if f == V2 {
		if err := os.Symlink(ComposeV2(t), filepath.Join(plugins, "docker-compose")); err != nil {
			t.Fatal(err)
		}
	}
	return sshdtest.Options{Mounts: mounts, Config: []string{"SetEnv DOCKER_HOST=" + d.Host + " DOCKER_PIDFILE=" + d.PIDFile}}
}

// debianDocker prefers the client that belongs to the daemon.
func debianDocker() string {
	if _, err := os.Stat("/usr/bin/docker"); err == nil {
		return "/usr/bin/docker"
	}
	return "/usr/local/bin/docker"
}

// ComposeV2 is the path of Compose v2; a run without it fails.
func ComposeV2(t testing.TB) string {
	t.Helper()
	p := filepath.Join(repo(t), composeV2)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("Compose v2 is not built; run 'make compose-v2': %v", err)
	}
	return p
}

// repo is the root of the source tree.
func repo(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("not below a go.mod")
	return ""
}

func (h *Host) write(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// Boot gives the host its nth boot id.
func (h *Host) Boot(n int) { h.write(h.boot, fmt.Sprintf("00000000-0000-0000-0000-%012d\n", n)) }

// Shim puts a program of the given text before the real one of that name, for
// whatever runs on the host; restore takes it away.
func (h *Host) Shim(name, script string) (restore func()) {
	h.t.Helper()
	path := filepath.Join(h.bin, name)
	before, _ := os.Readlink(path) // none for a name without a link
	os.Remove(path)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		h.t.Fatal(err)
	}
	return func() {
		os.Remove(path)
		if before != "" {
			os.Symlink(before, path) //nolint:errcheck // the next look tells
		}
	}
}

// HidePlugin takes Compose v2 away, if the host has it; restore puts it back.
func (h *Host) HidePlugin() (restore func()) {
	h.t.Helper()
	at := filepath.Join(h.dir, "lib", "docker", "cli-plugins", "docker-compose")
	if h.Flavour != V2 {
		return func() {}
	}
	if err := os.Rename(at, at+".hidden"); err != nil {
		h.t.Fatal(err)
	}
	return func() {
		if err := os.Rename(at+".hidden", at); err != nil && !os.IsNotExist(err) {
			h.t.Fatal(err)
		}
	}
}

// Target reaches the host through its link.
func (h *Host) Target() sshx.Target {
	return sshx.Target{Address: h.Link.Address, User: h.SSH.User, HostKey: h.SSH.HostKey, Keys: [][]byte{h.SSH.Key}}
}

// Dir is the directory of a project on the host.
func (h *Host) Dir(p model.Project) string { return filepath.Join(h.Root, "playgrounds", p.String()) }

// Processes counts what runs on the host below our root with this word among
// its arguments.
func (h *Host) Processes(word string) int { return len(h.processes(word)) }

// KillProcesses kills them, as the host does that runs out of memory.
func (h *Host) KillProcesses(word string) int {
	pids := h.processes(word)
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
	}
	return len(pids)
}

func (h *Host) processes(word string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, p := range lines {
		raw, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		args := strings.Split(string(raw), "\x00")
		var pid int
		if _, err := fmt.Sscan(filepath.Base(filepath.Dir(p)), &pid); err == nil && pid != os.Getpid() &&
			strings.Contains(string(raw), h.Root) && slices.Contains(args, word) {
			pids = append(pids, pid)
		}
	}
	return pids
}
