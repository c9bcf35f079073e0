package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/guestwire"
)

// mountpoint is one filesystem of the kernel's own.
type mountpoint struct {
	dir, kind, data string
	flags           uintptr
	mode            fs.FileMode // of the directory, if it must be made
}

const harmless = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

// early mounts are made in the initramfs and moved to the root; the others are
// made there.
var (
	early = []mountpoint{
		{dir: "/proc", kind: "proc", flags: harmless, mode: 0o555},
		{dir: "/sys", kind: "sysfs", flags: harmless, mode: 0o555},
		{dir: "/dev", kind: "devtmpfs", flags: unix.MS_NOSUID, data: "mode=0755", mode: 0o755},
	}
	later = []mountpoint{
		{dir: "/dev/pts", kind: "devpts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "gid=5,mode=0620,ptmxmode=0666", mode: 0o755},
		{dir: "/dev/shm", kind: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=1777", mode: 0o1777},
		{dir: "/run", kind: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=0755", mode: 0o755},
		{dir: "/sys/fs/cgroup", kind: "cgroup2", flags: harmless, data: "nsdelegate", mode: 0o755},
		{dir: "/fuse", kind: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=0700,size=64m", mode: 0o700},
	}
	// devLinks are what programs expect in /dev and the kernel does not make.
	devLinks = map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	}
)

func (m *Machine) mountEarly(context.Context) error { return mountAll(early) }

func mountAll(points []mountpoint) error {
	for _, p := range points {
		if err := ensureDir(p.dir, p.mode); err != nil {
			return err
		}
		if err := unix.Mount(p.kind, p.dir, p.kind, p.flags, p.data); err != nil {
			return &os.PathError{Op: "mount " + p.kind, Path: p.dir, Err: err}
		}
	}
	return nil
}

func ensureDir(dir string, mode fs.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// switchRoot makes the root filesystem the root and frees the initramfs.
func (m *Machine) switchRoot(context.Context) error {
	for _, p := range early {
		to := filepath.Join(newRoot, p.dir)
		if err := ensureDir(to, p.mode); err != nil {
			return err
		}
		if err := unix.Mount(p.dir, to, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", p.dir, err)
		}
	}
	if err := emptyInitramfs(); err != nil {
		return err
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := mountAll(later); err != nil {
		return err
	}
	for name, to := range devLinks {
		if err := os.Symlink(to, filepath.Join("/dev", name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// emptyInitramfs deletes what the initramfs holds, secrets and all, and gives
// its memory back. It stays on the initramfs's own filesystem.
func emptyInitramfs() error {
	var root syscall.Stat_t
	if err := syscall.Lstat("/", &root); err != nil {
		return &os.PathError{Op: "stat", Path: "/", Err: err}
	}
	return emptyDir("/", root.Dev)
}

// blank overwrites a file in memory: what is only deleted stays readable in a
// capture of the machine until its page is used again.
func blank(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, size))
	return errors.Join(err, f.Close())
}

func emptyDir(dir string, dev uint64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if st.Dev != dev {
			continue // another filesystem is mounted here: the new root
		}
		if e.IsDir() {
			if err := emptyDir(path, dev); err != nil {
				return err
			}
		}
		if e.Type().IsRegular() && path == guestwire.BootConfigPath {
			if err := blank(path, st.Size); err != nil {
				return err
			}
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return nil
}
