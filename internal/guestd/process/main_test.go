package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// The tests run their own program again as PID 1 of a namespace; this tells
// that program what to be.
const roleVar = "FUSE_TEST_ROLE"

// patience is for what takes a moment on a machine that is not busy.
const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "init" {
		os.Exit(initRole())
	}
	testkit.Main(m)
}

// mountCgroups mounts the cgroup v2 hierarchy for the test and returns a name
// in it that does not exist yet.
func mountCgroups(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		t.Fatalf("mount cgroup2: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount cgroup2: %v", err)
		}
	})
	return filepath.Join(dir, fmt.Sprintf("fuse-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
}

// withArg lists the processes that have arg in their command line.
func withArg(t *testing.T, arg string) []int {
	t.Helper()
	var found []int
	for _, pid := range listProcs() {
		line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err == nil && strings.Contains(string(line), arg) {
			found = append(found, pid)
		}
	}
	return found
}
