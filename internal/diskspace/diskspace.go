// Package diskspace measures what files take of a disk, and what it has left.
package diskspace

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Free is the room on the file system of dir for an ordinary user's files, and
// its size, in bytes.
func Free(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// Used is what a directory takes of the disk, in bytes, without holes. What
// cannot be seen does not count.
func Used(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if d == nil || err != nil {
			return fs.SkipDir
		}
		if st, err := d.Info(); err == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				total += sys.Blocks * 512
			}
		}
		return nil
	})
	return total
}
