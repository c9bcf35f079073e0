package rooted

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func machine(t testing.TB, dir string) *Root {
	t.Helper()
	r, err := Machine(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func TestNothingLeadsOut(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, top+"/secret", "out")
	write(t, top+"/in/file", "in")
	for name, target := range map[string]string{"up": "../secret", "abs": top + "/secret", "dir": "..", "self": "file", "proc": "/proc/self/root"} {
		if err := os.Symlink(target, top+"/in/"+name); err != nil {
			t.Fatal(err)
		}
	}
	r, err := machine(t, top).Beneath("/in")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, p := range []string{"/up", "/abs", "/dir/secret", "/../secret", "/a/../../secret", "/proc/etc/passwd", "relative", "/x\x00y"} {
		if f, err := r.OpenRead(p); err == nil {
			text, _ := io.ReadAll(f)
			t.Errorf("%q reads %q", p, text)
		}
		if dir, _, err := r.Parent(p + "/x"); err == nil {
			t.Errorf("%q is a directory of the tree", p)
			_ = dir.Close()
		}
	}
	for _, p := range []string{"/file", "/self", "//file", "/./file"} {
		f, err := r.OpenRead(p)
		if err != nil {
			t.Errorf("%q: %v", p, err)
			continue
		}
		_ = f.Close()
	}
	if _, _, err := r.Parent("/"); !errors.Is(err, ErrPath) {
		t.Errorf("the root has no parent: %v", err)
	}
	if err := r.MkdirAll("/dir/made", 0o755); err == nil {
		t.Error("a directory was made outside")
	}
	if err := r.MkdirAll("/a/b/c", 0o700); err != nil {
		t.Error(err)
	}
}

// TestAbsoluteLinksStayInTheMachine follows a link as a program there would.
func TestAbsoluteLinksStayInTheMachine(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, top+"/etc/real", "inside")
	if err := os.Symlink("/etc/real", top+"/etc/link"); err != nil {
		t.Fatal(err)
	}
	f, err := machine(t, top).OpenRead("/etc/link")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "inside" {
		t.Errorf("read %q, %v", text, err)
	}
}

// TestRaceWithLinks swaps a directory for a link that leads out while files
// below it are written: none ever lands outside.
func TestRaceWithLinks(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	for _, d := range []string{"/in/dir", "/out"} {
		if err := os.MkdirAll(top+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../out", top+"/in/link"); err != nil {
		t.Fatal(err)
	}
	r, err := machine(t, top).Beneath("/in")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stop, swapped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swapped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(top+"/in/dir", top+"/in/aside")
			_ = os.Rename(top+"/in/link", top+"/in/dir")
			_ = os.Rename(top+"/in/dir", top+"/in/link")
			_ = os.Rename(top+"/in/aside", top+"/in/dir")
		}
	}()
	wrote := 0
	// The link may stand there for long where the other goroutine is held up.
	for i, n := 0, testkit.Count(3000, 100_000); i < n || wrote == 0 && i < 100*n; i++ {
		dir, name, err := r.Parent("/dir/file-" + strconv.Itoa(i))
		if err != nil {
			continue
		}
		if f, err := dir.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			wrote++
			_ = f.Close()
		}
		_ = dir.Close()
	}
	close(stop)
	<-swapped
	left, err := os.ReadDir(top + "/out")
	if err != nil || len(left) > 0 {
		t.Errorf("%d files landed outside, %v", len(left), err)
	}
	if wrote == 0 {
		t.Error("nothing was written at all")
	}
}

func TestTarKeepsWhatFilesAre(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	write(t, from+"/tree/a/file", strings.Repeat("x", 200_000))
	write(t, from+"/tree/empty", "")
	for _, err := range []error{
		os.Chmod(from+"/tree/a/file", 0o4751), os.Lchown(from+"/tree/a/file", 1234, 2345), os.Chmod(from+"/tree/a/file", 0o751|fs.ModeSetuid),
		os.Symlink("/nowhere/at/all", from+"/tree/link"), os.Link(from+"/tree/a/file", from+"/tree/b"), os.Mkdir(from+"/tree/shut", 0o500),
		syscall.Mkfifo(from+"/tree/pipe", 0o600), os.Chtimes(from+"/tree/a/file", time.Time{}, time.Unix(1_000_000_000, 123_000_000)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	src, err := machine(t, from).Dir("/")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := machine(t, to).Dir("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	var archive bytes.Buffer
	packed, err := Pack(t.Context(), src, "tree", &archive)
	if err != nil || packed.Skipped != 1 || packed.Entries != 7 {
		t.Fatalf("packed %+v, %v", packed, err)
	}
	for range 2 { // over what is there as well
		if got, err := Unpack(t.Context(), dst, bytes.NewReader(archive.Bytes()), UnpackOptions{Owners: true, Setuid: true}); err != nil || got.Entries != 7 || got.Bytes != 200_000 {
			t.Fatalf("unpacked %+v, %v", got, err)
		}
	}
	info, err := os.Lstat(to + "/a/file")
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode() != 0o751|fs.ModeSetuid || st.Uid != 1234 || st.Gid != 2345 || !info.ModTime().Equal(time.Unix(1_000_000_000, 123_000_000)) || st.Nlink != 2 {
		t.Errorf("the file is %v, owner %d:%d, of %v, %d names", info.Mode(), st.Uid, st.Gid, info.ModTime(), st.Nlink)
	}
	if _, err := Unpack(t.Context(), dst, bytes.NewReader(archive.Bytes()), UnpackOptions{Owners: true}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(to + "/a/file"); err != nil || info.Mode() != 0o751 {
		t.Errorf("unasked, the file is %v, %v", info, err)
	}
	if target, err := os.Readlink(to + "/link"); target != "/nowhere/at/all" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if info, err := os.Stat(to + "/shut"); err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("the directory is %v, %v", info, err)
	}
}

// archiveOf is a tar stream of entries without content.
func archiveOf(t *testing.T, entries []tar.Header, mode int64) *bytes.Buffer {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range entries {
		h.Mode = mode
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &archive
}

func TestHostileArchives(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string][]tar.Header{
		"climbs":        {{Name: "../evil", Typeflag: tar.TypeReg}},
		"climbs inside": {{Name: "a/../../evil", Typeflag: tar.TypeReg}},
		"absolute":      {{Name: "/evil", Typeflag: tar.TypeReg}},
		"device":        {{Name: "evil", Typeflag: tar.TypeChar}},
		"pipe":          {{Name: "evil", Typeflag: tar.TypeFifo}},
		"hard link":     {{Name: "evil", Typeflag: tar.TypeLink, Linkname: "../secret"}},
		"hard link abs": {{Name: "evil", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"hard link to link": {
			{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../secret"}, {Name: "evil", Typeflag: tar.TypeLink, Linkname: "l"},
		},
		"through a link":   {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/evil", Typeflag: tar.TypeReg}},
		"through absolute": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "l/evil", Typeflag: tar.TypeReg}},
		"itself":           {{Name: ".", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}},
		"no name":          {{Name: "", Typeflag: tar.TypeReg}},
		"kept":             {{Name: "./kept/x", Typeflag: tar.TypeReg}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			write(t, top+"/secret", "s")
			if err := os.Mkdir(top+"/in", 0o755); err != nil {
				t.Fatal(err)
			}
			dir, err := machine(t, top).Dir("/in")
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			archive := archiveOf(t, entries, 0o644)
			if _, err := Unpack(t.Context(), dir, archive, UnpackOptions{Owners: true, Keep: []string{"kept"}}); err == nil {
				t.Error("it was unpacked")
			}
			if names, err := filepath.Glob(top + "/*"); err != nil || len(names) != 2 {
				t.Errorf("outside there is now %q, %v", names, err)
			}
		})
	}
}

// TestKeptIsKept reaches for what is kept by links and by directories that are
// yet to be made.
func TestKeptIsKept(t *testing.T) {
	t.Parallel()
	link := tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "etc"}
	for name, entries := range map[string][]tar.Header{
		"file":              {{Name: "etc/own/x", Typeflag: tar.TypeReg}},
		"through a link":    {link, {Name: "l/own/x", Typeflag: tar.TypeReg}},
		"beyond":            {link, {Name: "l/own/a/b/x", Typeflag: tar.TypeReg}},
		"itself":            {link, {Name: "l/own", Typeflag: tar.TypeSymlink, Linkname: "elsewhere"}},
		"hard link":         {{Name: "f", Typeflag: tar.TypeReg}, link, {Name: "l/own/x", Typeflag: tar.TypeLink, Linkname: "f"}},
		"mode by a link":    {{Name: "m", Typeflag: tar.TypeSymlink, Linkname: "etc/own"}, {Name: "m", Typeflag: tar.TypeDir}},
		"mode by one late":  {{Name: "m", Typeflag: tar.TypeDir}, {Name: "m", Typeflag: tar.TypeSymlink, Linkname: "etc/own"}},
		"not there yet":     {link, {Name: "l/other/x", Typeflag: tar.TypeReg}},
		"by a link to it":   {{Name: "m", Typeflag: tar.TypeSymlink, Linkname: "etc/other"}, {Name: "m/a/x", Typeflag: tar.TypeReg}},
		"right below it":    {{Name: "m", Typeflag: tar.TypeSymlink, Linkname: "etc/other"}, {Name: "m/x", Typeflag: tar.TypeReg}},
		"by a link into it": {{Name: "m", Typeflag: tar.TypeSymlink, Linkname: "etc/own/new"}, {Name: "m/a/x", Typeflag: tar.TypeReg}},
		"by two links":      {{Name: "m", Typeflag: tar.TypeSymlink, Linkname: "n/a"}, {Name: "n", Typeflag: tar.TypeSymlink, Linkname: "etc/other"}, {Name: "m/x", Typeflag: tar.TypeReg}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := t.TempDir()
			if err := os.MkdirAll(in+"/etc/own", 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, in+"/etc/own/kept", "k")
			dir, err := machine(t, in).Dir("/")
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			archive := archiveOf(t, entries, 0o777)
			var refused *EntryError
			if _, err := Unpack(t.Context(), dir, archive, UnpackOptions{Keep: []string{"etc/own", "etc/other"}}); !errors.As(err, &refused) {
				t.Errorf("unpacked: %v", err)
			}
			names, err := filepath.Glob(in + "/etc/o*/*")
			info, serr := os.Lstat(in + "/etc/own")
			if err != nil || serr != nil || len(names) != 1 || info.Mode().Perm() != 0o700 || !info.IsDir() {
				t.Errorf("what is kept is %v with %q, %v", info, names, err)
			}
			if _, err := os.Lstat(in + "/etc/other"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("what is kept has come to be: %v", err)
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	_ = w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1, Mode: 0o600})
	_, _ = w.Write([]byte("x"))
	_ = w.Close()
	f.Add(archive.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		if err := os.Mkdir(top+"/in", 0o755); err != nil {
			t.Fatal(err)
		}
		dir, err := os.OpenRoot(top + "/in")
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		_, _ = Unpack(t.Context(), dir, bytes.NewReader(data), UnpackOptions{})
		if names, err := filepath.Glob(top + "/*"); err != nil || len(names) != 1 {
			t.Errorf("outside there is now %q, %v", names, err)
		}
	})
}
