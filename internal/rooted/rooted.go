// Package rooted reaches files below a directory that nothing leads out of:
// no "..", no link, and no rename that happens meanwhile. It packs such trees
// as tar archives and unpacks archives that nobody vouches for.
package rooted

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Root is a directory as the limit of everything below.
type Root struct {
	dir     *os.File // opened as a path
	resolve uint64
}

// Machine opens a directory that paths and absolute links take for "/", as a
// chroot would: with "/" itself, the whole machine.
func Machine(dir string) (*Root, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Root{f, unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}, nil
}

// Beneath opens a directory below the root as a root that links may not lead
// out of.
func (r *Root) Beneath(dir string) (*Root, error) {
	f, err := r.open(dir, unix.O_PATH|syscall.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &Root{f, unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}, nil
}

// Close lets go of the directory.
func (r *Root) Close() { _ = r.dir.Close() } // of a path alone: nothing can be lost

// ErrPath says that a path is none: it is relative, climbs, or has a NUL byte.
var ErrPath = errors.New("the path must be absolute, without .. and NUL bytes")

// relative checks a path and makes it one that openat2 takes.
func relative(p string) (string, error) {
	if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) {
		return "", &fs.PathError{Op: "resolve", Path: p, Err: ErrPath}
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", &fs.PathError{Op: "resolve", Path: p, Err: ErrPath}
		}
	}
	if rel := strings.TrimPrefix(path.Clean(p), "/"); rel != "" {
		return rel, nil
	}
	return ".", nil
}

// raceTries bounds repeats of a lookup that a rename went through.
const raceTries = 64

// open opens what a path leads to.
func (r *Root) open(p string, flags int) (*os.File, error) {
	rel, err := relative(p)
	if err != nil {
		return nil, err
	}
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: r.resolve}
	for range raceTries {
		var fd int
		fd, err = unix.Openat2(int(r.dir.Fd()), rel, how)
		if err == nil {
			return os.NewFile(uintptr(fd), p), nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return nil, &fs.PathError{Op: "open", Path: p, Err: err}
}

// OpenRead opens a file for reading. A pipe or device does not block it.
func (r *Root) OpenRead(p string) (*os.File, error) {
	return r.open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
}

// OpenPath opens what a path leads to without reading it.
func (r *Root) OpenPath(p string) (*os.File, error) { return r.open(p, unix.O_PATH) }

// Parent opens the directory of a path, in which the returned name is meant:
// nothing of what is done there leads out of that directory.
func (r *Root) Parent(p string) (dir *os.Root, name string, err error) {
	rel, err := relative(p)
	if err != nil {
		return nil, "", err
	}
	if rel == "." {
		return nil, "", &fs.PathError{Op: "change", Path: p, Err: ErrPath}
	}
	dir, err = r.Dir("/" + path.Dir(rel))
	return dir, path.Base(rel), err
}

// Dir opens a directory to work in.
func (r *Root) Dir(p string) (*os.Root, error) {
	f, err := r.open(path.Clean(p), unix.O_PATH|syscall.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}

// MkdirAll makes a directory and those on the way to it.
func (r *Root) MkdirAll(p string, mode fs.FileMode) error {
	f, err := r.open(p, unix.O_PATH|syscall.O_DIRECTORY)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.MkdirAll(path.Dir(path.Clean(p)), 0o755); err != nil {
		return err
	}
	dir, name, err := r.Parent(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Mkdir(name, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Real is where an open file or directory is, by the kernel's own account.
func Real(f *os.File) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}
