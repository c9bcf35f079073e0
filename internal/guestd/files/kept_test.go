package files

import (
	"os"
	"slices"
	"testing"
)

// What is kept below a directory is known, or nothing is unpacked there.
func TestKeptBelow(t *testing.T) {
	top := t.TempDir()
	dir, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	own := kept{top + "/fuse", top + "/etc/fuse", top + "-beside", "/fuse"}
	if out, err := own.below(dir); err != nil || !slices.Equal(out, []string{"fuse", "etc/fuse"}) {
		t.Errorf("%q, %v", out, err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := own.below(dir); err == nil {
		t.Errorf("where nobody can look there is %q", out)
	}
}
