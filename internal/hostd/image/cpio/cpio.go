// Package cpio writes initramfs archives in the kernel's "newc" format. An
// archive is padded to a multiple of four bytes, because the kernel rejects
// what follows otherwise, so archives can simply be appended to one another.
package cpio

import (
	"fmt"
	"io"
	"path"
	"strings"
)

const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
	trailer  = "TRAILER!!!"
	// maxSize is what the eight hex digits of a size can hold.
	maxSize = 1<<32 - 1
)

// Writer writes one archive. Every file belongs to root and has no time, so
// that equal contents make equal archives. Parent directories are made as
// needed. The first error sticks and Close returns it.
type Writer struct {
	w    io.Writer
	n    int64
	ino  uint32
	dirs map[string]bool
	err  error
}

// NewWriter starts an archive on w, which must stand at a multiple of four.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, dirs: map[string]bool{".": true}}
}

// Dir adds a directory with the given permission bits.
func (w *Writer) Dir(name string, perm uint32) error {
	name, err := clean(name)
	if err != nil {
		return w.fail(err)
	}
	w.parents(name)
	w.dirs[name] = true
	return w.entry(name, typeDir|perm, 0, nil)
}

// File adds a regular file of exactly size bytes read from r.
func (w *Writer) File(name string, perm uint32, size int64, r io.Reader) error {
	name, err := clean(name)
	if err != nil {
		return w.fail(err)
	}
	w.parents(name)
	return w.entry(name, typeFile|perm, size, r)
}

// Symlink adds a symbolic link.
func (w *Writer) Symlink(name, target string) error {
	name, err := clean(name)
	if err != nil {
		return w.fail(err)
	}
	w.parents(name)
	return w.entry(name, typeLink|0o777, int64(len(target)), strings.NewReader(target))
}

// Close writes the trailer. It does not close the underlying writer.
func (w *Writer) Close() error {
	return w.entry(trailer, 0, 0, nil)
}

func clean(name string) (string, error) {
	c := strings.TrimPrefix(path.Clean("/"+name), "/")
	if c == "" || c == trailer || strings.ContainsRune(c, 0) || len(c) > 4095 {
		return "", fmt.Errorf("cpio: %q is no file name", name)
	}
	return c, nil
}

func (w *Writer) parents(name string) {
	dir := path.Dir(name)
	if w.dirs[dir] {
		return
	}
	w.parents(dir)
	w.dirs[dir] = true
	w.err = w.entry(dir, typeDir|0o755, 0, nil)
}

func (w *Writer) entry(name string, mode uint32, size int64, r io.Reader) error {
	if w.err != nil {
		return w.err
	}
	if size < 0 || size > maxSize {
		return w.fail(fmt.Errorf("cpio: %s: %d bytes, the format holds at most %d", name, size, int64(maxSize)))
	}
	nlink := 1
	if name == trailer {
		w.ino = 0
	} else {
		w.ino++
	}
	w.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		w.ino, mode, 0, 0, nlink, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	w.pad()
	if size > 0 && w.err == nil {
		n, err := io.CopyN(w.w, r, size)
		w.n += n
		if err != nil {
			return w.fail(fmt.Errorf("cpio: %s: %d of %d bytes: %w", name, n, size, err))
		}
	}
	w.pad()
	return w.err
}

func (w *Writer) printf(format string, args ...any) {
	if w.err != nil {
		return
	}
	n, err := fmt.Fprintf(w.w, format, args...)
	w.n += int64(n)
	w.err = err
}

func (w *Writer) pad() {
	if n := (4 - w.n%4) % 4; n > 0 {
		w.printf("%s", "\x00\x00\x00"[:n])
	}
}

func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	return w.err
}
