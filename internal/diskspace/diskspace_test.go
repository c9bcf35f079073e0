package diskspace

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHolesTakeNothing(t *testing.T) {
	dir := t.TempDir()
	before := Used(dir)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(dir, "sub", "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	if err := sparse.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if _, err := sparse.WriteAt(make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := sparse.Sync(); err != nil {
		t.Fatal(err)
	}
	if used := Used(dir) - before; used < 1<<20 || used > 2<<20 {
		t.Errorf("a mebibyte with a hole takes %d bytes", used)
	}
	if used := Used(filepath.Join(dir, "none")); used != 0 {
		t.Errorf("nothing takes %d bytes", used)
	}
}

func TestFree(t *testing.T) {
	free, total, err := Free(t.TempDir())
	if err != nil || free <= 0 || total < free {
		t.Error(free, total, err)
	}
	if _, _, err := Free(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there has room")
	}
}
