package svcdisk

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/image"
)

// shelf is images as files of a directory.
type shelf struct{ dir string }

func (s shelf) Get(name string) (image.Image, error) {
	path := filepath.Join(s.dir, name)
	if _, err := os.Stat(path); err != nil {
		return image.Image{}, fleet.Errorf(fleet.CodeInvalidArgument, "no image %s", name)
	}
	return image.Image{Meta: image.Meta{Name: name, User: "u-" + name, Cmd: []string{name}}, Path: path}, nil
}

func (s shelf) Hold(img image.Image, path string) error { return os.Link(img.Path, path) }

func newShelf(t *testing.T, names ...string) shelf {
	t.Helper()
	s := shelf{t.TempDir()}
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(s.dir, n), []byte(n), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// What a VM has it keeps, whatever becomes of the store.
func TestAttachedImagesStay(t *testing.T) {
	s, dir := newShelf(t, "a", "b"), t.TempDir()
	names := []string{"b", "a"}
	for range 2 {
		files, err := Attach(s, dir, names)
		if err != nil || len(files) != 2 {
			t.Fatal(files, err)
		}
		for i, f := range files {
			text := make([]byte, 1)
			if _, err := f.ReadAt(text, 0); err != nil || string(text) != names[i] {
				t.Errorf("disk %d is %q, %v", i, text, err)
			}
			_ = f.Close()
		}
		if err := os.RemoveAll(s.dir); err != nil { // before the second time
			t.Fatal(err)
		}
	}
	if _, err := Attach(s, dir, append(names, "c")); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("one that is not there: %v", err)
	}
	entries, err := fs.Glob(os.DirFS(dir), "*")
	if err != nil || len(entries) != 2 || slices.ContainsFunc(entries, func(e string) bool { return !slices.Contains(Files(), e) }) {
		t.Errorf("in the VM's directory: %v, known are %v, %v", entries, Files(), err)
	}
}

func TestGuestAndQEMUHearOfTheSameDisks(t *testing.T) {
	set, err := Find(newShelf(t, "a", "b"), []string{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	boot, args := set.Boot(), strings.Join(Args([]int{12, 15}), " ")
	for i, b := range boot {
		if !strings.Contains(args, "serial="+b.Serial+",") || b.User != "u-"+b.Name || b.Name != []string{"b", "a"}[i] {
			t.Errorf("%+v in %s", b, args)
		}
	}
	if !strings.Contains(args, "fd=12,set=50") || !strings.Contains(args, "fd=15,set=51") || strings.Count(args, "read-only=on") != 4 {
		t.Error(args)
	}
	c := guestwire.BootConfig{
		VMID: "v", Hostname: "h", MachineID: strings.Repeat("0", 32), Token: "t", CertPEM: "c", KeyPEM: "k", LinkListen: "1:2", Services: boot,
	}
	if doc, err := c.Encode(); err != nil {
		t.Error(err)
	} else if back, err := guestwire.ParseBootConfig(doc); err != nil || len(back.Services) != 2 || back.Services[1].Cmd[0] != "a" {
		t.Errorf("%+v, %v", back.Services, err)
	}
	if c.Services[0].Serial = strings.Repeat("x", 21); c.Validate() == nil {
		t.Error("a serial that no disk can have")
	}
	many := make([]string, fleet.MaxServiceImages+1)
	if _, err := Find(shelf{}, many); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("too many: %v", err)
	}
	if set, err := Find(shelf{}, nil); err != nil || len(set.Boot()) != 0 || len(Args(nil)) != 0 {
		t.Errorf("none: %v", err)
	}
}
