package images

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/guests"
)

// machine collects files of this machine into a layer: programs with the
// libraries they need, and whole trees.
type machine struct {
	t    *testing.T
	have map[string]bool
	out  []ocitest.File
	libs map[string]bool
}

func collect(t *testing.T) *machine {
	return &machine{t: t, have: map[string]bool{}, libs: map[string]bool{}}
}

func (m *machine) add(f ocitest.File) {
	if key := strings.Trim(f.Name, "/"); !m.have[key] {
		m.have[key] = true
		f.Name = key
		m.out = append(m.out, f)
	}
}

// tree adds all below a directory but what skip matches; dst is its name in
// the image.
func (m *machine) tree(src, dst string, skip *regexp.Regexp) {
	m.t.Helper()
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(src, path)
		if skip != nil && skip.MatchString(rel) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		return m.file(path, filepath.Join(dst, rel))
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) file(src, dst string) error {
	st, err := os.Lstat(src)
	if err != nil {
		return err
	}
	h := tar.Header{Name: dst, Mode: int64(st.Mode().Perm()), ModTime: st.ModTime()}
	switch {
	case st.IsDir():
		h.Typeflag = tar.TypeDir
		m.add(ocitest.File{Header: h})
		return nil
	case st.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(src); err != nil {
			return err
		}
		m.add(ocitest.File{Header: h})
		return nil
	case !st.Mode().IsRegular():
		return nil
	}
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	m.add(ocitest.File{Header: h, Content: data})
	if bytes.HasPrefix(data, []byte("\x7fELF")) {
		m.needs(src, data)
	}
	return nil
}

// needs adds the libraries of a dynamic program or library.
func (m *machine) needs(path string, data []byte) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return
	}
	libs, err := f.ImportedLibraries()
	if err != nil || len(libs) == 0 || m.libs[strings.Join(libs, " ")] {
		return
	}
	m.libs[strings.Join(libs, " ")] = true
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		m.t.Fatalf("ldd %s: %v", path, err)
	}
	for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
		target, err := filepath.EvalSymlinks(lib)
		if err == nil {
			err = m.copy(target, lib)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *machine) copy(src, dst string) error {
	data, err := os.ReadFile(src)
	if err == nil {
		m.add(ocitest.Program(dst, data))
	}
	return err
}

func (m *machine) programs(paths ...string) {
	m.t.Helper()
	for _, path := range paths {
		target, err := filepath.EvalSymlinks(path)
		if err == nil {
			err = m.file(target, path)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *machine) base() {
	m.t.Helper()
	m.programs("/usr/bin/git", "/usr/bin/dash")
	for name, to := range map[string]string{"bin": "usr/bin", "usr/bin/sh": "dash", "usr/bin/git-upload-pack": "git"} {
		m.add(link(name, to))
	}
	m.add(ocitest.Text("etc/passwd", "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"))
	m.add(ocitest.File{Header: tar.Header{Typeflag: tar.TypeDir, Name: "home/agent", Mode: 0o755, Uid: 1000, Gid: 1000}})
}

// own gives the agent's home and its repository to it.
func (m *machine) own() {
	for i := range m.out {
		if n := m.out[i].Name; strings.HasPrefix(n, "home/agent") || strings.HasPrefix(n, "srv/") {
			m.out[i].Uid, m.out[i].Gid = 1000, 1000
		}
	}
}

// repository makes a bare git repository of files, at dst in the image.
func (m *machine) repository(dst string, files map[string]string) {
	m.t.Helper()
	dir := m.t.TempDir()
	work, bare := filepath.Join(dir, "work"), filepath.Join(dir, "bare.git")
	for path, text := range files {
		path = filepath.Join(work, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			m.t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", work}, {"-C", work, "add", "-A"},
		{"-C", work, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "first"},
		{"clone", "-q", "--bare", work, bare},
	} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			m.t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	m.tree(bare, dst, regexp.MustCompile(`^hooks`))
}

// asLayout keeps an image as an OCI layout, made when it is not there, and
// pushes it from there. The layouts stay between runs.
func asLayout(t *testing.T, r *ocitest.Registry, what string, build func() v1.Image) string {
	t.Helper()
	dir := filepath.Join(imagetest.Dir(), "layouts", what)
	if _, err := layout.FromPath(dir); err != nil {
		tmp, err := os.MkdirTemp(imagetest.Dir(), "layout-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(tmp)
		p, err := layout.Write(tmp, empty.Index)
		if err == nil {
			err = p.AppendImage(build())
		}
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.RemoveAll(dir), os.Rename(tmp, dir))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	idx, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(r.Host + "/" + what + ":1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, idx); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// step is a command of an agent and something that it prints.
type step struct{ command, want string }

// work carries out steps in a machine of an image in a world of its own, then
// starts serve there and gets the page of its port 8000 from outside the host.
func work(t *testing.T, ref, serve, page string, ramMB int, steps []step) {
	t.Helper()
	w := guests.NewWorld(t)
	h := guests.In(t, w, nil)
	began := time.Now()
	m := h.Boot(h.Pull(ref), func(vm *driver.VM) { vm.RamMB = ramMB })
	t.Logf("pulled and booted in %v", time.Since(began).Round(time.Millisecond))
	for _, s := range steps {
		began := time.Now()
		if got := m.Run("sh", "-c", s.command); !strings.Contains(got, s.want) {
			t.Errorf("%s: %s", s.command, got)
		}
		t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), s.command)
	}
	began = time.Now()
	m.Background("sh", "-c", serve)
	url := fmt.Sprintf("http://%s:%d/greet.txt", guests.HostAddr, m.Publish(8000)[0])
	testkit.Eventually(t, guests.Within, "the page is served beyond the host", func() bool {
		got, err := w.Beyond.Get(url)
		return err == nil && strings.Contains(got, page)
	})
	t.Logf("%v: served; the machine has had %.1f s of a processor", time.Since(began).Round(time.Millisecond), m.Spent())
}

// What an agent does in a Python image: clone, make a virtual environment, run
// tests, serve.
func TestPythonImage(t *testing.T) {
	t.Parallel()
	ref := asLayout(t, ocitest.New(t), "show-python-4", func() v1.Image {
		m := collect(t)
		m.base()
		target, err := filepath.EvalSymlinks("/usr/bin/python3")
		if err != nil {
			t.Fatal(err)
		}
		version := filepath.Base(target)
		m.programs(target)
		m.add(link("usr/bin/python3", version))
		m.tree("/usr/lib/"+version, "usr/lib/"+version, regexp.MustCompile(`^(test|idlelib|tkinter|lib2to3|turtledemo|config-.*|.*/tests?|.*\.opt-[12]\.pyc)$`))
		m.repository("srv/repo.git", map[string]string{
			"greet.py":      "def greet(name):\n    return 'hello ' + name\n",
			"greet.txt":     "hello from python\n",
			"test_greet.py": "import unittest, greet\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(greet.greet('x'), 'hello x')\n",
		})
		m.own()
		return ocitest.Image(t, arch(), v1.Config{User: "agent", WorkingDir: "/home/agent", Env: []string{"HOME=/home/agent"}},
			ocitest.Layer(t, m.out...))
	})
	work(t, ref, "cd work && exec ../env/bin/python -m http.server 8000", "hello from python", 256, []step{
		{"git clone -q /srv/repo.git work && echo cloned", "cloned"},
		{"python3 -m venv --without-pip env && env/bin/python -c 'import sys; print(sys.prefix)'", "/home/agent/env"},
		{"cd work && ../env/bin/python -m unittest -v 2>&1", "OK"},
	})
}

// goProgram serves HTTP by itself: the compiler of the standard library's own is
// what a machine without KVM has no time for.
const goProgram = `package main

import (
	"bufio"
	"net"
)

func greet(name string) string { return "hello " + name }

func main() {
	l, err := net.Listen("tcp", ":8000")
	if err != nil {
		panic(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		for s := bufio.NewScanner(c); s.Scan() && s.Text() != ""; {
		}
		c.Write([]byte("HTTP/1.0 200 OK\r\n\r\n" + greet("from go")))
		c.Close()
	}
}
`

// goHTTP is the same by the standard library.
const goHTTP = `package main

import (
	"fmt"
	"net/http"
)

func greet(name string) string { return "hello " + name }

func main() {
	panic(http.ListenAndServe(":8000", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, greet("from go")) })))
}
`

// What an agent does in a Go image: clone, test, build, serve. The standard
// library comes compiled, as it would in a cache that is kept. The soak's program
// serves by net/http, which takes a linker without KVM a minute. go test wants its
// vet to be there though it is turned off.
func TestGoImage(t *testing.T) {
	t.Parallel()
	program := []string{goProgram, goHTTP}[testkit.Count(0, 1)]
	ref := asLayout(t, ocitest.New(t), fmt.Sprintf("show-go-4-%d-%s", len(program), runtime.Version()), func() v1.Image {
		m := collect(t)
		m.base()
		files := map[string]string{
			"go.mod": "module example.com/greet\n\ngo 1.24\n", "main.go": program,
			"main_test.go": "package main\n\nimport \"testing\"\n\nfunc TestGreet(t *testing.T) {\n\tif greet(\"x\") != \"hello x\" {\n\t\tt.Fatal()\n\t}\n}\n",
		}
		root := strings.TrimSpace(string(output(t, exec.Command("go", "env", "GOROOT"))))
		m.tree(root, "usr/local/go", regexp.MustCompile(`^(test|doc|api|misc|lib/wasm|src/cmd|.*/testdata|pkg/tool/[^/]*/(cgo|cover|fix|preprofile)|.*_test\.go|bin/gofmt)$`))
		m.repository("srv/repo.git", files)
		m.tree(warm(t, files), "home/agent/cache", nil)
		m.own()
		return ocitest.Image(t, arch(), v1.Config{User: "agent", WorkingDir: "/home/agent", Env: []string{
			"HOME=/home/agent", "PATH=/usr/local/go/bin:/usr/bin", "GOCACHE=/home/agent/cache", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=-vet=off",
		}}, ocitest.Layer(t, m.out...))
	})
	work(t, ref, "exec ./greet", "hello from go", 1024, []step{
		{"git clone -q /srv/repo.git work && echo cloned", "cloned"},
		{"cd work && go test ./... 2>&1", "ok"},
		{"cd work && go build -o /home/agent/greet . && echo built", "built"},
	})
}

// warm compiles what the program needs of the standard library, as the guest
// would, and returns the cache.
func warm(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, cache := t.TempDir(), t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"build", "-o", "/dev/null", "."}, {"test", "-count=1", "./..."}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOCACHE="+cache, "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=-vet=off", "GOWORK=off")
		output(t, cmd)
	}
	return cache
}

func output(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
	return out
}
