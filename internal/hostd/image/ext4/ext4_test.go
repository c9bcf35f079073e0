package ext4

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/hostd/image/tree"
	"github.com/fusevm/fuse/internal/testkit"
)

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command("/sbin/"+name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func layered(t *testing.T, fill func(*tar.Writer)) *tree.Tree {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	fill(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tr := tree.New(t.TempDir(), tree.DefaultLimits)
	if err := tr.Apply(t.Context(), &b, nil); err != nil {
		t.Fatal(err)
	}
	return tr
}

func put(t *testing.T, w *tar.Writer, h tar.Header, content string) {
	t.Helper()
	h.Size = int64(len(content))
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(1_600_000_000, 0)
	}
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
}

func makeImage(t *testing.T, tr *tree.Tree) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fs.ext4")
	err := Make(t.Context(), Config{Tree: tr, Dir: dir, Path: path, Name: "x", Run: func(ctx context.Context, args ...string) error {
		cmd := exec.CommandContext(ctx, "/sbin/mke2fs", args...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("E2FSPROGS_FAKE_TIME=%d", Epoch.Unix()))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	tool(t, "e2fsck", "-fn", path)
	return path
}

func mixed(t *testing.T) *tree.Tree {
	return layered(t, func(w *tar.Writer) {
		put(t, w, tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeDir, Name: "closed", Mode: 0o500, Uid: 1000, Gid: 100_000}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "closed/su", Mode: 0o4711, Uid: 70_000}, "setuid")
		put(t, w, tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "closed/su"}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeSymlink, Name: "short", Linkname: "closed/su"}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeSymlink, Name: "long", Linkname: strings.Repeat("abcdefgh/", 30)}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o600}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeBlock, Name: "dev/big", Mode: 0o660, Devmajor: 259, Devminor: 70_000}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "odd \"name\"\n\xff", Mode: 0o644}, "odd")
		put(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "early", Mode: 0o644, ModTime: time.Unix(-1000, 0)}, "")
		put(t, w, tar.Header{Typeflag: tar.TypeReg, Name: "late", Mode: 0o644, ModTime: time.Unix(1<<33, 0)}, "")
		put(t, w, tar.Header{
			Typeflag: tar.TypeReg, Name: "capable", Mode: 0o755, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.user.note": "hello", "SCHILY.xattr.user.b": strings.Repeat("v", 150)},
		}, "x")
	})
}

func TestEverythingIsKept(t *testing.T) {
	path := makeImage(t, mixed(t))
	for file, want := range map[string][]string{
		"/closed":    {"Type: directory", "Mode:  0500", "User:  1000   Group: 100000"},
		"/closed/su": {"Type: regular", "Mode:  04711", "User: 70000", "Links: 2"},
		"/short":     {"Type: symlink", `Fast link dest: "closed/su"`},
		"/pipe":      {"Type: FIFO", "Mode:  0600"},
		"/dev/null":  {"Type: character special", "Mode:  0666", "01:03"},
		"/dev/big":   {"Type: block special", "Mode:  0660", "259:70000"},
		"/early":     {"mtime: 0xfffffc18"},
		"/late":      {"mtime: 0x00000000:00000002"},
		"/capable":   {`user.note (5) = "hello"`, "user.b (150)"},
	} {
		got := tool(t, "debugfs", "-R", "stat "+file, path)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", file, w, got)
			}
		}
	}
	if got := tool(t, "debugfs", "-R", "cat /hard", path); !strings.Contains(got, "setuid") {
		t.Errorf("hard link holds %q", got)
	}
}

func TestEqualTreesMakeEqualBytes(t *testing.T) {
	var sums [2][32]byte
	for i := range sums {
		b, err := os.ReadFile(makeImage(t, mixed(t)))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(b)
	}
	if sums[0] != sums[1] {
		t.Error("the bytes differ")
	}
}

// spent is the processor time of this process and of those that it waited for.
func spent(t *testing.T) (all time.Duration) {
	t.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			t.Fatal(err)
		}
		all += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return all
}

// Many small files, as of a tree of modules, fit and take seconds.
func TestManySmallFiles(t *testing.T) {
	n := testkit.Count(3_000, 20_000)
	tr := layered(t, func(w *tar.Writer) {
		for i := range n {
			put(t, w, tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("many/%d/file-%d", i/500, i), Mode: 0o644, Uid: i}, "small")
		}
	})
	before := spent(t)
	path := makeImage(t, tr)
	if took := spent(t) - before; took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	got := tool(t, "debugfs", "-R", fmt.Sprintf("stat /many/%d/file-%d", (n-1)/500, n-1), path)
	if !strings.Contains(got, fmt.Sprintf("User: %5d", n-1)) {
		t.Error(got)
	}
}
