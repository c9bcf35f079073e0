package boot

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long processes have to end when the machine does, by each signal.
const (
	termGrace = 3 * time.Second
	killGrace = time.Second
)

// PowerOff ends every process, writes everything to disk and turns the machine
// off. It returns only if the kernel refuses.
func PowerOff(ctx context.Context, log *slog.Logger) error {
	_ = syscall.Kill(-1, syscall.SIGTERM) // nobody left is no error
	if left := waitGone(termGrace); left > 0 {
		log.WarnContext(ctx, "processes did not end when asked", "processes", left)
		_ = syscall.Kill(-1, syscall.SIGKILL)
		waitGone(killGrace)
	}
	unix.Sync()
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		log.WarnContext(ctx, "root stays writable", "error", err)
		unix.Sync()
	}
	log.InfoContext(ctx, "power off", "up_ms", Uptime().Milliseconds())
	return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// Fail reports why the machine cannot run and turns it off: a host that waits
// for it learns at once.
func Fail(ctx context.Context, log *slog.Logger, err error) {
	log.ErrorContext(ctx, "boot failed", "error", err, "up_ms", Uptime().Milliseconds())
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		log.ErrorContext(ctx, "cannot power off", "error", err)
	}
}

// waitGone waits until no other process is left and returns how many are.
func waitGone(limit time.Duration) int {
	deadline := time.Now().Add(limit)
	for {
		left := userProcesses("/proc")
		if left == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// userProcesses counts processes but the first and the kernel's own, which
// have no program.
func userProcesses(proc string) int {
	dirs, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return 0
	}
	n := 0
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == 1 {
			continue
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err == nil && strings.Trim(string(line), "\x00") != "" {
			n++
		}
	}
	return n
}
