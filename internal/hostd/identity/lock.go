package identity

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
)

// Lock takes a data directory for this process alone, until the file is closed.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 32)) // for people
		e := fleet.Errorf(fleet.CodeConflict, "data directory %s is in use by another host agent, pid %s", dir, cmp.Or(strings.TrimSpace(string(holder)), "unknown")).
			With(fleet.DetailRemedy, "stop the other one ('fuse dev' has a host agent, too), or give this one its own --data-dir")
		return nil, errors.Join(e, f.Close())
	}
	if f.Truncate(0) == nil { // a full disk keeps no agent from starting
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}
