package manifest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/sparse"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/svcdisk"
)

// write makes a live capture with two layers.
func write(t *testing.T) (driver.Artifact, Manifest) {
	t.Helper()
	a := driver.Artifact{ID: "snap", Dir: t.TempDir()}
	sum := func(name, text string) sparse.Content {
		path := filepath.Join(a.Dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c, err := sparse.Read(t.Context(), f, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	m := Manifest{ImageDigest: "image", DiskSize: 1 << 30, ThawKey: "key"}
	m.SnapshotInfo = driver.SnapshotInfo{ID: a.ID, Kind: fleet.SnapshotKindLive, Source: driver.VM{UID: "u", CPUs: 1, RamMB: 256}, TakenAt: Taken()}
	m.Disk = []chain.Layer{{Number: 0, Digest: sum(chain.File(0), "lower").Digest}, {Number: 2, Digest: sum(chain.File(2), "upper").Digest}}
	m.Base = sum(Base, "image").Digest
	m.Services = []Service{{BootServiceImage: guestwire.BootServiceImage{Name: "svc", Serial: "serial"}, Digest: sum(svcdisk.File(0), "service").Digest}}
	m.MemorySum, m.DevicesSum = sum(Memory, "memory"), sum(Devices, "devices")
	m.Digest = m.Sum()
	if err := m.Write(a.Dir); err != nil {
		t.Fatal(err)
	}
	return a, m
}

func TestWhatIsReadIsWhatWasWritten(t *testing.T) {
	a, m := write(t)
	got, err := Read(a)
	if err != nil || got.Digest != m.Digest || got.ThawKey != "key" || len(got.Disk) != 2 || !got.Live() {
		t.Errorf("%+v, %v", got, err)
	}
	var c Checker
	for _, anew := range []bool{false, true} {
		if err := c.Verify(t.Context(), a, got, anew); err != nil {
			t.Error(err)
		}
	}
	if st, err := os.Stat(filepath.Join(a.Dir, File)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := Read(driver.Artifact{ID: "none", Dir: t.TempDir()}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for range 2 {
		if err := Remove(a.Dir); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(a.Dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestWhatIsDamagedIsCondemned spoils each file in turn, in each way, and finds
// it out whether or not it was looked at before.
func TestWhatIsDamagedIsCondemned(t *testing.T) {
	for _, name := range []string{File, Base, svcdisk.File(0), chain.File(0), chain.File(2), Memory, Devices} {
		for how, spoil := range map[string]func(path string, b []byte) error{
			"changed": func(path string, b []byte) error {
				b[len(b)/2] ^= 0x20
				return os.WriteFile(path, b, 0o600)
			},
			"cut":   func(path string, b []byte) error { return os.WriteFile(path, b[:len(b)-2], 0o600) },
			"empty": func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) },
			"gone":  func(path string, _ []byte) error { return os.Remove(path) },
		} {
			if name == File && how == "gone" {
				continue // then there is no capture
			}
			a, m := write(t)
			var c Checker
			if err := c.Verify(t.Context(), a, m, true); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(a.Dir, name)
			b, err := os.ReadFile(path)
			if err == nil {
				err = spoil(path, b)
			}
			if err != nil {
				t.Fatal(err)
			}
			if m, err = Read(a); err == nil {
				err = c.Verify(t.Context(), a, m, name == Memory)
			}
			var damaged *driver.DamagedError
			if !errors.As(err, &damaged) || damaged.ID != a.ID || damaged.Why == "" {
				t.Errorf("%s %s: %v", name, how, err)
			}
			if _, err := Read(a); !errors.As(err, &damaged) || damaged.Why == "" {
				t.Errorf("%s %s, later: %v", name, how, err)
			}
		}
	}
}

// A change shows also where the file's time does not move with it, as within one
// step of the kernel's clock.
func TestAChangeAtTheSameTimeShows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	now := time.Now().Add(time.Hour) // not past yet, however long this takes
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, now, now)); err != nil {
			t.Fatal(err)
		}
	}
	write("before")
	var c Checker
	digest, err := c.Digest(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(t.Context(), path, digest, false); err != nil {
		t.Error(err)
	}
	write("behind")
	var other *MismatchError
	if err := c.Check(t.Context(), path, digest, false); !errors.As(err, &other) {
		t.Errorf("another content of the same size and time: %v", err)
	}
	if now := time.Now().Add(-time.Hour); os.Chtimes(path, now, now) != nil {
		t.Fatal("the file's time cannot be set")
	}
	if _, err := c.Digest(t.Context(), path); err != nil || len(c.known) != 1 {
		t.Errorf("what has settled is not remembered: %v, %v", c.known, err)
	}
}

func TestACheckThatCouldNotBeMadeCondemnsNothing(t *testing.T) {
	a, m := write(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var c Checker
	if err := c.Verify(ctx, a, m, true); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Read(a); err != nil {
		t.Error(err)
	}
}

func TestTheDigestIsOfTheWhole(t *testing.T) {
	_, m := write(t)
	seen := map[string]bool{m.Digest: true}
	for name, change := range map[string]func(*Manifest){
		"image": func(m *Manifest) { m.ImageDigest = "x" }, "size": func(m *Manifest) { m.DiskSize++ },
		"image's file": func(m *Manifest) { m.Base = "x" }, "service": func(m *Manifest) { m.Services = nil },
		"layer": func(m *Manifest) { m.Disk = m.Disk[:1] }, "memory": func(m *Manifest) { m.MemorySum.Digest = "x" },
		"devices": func(m *Manifest) { m.DevicesSum.Digest = "x" }, "kind": func(m *Manifest) { m.Kind = fleet.SnapshotKindDisk },
	} {
		other := m
		change(&other)
		if sum := other.Sum(); seen[sum] || !strings.HasPrefix(sum, "sha256:") {
			t.Errorf("another %s: %s", name, sum)
		} else {
			seen[sum] = true
		}
	}
}

// noStore has no image.
type noStore struct{ svcdisk.Store }

func (noStore) Get(name string) (image.Image, error) {
	return image.Image{}, fleet.Errorf(fleet.CodeInvalidArgument, "no image %s", name)
}

// A machine has the captured images of its services, whatever became of them in
// the store; another machine's disk may be given others.
func TestServicesAreAsCaptured(t *testing.T) {
	a, m := write(t)
	dir := t.TempDir()
	name := []string{m.Services[0].Name}
	set, err := m.ServiceSet(noStore{}, name)
	if err != nil || len(set.Boot()) != 1 || set.Boot()[0].Serial != m.Services[0].Serial {
		t.Errorf("%+v, %v", set, err)
	}
	for range 2 {
		if err := m.LinkServices(a.Dir, dir, name); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, svcdisk.File(0))); err != nil || string(text) != "service" {
		t.Errorf("linked %q, %v", text, err)
	}
	for _, live := range []bool{true, false} {
		if !live {
			m.Kind = fleet.SnapshotKindDisk
		}
		if _, err := m.ServiceSet(noStore{}, []string{"another"}); fleet.CodeOf(err) != fleet.CodeInvalidArgument || strings.Contains(err.Error(), "no image") == live {
			t.Errorf("live %v, another image: %v", live, err)
		}
		if err := m.LinkServices(a.Dir, t.TempDir(), []string{"another"}); err != nil {
			t.Error(err)
		}
	}
}
