package sim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLogSurvivesAFullDisk writes to a log on a full disk: what did not fit is
// as if it had never been tried, and the log goes on when there is room again.
func TestLogSurvivesAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a tmpfs (as root): %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := add(dir, content{State: &state{BootID: "b"}}, os.O_CREATE); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	// More than what is left of the log's last page.
	if err := add(dir, content{Files: map[string]file{"/large": {Data: make([]byte, 8<<10)}}}, 0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write to a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := add(dir, content{Files: map[string]file{"/small": {Data: []byte("x")}}}, 0); err != nil {
		t.Error(err)
	}
	sum, err := load(dir)
	if err != nil || sum.State.BootID != "b" || len(sum.Files) != 1 || string(sum.Files["/small"].Data) != "x" {
		t.Errorf("%+v, %v", sum, err)
	}
}
