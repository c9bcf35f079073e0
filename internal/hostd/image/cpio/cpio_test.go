package cpio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type entry struct {
	Name string
	Mode uint32
	Data string
}

// read is an independent reader of the format, for the tests alone.
func read(b []byte) (out []entry, rest []byte, err error) {
	pos := 0
	field := func(i int) (int, error) {
		v, err := strconv.ParseUint(string(b[pos+6+8*i:pos+14+8*i]), 16, 32)
		return int(v), err
	}
	for {
		if len(b) < pos+110 || string(b[pos:pos+6]) != "070701" {
			return nil, nil, fmt.Errorf("no header at %d", pos)
		}
		mode, err1 := field(1)
		size, err2 := field(6)
		nameLen, err3 := field(11)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, nil, err
		}
		name := string(b[pos+110 : pos+110+nameLen-1])
		pos = (pos + 110 + nameLen + 3) &^ 3
		data := string(b[pos : pos+size])
		pos = (pos + size + 3) &^ 3
		if name == trailer {
			return out, b[pos:], nil
		}
		out = append(out, entry{name, uint32(mode), data})
	}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	add := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add(w.File("/init", 0o755, 5, strings.NewReader("hello")))
	add(w.Dir("proc", 0o555))
	add(w.File("a/b/../c/d", 0o600, 0, nil))
	add(w.File("a/c/e", 0o644, 3, strings.NewReader("xyz")))
	add(w.Symlink("bin/sh", "busybox"))
	add(w.Close())
	if b.Len()%4 != 0 {
		t.Errorf("archive of %d bytes is not padded to four", b.Len())
	}
	got, rest, err := read(b.Bytes())
	if err != nil || len(rest) != 0 {
		t.Fatalf("read: %v, %d bytes left", err, len(rest))
	}
	want := []entry{
		{"init", 0o100755, "hello"},
		{"proc", 0o040555, ""},
		{"a", 0o040755, ""},
		{"a/c", 0o040755, ""},
		{"a/c/d", 0o100600, ""},
		{"a/c/e", 0o100644, "xyz"},
		{"bin", 0o040755, ""},
		{"bin/sh", 0o120777, "busybox"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestEqualContentsMakeEqualArchives(t *testing.T) {
	build := func() []byte {
		var b bytes.Buffer
		w := NewWriter(&b)
		_ = w.File("x/y", 0o600, 1, strings.NewReader("1"))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	if !bytes.Equal(build(), build()) {
		t.Error("two archives of the same contents differ")
	}
}

func TestBusyboxUnpacksIt(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	_ = w.File("d/f", 0o640, 4, strings.NewReader("data"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("busybox", "cpio", "-i")
	cmd.Dir, cmd.Stdin = dir, &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "d/f")); err != nil || string(got) != "data" {
		t.Errorf("d/f = %q, %v", got, err)
	}
}

func TestErrorsStick(t *testing.T) {
	w := NewWriter(io.Discard)
	if err := w.File("short", 0o600, 10, strings.NewReader("1234")); !errors.Is(err, io.EOF) {
		t.Fatalf("a reader that ends early: %v, want EOF", err)
	}
	if err := w.Close(); err == nil {
		t.Error("Close forgot the error")
	}
	for _, bad := range []string{"", "/", "..", "a\x00b", trailer, strings.Repeat("x", 5000)} {
		if err := NewWriter(io.Discard).Dir(bad, 0o755); err == nil {
			t.Errorf("name %.10q was taken", bad)
		}
	}
	if err := NewWriter(io.Discard).File("big", 0o600, 1<<32, nil); err == nil {
		t.Error("a file of 4 GiB was taken")
	}
}

func FuzzArchive(f *testing.F) {
	f.Add("init", []byte("x"), uint32(0o755))
	f.Add("a/b", []byte{}, uint32(0))
	f.Fuzz(func(t *testing.T, name string, data []byte, perm uint32) {
		var b bytes.Buffer
		w := NewWriter(&b)
		if w.File(name, perm&0o777, int64(len(data)), bytes.NewReader(data)) != nil {
			return
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, rest, err := read(b.Bytes())
		if err != nil || len(rest) != 0 || len(got) == 0 || got[len(got)-1].Data != string(data) {
			t.Fatalf("read back %v, %d left, %v", got, len(rest), err)
		}
	})
}
