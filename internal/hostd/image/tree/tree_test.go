package tree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// file is one entry of a layer, short to write.
func file(name, content string) entryOf {
	return entryOf{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content}
}

func dir(name string) entryOf {
	return entryOf{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func symlink(name, target string) entryOf {
	return entryOf{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, ""}
}

func hardlink(name, target string) entryOf {
	return entryOf{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}

func xattr(name, key, value string) entryOf {
	return entryOf{tar.Header{Typeflag: tar.TypeReg, Name: name, Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr." + key: value}}, ""}
}

type entryOf struct {
	h       tar.Header
	content string
}

func layer(t testing.TB, entries ...entryOf) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func apply(t *testing.T, layers ...io.Reader) (*Tree, error) {
	t.Helper()
	tr := New(t.TempDir(), DefaultLimits)
	for _, l := range layers {
		if err := tr.Apply(t.Context(), l, nil); err != nil {
			return tr, err
		}
	}
	return tr, nil
}

// listing writes the tree out and reads it back: path to content, "/" for a
// directory, "-> target" for a link.
func listing(t *testing.T, tr *Tree) map[string]string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := tr.Write(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch d.Type() {
		case fs.ModeDir:
			out[name] = "/"
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			out[name] = "-> " + to
			return err
		default:
			b, err := os.ReadFile(path)
			out[name] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayers(t *testing.T) {
	for name, c := range map[string]struct {
		layers [][]entryOf
		want   map[string]string
	}{
		"replace": {[][]entryOf{{file("a", "1")}, {file("a", "2")}}, map[string]string{"a": "2"}},
		"whiteout of a file": {
			[][]entryOf{{file("d/a", "1"), file("d/b", "1")}, {file("d/.wh.a", "")}},
			map[string]string{"d": "/", "d/b": "1"},
		},
		"whiteout of a directory": {
			[][]entryOf{{file("d/e/a", "1")}, {file("d/.wh.e", "")}},
			map[string]string{"d": "/"},
		},
		"whiteout spares its own layer, whichever comes first": {
			[][]entryOf{{file("d/old", "1")}, {file("d/new", "2"), file(".wh.d", "")}},
			map[string]string{"d": "/", "d/new": "2"},
		},
		"whiteout of nothing": {[][]entryOf{{file("no/.wh.x", ""), file(".wh.y", "")}}, map[string]string{}},
		"opaque": {
			[][]entryOf{{file("d/a", "1"), file("d/e/b", "1")}, {file("d/c", "2"), file("d/.wh..wh..opq", "")}},
			map[string]string{"d": "/", "d/c": "2"},
		},
		"opaque below": {
			[][]entryOf{{file("d/e/b", "1"), file("d/e/f/g", "1")}, {file("d/e/n", "2"), file("d/.wh..wh..opq", "")}},
			map[string]string{"d": "/", "d/e": "/", "d/e/n": "2"},
		},
		"notes of AUFS": {[][]entryOf{{file("a", "1"), file(".wh..wh.plnk", ""), file(".wh..wh.aufs", "")}}, map[string]string{"a": "1"}},
		"directory for a link": {
			[][]entryOf{{dir("real"), symlink("d", "real")}, {dir("d"), file("d/x", "2")}},
			map[string]string{"real": "/", "d": "/", "d/x": "2"},
		},
		"through an absolute link": {
			[][]entryOf{{dir("run"), dir("var"), symlink("var/run", "/run")}, {file("var/run/pid", "2")}},
			map[string]string{"run": "/", "var": "/", "var/run": "-> /run", "run/pid": "2"},
		},
		"a link that climbs stays at the root": {
			[][]entryOf{{symlink("out", "../../../../etc")}, {file("out/passwd", "x")}},
			map[string]string{"out": "-> ../../../../etc", "etc": "/", "etc/passwd": "x"},
		},
		"absolute and untidy names": {
			[][]entryOf{{file("/etc//./a", "1"), file("./b", "2")}},
			map[string]string{"etc": "/", "etc/a": "1", "b": "2"},
		},
		"hard link": {[][]entryOf{{file("a", "1"), hardlink("b", "/a")}}, map[string]string{"a": "1", "b": "1"}},
		"hard link to a lower layer, which then loses it": {
			[][]entryOf{{file("a", "1")}, {hardlink("b", "a"), file(".wh.a", "")}},
			map[string]string{"b": "1"},
		},
		"a directory becomes a file": {[][]entryOf{{file("d/a", "1")}, {file("d", "2")}}, map[string]string{"d": "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			var layers []io.Reader
			for _, l := range c.layers {
				layers = append(layers, layer(t, l...))
			}
			tr, err := apply(t, layers...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, listing(t, tr)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHostileLayers(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, entries := range map[string][]entryOf{
		"climbs":                    {file("../evil", "x")},
		"climbs within":             {file("a/../../evil", "x")},
		"hard link climbs":          {hardlink("a", "../../etc/passwd")},
		"hard link to the host":     {hardlink("a", "/etc/passwd")},
		"hard link to a directory":  {dir("d"), hardlink("a", "d")},
		"hard link through a link":  {symlink("l", "/etc"), hardlink("a", "l/passwd")},
		"long name":                 {file(long, "x")},
		"long path":                 {file(strings.Repeat("abcdefg/", 500)+"x", "x")},
		"links in a circle":         {symlink("a", "b"), symlink("b", "a"), file("a/x", "x")},
		"below a file":              {file("a", "x"), file("a/b", "x")},
		"whiteout of the directory": {dir("d"), file("d/.wh...", "")},
		"whiteout of nothing":       {dir("d"), file("d/.wh.", "")},
		"empty link":                {symlink("a", "")},
		"device out of range":       {{tar.Header{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1 << 20}, ""}},
		"more xattrs than an inode": {xattr("a", "user.x", strings.Repeat("v", 2000))},
		"xattr with a long name":    {xattr("a", "user."+long, "v")},
		"xattr without a name":      {xattr("a", "user.", "v")},
		"xattrs of the root":        {{tar.Header{Typeflag: tar.TypeDir, Name: "./", Format: tar.FormatPAX, PAXRecords: xattr("", "user.x", strings.Repeat("v", 2000)).h.PAXRecords}, ""}},
		"unknown kind":              {{tar.Header{Typeflag: 'Z', Name: "z"}, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := apply(t, layer(t, entries...))
			var fe *fleet.Error
			if !errors.As(err, &fe) || fe.Code != fleet.CodeInvalidArgument || fe.Details[fleet.DetailReason] != "image_invalid" || fe.Details[fleet.DetailRemedy] == "" {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCutLayer(t *testing.T) {
	whole, _ := io.ReadAll(layer(t, file("a", strings.Repeat("x", 100_000))))
	for _, n := range []int{100, 512, 600, 50_000} {
		if _, err := apply(t, bytes.NewReader(whole[:n])); n != 512 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", n, err)
		} else if err == nil {
			t.Errorf("cut at %d: no error", n)
		}
	}
}

func TestLimitsAndRoom(t *testing.T) {
	tr := New(t.TempDir(), Limits{Bytes: 1000, Entries: 10, Memory: 1 << 20})
	err := tr.Apply(t.Context(), layer(t, file("a", strings.Repeat("x", 1001))), nil)
	if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("too many bytes: %v", err)
	}
	var many []entryOf
	for i := range 11 {
		many = append(many, file(fmt.Sprint(i), ""))
	}
	if err := New(t.TempDir(), Limits{Bytes: 1000, Entries: 10, Memory: 1 << 20}).Apply(t.Context(), layer(t, many...), nil); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("too many entries: %v", err)
	}
	full := errors.New("full")
	asked := 0
	err = New(t.TempDir(), DefaultLimits).Apply(t.Context(), layer(t, file("a", strings.Repeat("x", 40<<20))), func(int64) error {
		if asked++; asked == 2 {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) || asked != 2 {
		t.Errorf("no room: %v after %d questions", err, asked)
	}
}

// What is kept in memory of an image is bounded, whatever it is.
func TestMemoryIsBounded(t *testing.T) {
	limits := Limits{Bytes: 1000, Entries: 1000, Memory: 20_000}
	for name, entry := range map[string]func(i int) entryOf{
		"names":   func(i int) entryOf { return file(fmt.Sprintf("%0200d", i), "") },
		"parents": func(i int) entryOf { return file(fmt.Sprintf("%0200d/a", i), "") },
		"targets": func(i int) entryOf { return symlink(fmt.Sprint(i), strings.Repeat("t", 200)) },
		"xattrs":  func(i int) entryOf { return xattr(fmt.Sprint(i), "user.x", strings.Repeat("v", 200)) },
	} {
		t.Run(name, func(t *testing.T) {
			var entries []entryOf
			for i := range 90 {
				entries = append(entries, entry(i))
			}
			if err := New(t.TempDir(), limits).Apply(t.Context(), layer(t, entries[:20]...), nil); err != nil {
				t.Errorf("what is within the limit: %v", err)
			}
			err := New(t.TempDir(), limits).Apply(t.Context(), layer(t, entries...), nil)
			var fe *fleet.Error
			if !errors.As(err, &fe) || fe.Details[fleet.DetailReason] != "image_invalid" || fe.Details[fleet.DetailLimit] == "" || fe.Details[fleet.DetailRemedy] == "" {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Of an archive's header nothing stays but what is of use.
func TestHeadersAreNotKept(t *testing.T) {
	comment := strings.Repeat("c", 500<<10)
	var entries []entryOf
	for i := range 64 {
		name := fmt.Sprintf("%0120d/%0120d", i, i) // in the same record as the comment
		entries = append(entries, entryOf{tar.Header{
			Typeflag: tar.TypeSymlink, Name: name, Linkname: strings.Repeat("t", 200), Format: tar.FormatPAX,
			PAXRecords: map[string]string{"comment": comment, "SCHILY.xattr.user.x": "v"},
		}, ""})
	}
	r := layer(t, entries...)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	tr := New(t.TempDir(), DefaultLimits)
	before := heap()
	if err := tr.Apply(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("%d MiB stay of 64 entries", grown>>20)
	}
	runtime.KeepAlive(r)
	if n := tr.Root.Names(); len(n) != 64 {
		t.Errorf("%d names", len(n))
	}
}

func TestDescriptionIsKept(t *testing.T) {
	when := time.Unix(1_234_567_890, 0)
	h := tar.Header{
		Typeflag: tar.TypeReg, Name: "bin/su", Mode: 0o4755, Uid: 1000, Gid: 70000, ModTime: when, Format: tar.FormatPAX,
		PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b", "SCHILY.xattr.security.capability": "\x01\x00", "SCHILY.xattr.trusted.overlay.opaque": "y"},
	}
	tr, err := apply(t, layer(t, entryOf{h, ""}))
	if err != nil {
		t.Fatal(err)
	}
	n := tr.Lookup("/bin/su")
	want := map[string][]byte{"user.a": []byte("b"), "security.capability": {1, 0}}
	if n == nil || n.Mode != 0o4755 || n.UID != 1000 || n.GID != 70000 || !n.Mtime.Equal(when) || cmp.Diff(want, n.Xattrs) != "" {
		t.Errorf("got %+v", n)
	}
}

func FuzzApply(f *testing.F) {
	whole, _ := io.ReadAll(layer(f, dir("d"), file("d/a", "x"), symlink("l", "/d"), file("l/.wh.a", ""), hardlink("h", "d/a")))
	f.Add(whole)
	f.Fuzz(func(t *testing.T, data []byte) {
		spool := t.TempDir()
		tr := New(filepath.Join(spool, "in"), Limits{Bytes: 1 << 20, Entries: 1000, Memory: 1 << 20})
		_ = os.Mkdir(filepath.Join(spool, "in"), 0o700)
		_ = os.Mkdir(filepath.Join(spool, "out"), 0o700)
		if tr.Apply(t.Context(), bytes.NewReader(data), nil) == nil {
			if err := tr.Write(t.Context(), filepath.Join(spool, "out")); err != nil && len(data) < 4096 {
				t.Error(err)
			}
		}
		if got, _ := os.ReadDir(spool); len(got) != 2 {
			t.Errorf("something left the directory: %v", got)
		}
	})
}
