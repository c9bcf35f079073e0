package memory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/hostd/proc"
)

// heldFD is the descriptor of the memory in its holder.
const heldFD = 3

// shell runs the holder: a read that never ends, of a pipe that nobody else
// has. Whatever system this is has a shell, and one takes less than a megabyte.
const shell = "/bin/sh"

// Hold starts a process that does nothing but keep the memory, under a name by
// which it is found again. It is not waited for.
func Hold(f *os.File, name string) (pid int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	r, w := os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe")
	defer r.Close()
	defer w.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err = syscall.ForkExec(shell, []string{"sh", "-c", "read -r _", "guest=" + name}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/bin:/bin"},
		Files: []uintptr{r.Fd(), null.Fd(), null.Fd(), f.Fd(), w.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	runtime.KeepAlive(f)
	if err != nil {
		return 0, fmt.Errorf("start the holder of a memory: %w", err)
	}
	return pid, nil
}

// ErrNoHolder says that no process holds a memory.
var ErrNoHolder = errors.New("no process holds the memory")

// Held opens the memory that the holder of that name has.
func Held(name string) (*os.File, int, error) {
	pids, err := proc.Named(name)
	if err != nil {
		return nil, 0, err
	}
	for pid, rest := range pids {
		if rest != "" || !own(pid) {
			continue
		}
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd", strconv.Itoa(heldFD)))
		if err == nil {
			return f, pid, nil
		}
	}
	return nil, 0, ErrNoHolder
}

// own says that a process is of this program's user. Any other can call itself
// what it likes, and would have guests go on from memory of its making.
func own(pid int) bool {
	doc, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(doc)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			me := strconv.Itoa(os.Geteuid())
			return !slices.ContainsFunc(strings.Fields(ids), func(id string) bool { return id != me })
		}
	}
	return false
}
