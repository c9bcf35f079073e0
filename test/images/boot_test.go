// Package images boots real machines from container images that a registry in
// the process serves.
package images

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/guests"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// run runs a command in the guest as the image says and returns its output.
func run(t *testing.T, m *guests.Machine, spec fleet.ExecSpec) string {
	t.Helper()
	out, err := m.Exec(spec, nil)
	if err != nil {
		t.Error(err)
	}
	return out
}

// probe is a static program that tells of the process that it is.
const probe = `package main

import (
	"fmt"
	"os"
)

func main() {
	wd, _ := os.Getwd()
	fmt.Printf("uid=%d gid=%d wd=%s GREETING=%s PATH=%s\n", os.Getuid(), os.Getgid(), wd, os.Getenv("GREETING"), os.Getenv("PATH"))
	for _, name := range os.Args[1:] {
		data, err := os.ReadFile(name)
		fmt.Printf("%s %v %q\n", name, err, data)
	}
}
`

func staticProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	src, out := filepath.Join(dir, "main.go"), filepath.Join(dir, "probe")
	if err := os.WriteFile(src, []byte(probe), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return read(t, out)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dynamic are a program of this machine and the libraries it needs.
func dynamic(t *testing.T, program string) []ocitest.File {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := []ocitest.File{ocitest.Program(strings.TrimPrefix(program, "/"), read(t, program))}
	for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
		files = append(files, ocitest.Program(strings.TrimPrefix(lib, "/"), read(t, lib)))
	}
	return files
}

func directory(name string, mode int64) ocitest.File {
	return ocitest.File{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}}
}

func link(name, target string) ocitest.File {
	return ocitest.File{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}}
}

func arch() string { return fleet.NormalizeArch(runtime.GOARCH) }

// A root that holds one static program and nothing else boots, and the program
// runs as the image says: user, directory, environment.
func TestRootOfOneProgram(t *testing.T) {
	h, r := guests.New(t, qemu.Config{}), ocitest.New(t)
	ref := r.Push(t, "scratch/app:1", ocitest.Image(t, arch(), v1.Config{
		User: "1234:5678", WorkingDir: "/data/deep", Env: []string{"GREETING=hello", "PATH=/opt"},
	}, ocitest.Layer(t, ocitest.Program("app", staticProgram(t)))))
	m := h.Boot(h.Pull(ref), nil)
	got := run(t, m, fleet.ExecSpec{Argv: []string{"/app", "/etc/resolv.conf", "/etc/hostname"}})
	if !strings.HasPrefix(got, "uid=1234 gid=5678 wd=/data/deep GREETING=hello PATH=/opt\n") || !strings.Contains(got, "nameserver") || !strings.Contains(got, "fuse-guest") {
		t.Error(got)
	}
	if got := run(t, m, fleet.ExecSpec{Argv: []string{"/app"}, User: "0", Cwd: "/", Env: map[string]string{"GREETING": "other"}}); !strings.HasPrefix(got, "uid=0 gid=0 wd=/ GREETING=other") {
		t.Error(got)
	}
	// The machine's image is in use, so it is not removed.
	if err := h.Store.Remove(t.Context(), ref, false); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("remove an image in use: %v", err)
	}
	if e, err := h.Store.Inspect(ref); err != nil || e.InUse != 1 {
		t.Errorf("in use %d, %v", e.InUse, err)
	}
	if err := h.Driver.Remove(t.Context(), m.VM); err != nil {
		t.Fatal(err)
	}
	if err := h.Store.Remove(t.Context(), ref, false); err != nil {
		t.Errorf("remove it afterwards: %v", err)
	}
}

// Directories that nobody may write, a resolv.conf that is a link to nowhere, a
// link in the place of a mount point, and the libraries of another system.
func TestOddRoot(t *testing.T) {
	h, r := guests.New(t, qemu.Config{}), ocitest.New(t)
	files := append(dynamic(t, "/usr/bin/id"),
		directory("etc", 0o555), link("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
		ocitest.Text("etc/passwd", "root:x:0:0::/:/none\napp:x:1001:1002::/srv:/none\n"), ocitest.Text("etc/group", "root:x:0:\napp:x:1002:\n"),
		link("run", "/var/run"), directory("srv", 0o500), directory("./", 0o555),
	)
	ref := r.Push(t, "odd/app:1", ocitest.Image(t, arch(), v1.Config{User: "app"},
		ocitest.Layer(t, files...), ocitest.Layer(t, ocitest.Program("probe", staticProgram(t)))))
	m := h.Boot(h.Pull(ref), nil)
	if got := run(t, m, fleet.ExecSpec{Argv: []string{"id"}}); !strings.HasPrefix(got, "uid=1001(app) gid=1002(app)") {
		t.Error(got)
	}
	if got := run(t, m, fleet.ExecSpec{Argv: []string{"/probe", "/etc/resolv.conf"}}); !strings.Contains(got, "nameserver") {
		t.Error(got)
	}
}

// A disk smaller than the image is refused before anything is made.
func TestImageLargerThanTheDisk(t *testing.T) {
	h, r := guests.New(t, qemu.Config{}), ocitest.New(t)
	ref := r.Push(t, "big/app:1", ocitest.Image(t, arch(), v1.Config{}, ocitest.Zeros(t, "big", 1100<<20)))
	if _, err := h.Store.Pull(t.Context(), ref, image.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	vm := driver.VM{ID: "fuse-big", UID: ulid.Make().String(), Slot: 1, Dir: t.TempDir(), CPUs: 1, RamMB: 256, StorageGB: 1, Image: ref}
	_, err := h.Driver.Start(t.Context(), vm, driver.Identity{}, nil)
	if fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("got %v", err)
	}
}
