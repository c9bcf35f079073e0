package freeze

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
)

// IncarnationPath is where the machine's hardware tells its identity.
const IncarnationPath = "/sys/firmware/qemu_fw_cfg/by_name/opt/fuse/incarnation/raw"

// Incarnation reads it; the kernel asks the hardware anew each time.
func Incarnation() string {
	b, err := os.ReadFile(IncarnationPath)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Linux is the System of a guest.
type Linux struct {
	Group string // the cgroup of all processes of users
	Root  string // a directory of the filesystem that is captured
}

// pollEvery is how often the kernel is asked whether all stand still.
const pollEvery = 500 * time.Microsecond

// FreezeProcesses implements System.
func (l Linux) FreezeProcesses(ctx context.Context) (int, error) {
	if err := l.write("1"); err != nil {
		return 0, fmt.Errorf("freeze the processes: %w", err)
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		b, err := os.ReadFile(filepath.Join(l.Group, "cgroup.events"))
		if err == nil && strings.Contains(string(b), "frozen 1") {
			return len(l.pids()), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			late := fleet.Wrap(fleet.CodeUnavailable, errors.Join(ErrLate, context.Cause(ctx), l.write("0")), "some process of the machine cannot be stopped: it waits in the kernel").
				With(fleet.DetailRemedy, "end what waits for a disk or a network that does not answer, or take a snapshot of the disk alone")
			return 0, late
		}
	}
}

// ThawProcesses implements System.
func (l Linux) ThawProcesses() error {
	if err := l.write("0"); err != nil {
		return fmt.Errorf("let the processes go on: %w", err)
	}
	return nil
}

func (l Linux) write(state string) error {
	return os.WriteFile(filepath.Join(l.Group, "cgroup.freeze"), []byte(state), 0)
}

// pids are all processes of users.
func (l Linux) pids() []int {
	var out []int
	root := os.DirFS(l.Group)
	_ = fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil //nolint:nilerr // a group that has gone meanwhile has no processes
		}
		b, _ := fs.ReadFile(root, path)
		for field := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				out = append(out, pid)
			}
		}
		return nil
	})
	return out
}

// Signal is what processes get that go on in another machine. Who does not
// wait for it is not disturbed by it.
const Signal = unix.SIGURG

// Tell implements System. The signal waits until the process goes on.
func (l Linux) Tell() (int, error) {
	told := 0
	for _, pid := range l.pids() {
		switch err := unix.Kill(pid, Signal); {
		case err == nil:
			told++
		case !errors.Is(err, unix.ESRCH):
			return told, fmt.Errorf("tell process %d: %w", pid, err)
		}
	}
	return told, nil
}

// Requests of FIFREEZE and FITHAW, _IOWR('X', 119 and 120, int).
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// FreezeFilesystem implements System. The kernel writes everything back first,
// which cannot be hurried; what comes too late is undone when it comes.
func (l Linux) FreezeFilesystem(ctx context.Context) error {
	frozen := make(chan error, 1)
	go func() {
		unix.Sync()
		frozen <- l.ioctl(fiFreeze)
	}()
	select {
	case err := <-frozen:
		if err != nil {
			return fmt.Errorf("freeze the filesystem: %w", err)
		}
		return nil
	case <-ctx.Done():
		go func() {
			if <-frozen == nil {
				_ = l.ThawFilesystem()
			}
		}()
		return fleet.Wrap(fleet.CodeUnavailable, errors.Join(ErrLate, context.Cause(ctx)), "the machine's disk could not be made whole in time: there is too much to write").
			With(fleet.DetailRemedy, "try again when less is being written")
	}
}

// ThawFilesystem implements System. One that is not frozen is success.
func (l Linux) ThawFilesystem() error {
	if err := l.ioctl(fiThaw); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("let the filesystem go on: %w", err)
	}
	return nil
}

func (l Linux) ioctl(req uint) error {
	f, err := os.Open(l.Root)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), req, 0)
}

// SSHKeyKinds lists the ssh host keys below root by kind.
func SSHKeyKinds(root string) []string {
	files, err := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*_key"))
	if err != nil {
		return nil
	}
	var out []string
	for _, f := range files {
		kind := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "ssh_host_"), "_key")
		out = append(out, kind)
	}
	return out
}
