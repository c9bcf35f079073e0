package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// agent builds a static program that stands for the guest agent; text makes
// one differ from the next.
func agent(t *testing.T, path, text string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(src, []byte("package main\nfunc main() { println(`"+text+"`) }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", path, src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// shared keeps downloads and the first agent between the tests of one run.
var shared = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "fuse-image-test-")
	if err != nil {
		panic(err)
	}
	return dir
})

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(shared())
	os.Exit(code)
}

var firstAgent sync.Once

// open returns an empty store that shares its downloads with the other tests.
func open(t *testing.T) *Store {
	t.Helper()
	firstAgent.Do(func() { agent(t, filepath.Join(shared(), "fused"), "one") })
	dir := t.TempDir()
	for _, d := range []string{filepath.Join(dir, "cache"), filepath.Join(shared(), "debs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(shared(), "debs"), filepath.Join(dir, "cache/debs")); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: dir, Fused: filepath.Join(shared(), "fused")})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// withKernel returns a store that has the kernel of the other tests already.
func withKernel(t *testing.T) *Store {
	t.Helper()
	s := open(t)
	from := filepath.Join(shared(), "kernels")
	if _, err := os.Stat(from); err != nil {
		if _, err := s.Kernel(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		shareKernel(t, s)
	} else if err := os.Remove(s.kernelsDir()); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(from, s.kernelsDir()); err != nil {
		t.Fatal(err)
	}
	return s
}

// shareKernel hands the store's kernel to the tests that follow.
func shareKernel(t *testing.T, s *Store) {
	t.Helper()
	to := filepath.Join(shared(), "kernels")
	if _, err := os.Stat(to); err == nil {
		return
	}
	if err := os.Rename(s.kernelsDir(), to); err != nil {
		t.Fatal(err)
	}
}

func build(t *testing.T, s *Store) (Meta, []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var steps []string
	m, err := s.Build(ctx, "minimal", func(msg string) { steps = append(steps, msg) })
	if err != nil {
		t.Fatal(err)
	}
	return m, steps
}

func TestBuildMinimal(t *testing.T) {
	s := open(t)
	first, steps := build(t, s)
	if len(steps) == 0 {
		t.Error("the first build reported no progress")
	}
	again, steps := build(t, s)
	if len(steps) != 0 {
		t.Errorf("the second build did work: %q", steps)
	}
	if d := cmp.Diff(first, again); d != "" {
		t.Error(d)
	}
	img, err := s.Get("minimal")
	if err != nil {
		t.Fatal(err)
	}
	if sum, err := fileDigest(img.Path); err != nil || "sha256:"+sum != img.Digest {
		t.Errorf("content is %s, meta says %s (%v)", sum, img.Digest, err)
	}
	if path, err := s.At("minimal", img.Digest); err != nil || path != img.Path {
		t.Errorf("At = %q, %v, want %q", path, err, img.Path)
	}
	fsck(t, img.Path)
	for path, want := range map[string]string{
		"/bin/sh":         "Type: symlink    Mode:  0777",
		"/usr/bin/env":    "Type: symlink",
		"/sbin/init":      "Type: symlink",
		"/tmp":            "Mode:  01777",
		"/root":           "Mode:  0700",
		"/workspace":      "Type: directory    Mode:  0755",
		"/etc/shadow":     "Mode:  0640",
		"/bin/busybox":    "User:     0   Group:     0",
		"/etc/os-release": "Type: regular",
	} {
		if got := debugfs(t, img.Path, "stat "+path); !strings.Contains(got, want) {
			t.Errorf("%s: want %q in\n%s", path, want, got)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].Name != "minimal" {
		t.Errorf("List = %v, %v", list, err)
	}
	shareKernel(t, s)
}

func fsck(t *testing.T, path string) {
	t.Helper()
	tool, err := toolPath("e2fsck")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(tool, "-fn", path).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
}

func debugfs(t *testing.T, path, cmd string) string {
	t.Helper()
	tool, err := toolPath("debugfs")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "-R", cmd, path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestEqualInputsMakeEqualImages(t *testing.T) {
	a, _ := build(t, withKernel(t))
	b, _ := build(t, withKernel(t))
	if a.Digest != b.Digest {
		t.Errorf("two builds of the same packages: %s and %s", a.Digest, b.Digest)
	}
}

func TestEightBuildersBuildOnce(t *testing.T) {
	s := withKernel(t)
	var mu sync.Mutex
	var made int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := s.Build(t.Context(), "minimal", func(msg string) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasPrefix(msg, "making the root") {
					made++
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 1 {
		t.Errorf("the root was made %d times", made)
	}
}

func TestACrashedBuildIsClearedAndNeverSeen(t *testing.T) {
	s := withKernel(t)
	for _, dir := range []string{"images/.tmp-1/root", "kernels/.tmp-2/out", "images/minimal"} {
		if err := os.MkdirAll(filepath.Join(s.cfg.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	half := filepath.Join(s.cfg.Dir, "images/minimal", strings.Repeat("0", 64)+".ext4")
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("List shows a half-built image: %v, %v", list, err)
	}
	if _, err := s.Get("minimal"); err == nil {
		t.Error("Get gave a half-built image")
	}
	build(t, s)
	for _, dir := range []string{"images/.tmp-1", "kernels/.tmp-2"} {
		if _, err := os.Stat(filepath.Join(s.cfg.Dir, dir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (%v)", dir, err)
		}
	}
}

func TestInitramfsFollowsTheAgent(t *testing.T) {
	s := withKernel(t)
	s.cfg.Fused = filepath.Join(s.cfg.Dir, "fused")
	agent(t, s.cfg.Fused, "one")
	k1, err := s.Kernel(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	agent(t, s.cfg.Fused, "two, longer than the first")
	k2, err := s.Kernel(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if k1.Path != k2.Path || k1.Initrd == k2.Initrd {
		t.Errorf("kernel %s then %s, initramfs %s then %s", k1.Path, k2.Path, k1.Initrd, k2.Initrd)
	}
	want, err := os.ReadFile(s.cfg.Fused)
	if err != nil {
		t.Fatal(err)
	}
	dir := unpackInitramfs(t, k2.Initrd)
	got, err := os.ReadFile(filepath.Join(dir, "init"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("/init has %d bytes, the agent %d (%v)", len(got), len(want), err)
	}
	checkModules(t, dir)
}

// unpackInitramfs unpacks both archives of a base initramfs.
func unpackInitramfs(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cut := bytes.Index(b, []byte("TRAILER!!!"))
	cut += bytes.Index(b[cut:], []byte("070701"))
	for _, part := range [][]byte{b[:cut], b[cut:]} {
		cmd := exec.Command("busybox", "cpio", "-i")
		cmd.Dir, cmd.Stdin = dir, bytes.NewReader(part)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return dir
}

// checkModules holds the lists to their promise: each module comes after all
// that it depends on, over both lists.
func checkModules(t *testing.T, dir string) {
	t.Helper()
	loaded := map[string]bool{}
	for _, list := range []string{"fuse-init/modules", "fuse-init/modules.late"} {
		b, err := os.ReadFile(filepath.Join(dir, list))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range strings.Fields(string(b)) {
			data, err := os.ReadFile(filepath.Join(dir, path))
			if err != nil {
				t.Fatal(err)
			}
			deps, err := moduleDeps(data)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range deps {
				if !loaded[d] {
					t.Errorf("%s comes before %s, which it needs", path, d)
				}
			}
			loaded[strings.TrimSuffix(filepath.Base(path), ".ko")] = true
		}
	}
	for _, name := range bootModules {
		if !loaded[name] {
			t.Errorf("module %s is missing", name)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := withKernel(t)
	_, err := s.Get("debian")
	var fe *fleet.Error
	if !errors.As(err, &fe) || fe.Code != fleet.CodeInvalidArgument || !strings.Contains(fe.Message, "it has: none") ||
		!strings.Contains(fe.Details[fleet.DetailRemedy], "fuse image build") {
		t.Errorf("unknown image: %#v", err)
	}
	for _, name := range []string{"", "../x", "Minimal", "a/b", strings.Repeat("a", 65)} {
		if _, err := s.Get(name); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := s.Build(t.Context(), "nope", nil); fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), "minimal") {
		t.Errorf("no recipe: %v", err)
	}
	s.cfg.Fused = filepath.Join(t.TempDir(), "fused")
	if _, err := s.Build(t.Context(), "minimal", nil); fleet.CodeOf(err) != fleet.CodeUnavailable || !strings.Contains(err.Error(), "guest agent is missing") {
		t.Errorf("no agent: %v", err)
	}
	s.cfg.Fused = "/usr/bin/env" // dynamically linked
	if _, err := s.Build(t.Context(), "minimal", nil); !strings.Contains(fmt.Sprint(err), "not statically linked") {
		t.Errorf("dynamic agent: %v", err)
	}
}

func TestAptErrorsKeepTheRemedy(t *testing.T) {
	s := open(t)
	_, err := s.fetchDeb(t.Context(), "no-such-package-of-ours", func(string) {})
	var fe *fleet.Error
	if !errors.As(err, &fe) || fe.Code != fleet.CodeUnavailable || !strings.Contains(fe.Details[fleet.DetailRemedy], "apt-get update") {
		t.Errorf("unknown package: %#v", err)
	}
	t.Setenv("PATH", "/nonexistent")
	_, err = s.fetchDeb(t.Context(), "busybox-static", func(string) {})
	if !errors.As(err, &fe) || !strings.Contains(fe.Message, "apt-get is not installed") {
		t.Errorf("no apt-get: %v", err)
	}
}

func TestCustomKernel(t *testing.T) {
	s := withKernel(t)
	debian, err := s.Kernel(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Kernel = debian.Path
	k, err := s.Kernel(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(k.Version, "custom-") || k.Digest != debian.Digest {
		t.Errorf("custom kernel is %+v", k)
	}
	s.cfg.Kernel = ""
	if k, err := s.Kernel(t.Context(), nil); err != nil || k.Version != debian.Version {
		t.Errorf("Debian's kernel was displaced: %v, %v", k.Version, err)
	}
	s.cfg.Kernel = "/etc/passwd"
	if _, err := s.Kernel(t.Context(), nil); fleet.CodeOf(err) != fleet.CodeUnavailable || !strings.Contains(err.Error(), "bzImage") {
		t.Errorf("a file that is no kernel: %v", err)
	}
	s.cfg.Kernel = "/nonexistent/vmlinuz"
	if _, err := s.Kernel(t.Context(), nil); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("a kernel that is not there: %v", err)
	}
}

func TestRemove(t *testing.T) {
	s := withKernel(t)
	build(t, s)
	img, err := s.Get("minimal")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img.Path, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("minimal"); fleet.CodeOf(err) != fleet.CodeUnavailable || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("an image cut short: %v", err)
	}
	if err := s.Remove(t.Context(), "minimal", false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("minimal"); err == nil {
		t.Error("still there")
	}
	if err := s.Remove(t.Context(), "minimal", false); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("second Remove: %v", err)
	}
}

func TestParseURI(t *testing.T) {
	sum := fmt.Sprintf("%x", sha256.Sum256(nil))
	for _, c := range []struct {
		in   string
		want deb
		bad  bool
	}{
		{"'http://h/p/x_1%3a2_amd64.deb' x_1%3a2_amd64.deb 123 SHA256:" + sum + "\n", deb{"x_1%3a2_amd64.deb", sum}, false},
		{"Get:1 noise\n'http://h/x.deb' x.deb 1 SHA256:" + sum, deb{"x.deb", sum}, false},
		{"'http://h/x.deb' x.deb 1 MD5Sum:abc", deb{}, true},
		{"'http://h/x.deb' ../x.deb 1 SHA256:" + sum, deb{}, true},
		{"", deb{}, true},
	} {
		got, err := parseURI(c.in)
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%q: %v, %v", c.in, got, err)
		}
	}
}
