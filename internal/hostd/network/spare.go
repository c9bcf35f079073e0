package network

import "os"

// SpareTap is a tap like those of slots, alone in a namespace of its own; both
// go when it is closed.
func SpareTap() (*os.File, error) {
	var fd int
	err := inFresh(func() error {
		var err error
		fd, err = openTap()
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), TapName), nil
}
