package image

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// lutimes sets the times of a file, of a link itself too, to the epoch.
func lutimes(path string) error {
	ts := unix.NsecToTimespec(epoch.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times of %s: %w", path, err)
	}
	return nil
}
