package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// rename moves a name from one directory to another. Without replace, a name
// that is there stays.
func rename(from *os.Root, name string, to *os.Root, toName string, replace bool) error {
	f, err := from.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	t, err := to.Open(".")
	if err != nil {
		return err
	}
	defer t.Close()
	flags := uint(0)
	if !replace {
		flags = unix.RENAME_NOREPLACE
	}
	err = unix.Renameat2(int(f.Fd()), name, int(t.Fd()), toName, flags)
	if err != nil {
		return &os.LinkError{Op: "move", Old: name, New: toName, Err: err}
	}
	return nil
}
