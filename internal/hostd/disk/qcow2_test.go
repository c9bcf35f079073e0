package disk

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestOverlayIsWhatQemuImgExpects(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "base.raw")
	if err := os.WriteFile(base, []byte(strings.Repeat("base", 1<<18)), 0o444); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{1 << 20, 10 << 30, 600 << 30, MaxSize} {
		path := filepath.Join(dir, "disk.qcow2")
		f, err := CreateOverlay(path, base, size)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		qemuImg(t, "check", "-q", path)
		var info struct {
			VirtualSize int64  `json:"virtual-size"`
			Format      string `json:"format"`
			Backing     string `json:"full-backing-filename"`
			BackFormat  string `json:"backing-filename-format"`
		}
		if err := json.Unmarshal(qemuImg(t, "info", "--output=json", path), &info); err != nil {
			t.Fatal(err)
		}
		if info.VirtualSize != size || info.Format != "qcow2" || info.Backing != base || info.BackFormat != "raw" {
			t.Errorf("size %d: qemu-img sees %+v", size, info)
		}
		qemuImg(t, "bench", "-q", "-w", "-c", "10", "-s", "65536", "-o", "4096", path)
		qemuImg(t, "check", "-q", path)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(base); err != nil || string(b[:8]) != "basebase" {
		t.Error("the backing file was written to")
	}
}

func TestOverlayReadsItsBackingFile(t *testing.T) {
	dir := t.TempDir()
	base, path, out := filepath.Join(dir, "base.raw"), filepath.Join(dir, "d.qcow2"), filepath.Join(dir, "out.raw")
	if err := os.WriteFile(base, []byte(strings.Repeat("0123456789abcdef", 4096)), 0o444); err != nil {
		t.Fatal(err)
	}
	f, err := CreateOverlay(path, base, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	qemuImg(t, "convert", "-O", "raw", path, out)
	b, err := os.ReadFile(out)
	if err != nil || len(b) != 1<<20 || string(b[:16]) != "0123456789abcdef" || b[1<<16] != 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func qemuImg(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.Command("qemu-img", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img %s: %v: %s", args[0], err, out)
	}
	return out
}

func TestBadOverlays(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		backing string
		size    int64
	}{
		"zero":     {"/b", 0},
		"negative": {"/b", -512},
		"odd":      {"/b", 1000},
		"too big":  {"/b", MaxSize + 512},
		"relative": {"b", 1 << 20},
		"long":     {"/" + strings.Repeat("x", maxBacking), 1 << 20},
	} {
		if _, err := CreateOverlay(filepath.Join(dir, "d"), c.backing, c.size); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
	full := filepath.Join(dir, "full")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateOverlay(full, "/b", 1<<20); err == nil {
		t.Error("an existing file was taken")
	}
}
