package renew

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
)

type kernel struct {
	reseeded int
	hostname string
	fail     string
}

var errBroken = errors.New("broken")

func (k *kernel) broken(what string) error {
	if k.fail == what {
		return errBroken
	}
	return nil
}

func (k *kernel) Reseed(e []byte) error { k.reseeded = len(e); return k.broken(fleet.RenewedRNG) }
func (k *kernel) SetClock(time.Time) (time.Duration, error) {
	return time.Hour, k.broken(fleet.RenewedClock)
}
func (k *kernel) SetHostname(n string) error    { k.hostname = n; return k.broken(fleet.RenewedHostname) }
func (k *kernel) FirstAddress() (string, error) { return "10.0.0.9/30", nil }
func (k *kernel) Addresses() ([]string, error) {
	return []string{"10.0.0.2/30"}, k.broken(fleet.RenewedNetwork)
}

// parent is a root that another machine has lived in.
func parent(t *testing.T) (Machine, *kernel) {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/hostname": "old\n", "etc/hosts": "127.0.0.1\tlocalhost\n127.0.1.1\told\n", "etc/machine-id": "old-id\n",
		"etc/ssh/ssh_host_ed25519_key": "old key", "etc/ssh/ssh_host_ed25519_key.pub": "old public", "etc/ssh/ssh_host_xmss_key": "old",
		"var/lib/systemd/random-seed": "old seed", "fuse/auth-token": "the-old-token", "fuse/tls/key.pem": "old key", "fuse/secrets.json": `{"A":"the-old-secret"}`,
		"etc/fuse/egress.env": "OLD=1", "etc/fuse/rotated.json": "{}",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := &kernel{}
	m := Machine{Root: root, Kernel: k}
	if err := m.Sign("old-id"); err != nil {
		t.Fatal(err)
	}
	return m, k
}

func ask(cause string) Request {
	return Request{
		Generation: "g-1", Cause: cause, Entropy: make([]byte, 64), Now: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Hostname: "new", MachineID: strings.Repeat("ab", 16), Address: "10.0.0.2/30",
		SSHKeys: map[string]Key{"ed25519": {Private: []byte("new key"), Public: []byte("new public")}},
	}
}

// tree reads all files below root.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		out[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNothingOfTheParentIsLeft(t *testing.T) {
	m, k := parent(t)
	done, set, err := m.Do(t.Context(), ask(fleet.ThawFork))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range done {
		names = append(names, r.Name)
	}
	if diff := cmp.Diff(fleet.CertificateNames[:9], names); diff != "" {
		t.Error(diff)
	}
	if set != time.Hour || k.reseeded != 64 || k.hostname != "new" {
		t.Errorf("%v %+v", set, k)
	}
	got := tree(t, m.Root)
	if len(got["var/lib/systemd/random-seed"]) != seedSize {
		t.Error("the random seed was not replaced")
	}
	delete(got, "var/lib/systemd/random-seed")
	want := map[string]string{
		"etc/hostname": "new\n", "etc/hosts": "127.0.0.1\tlocalhost\n127.0.1.1\tnew\n", "etc/machine-id": strings.Repeat("ab", 16) + "\n",
		"etc/ssh/ssh_host_ed25519_key": "new key", "etc/ssh/ssh_host_ed25519_key.pub": "new public",
		"etc/fuse/machine.json": `{"machine_id":"` + strings.Repeat("ab", 16) + "\"}\n", GenerationFile: "g-1\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheMachineItselfKeepsWhatIsItsOwn(t *testing.T) {
	m, _ := parent(t)
	before := tree(t, m.Root)
	if _, _, err := m.Do(t.Context(), Request{Generation: "g", Cause: fleet.ThawResume, Entropy: make([]byte, 64), Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	after := tree(t, m.Root)
	before[GenerationFile], before["var/lib/systemd/random-seed"] = "g\n", after["var/lib/systemd/random-seed"]
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}

// Each step that fails is named, and ends the renewal.
func TestAFailingStepEndsIt(t *testing.T) {
	for name, spoil := range map[string]func(*kernel, *Request, Machine){
		fleet.RenewedRNG:        func(_ *kernel, r *Request, _ Machine) { r.Entropy = r.Entropy[:MinEntropy-1] },
		fleet.RenewedClock:      func(_ *kernel, r *Request, _ Machine) { r.Now = time.Unix(0, 0) },
		fleet.RenewedNetwork:    func(_ *kernel, r *Request, _ Machine) { r.Address = "10.0.0.6/30" },
		fleet.RenewedHostname:   func(k *kernel, _ *Request, _ Machine) { k.fail = fleet.RenewedHostname },
		fleet.RenewedMachineID:  func(_ *kernel, r *Request, _ Machine) { r.MachineID = "" },
		fleet.RenewedGeneration: func(_ *kernel, _ *Request, m Machine) { _ = os.WriteFile(filepath.Join(m.Root, "run"), nil, 0o600) },
		fleet.RenewedSeed: func(_ *kernel, _ *Request, m Machine) {
			_ = os.RemoveAll(filepath.Join(m.Root, "var/lib/systemd/random-seed"))
			_ = os.MkdirAll(filepath.Join(m.Root, "var/lib/systemd/random-seed/x"), 0o700)
		},
		fleet.RenewedSSHKeys: func(_ *kernel, _ *Request, m Machine) {
			_ = os.Remove(filepath.Join(m.Root, "etc/ssh/ssh_host_xmss_key"))
			_ = os.MkdirAll(filepath.Join(m.Root, "etc/ssh/ssh_host_xmss_key/x"), 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, k := parent(t)
			r := ask(fleet.ThawFork)
			spoil(k, &r, m)
			done, _, err := m.Do(t.Context(), r)
			if err == nil || !strings.Contains(err.Error(), name) || done != nil {
				t.Errorf("done %v, error %v", done, err)
			}
		})
	}
}

func TestADiskThatWasAnothers(t *testing.T) {
	m, _ := parent(t)
	if copied, err := m.Copied("old-id"); copied || err != nil {
		t.Error("a machine's own disk counts as a copy")
	}
	copied, err := m.Copied("new-id")
	if !copied || err != nil {
		t.Fatal(copied, err)
	}
	done, late, err := m.Disk("new-id", "new")
	if err != nil || late != nil || len(done) != 3 {
		t.Fatal(done, err)
	}
	got := tree(t, m.Root)
	if k := got["etc/ssh/ssh_host_ed25519_key"]; !strings.Contains(k, "OPENSSH PRIVATE KEY") {
		t.Errorf("the host key is %q", k)
	}
	for _, name := range []string{"etc/ssh/ssh_host_xmss_key", "etc/fuse/egress.env", "etc/fuse/rotated.json"} {
		if _, there := got[name]; there {
			t.Errorf("%s is left", name)
		}
	}
	if copied, err := m.Copied("new-id"); copied || err != nil {
		t.Error("the disk was not signed")
	}
	if copied, err := (Machine{Root: t.TempDir()}).Copied("x"); copied || err != nil {
		t.Error("an image counts as a copy")
	}
}

// Whatever a guest put in the place of its signature, a copy of its disk is known
// for one, and signed anew; what the guest's led to stays as it was.
func TestASignatureOfTheGuestsOwn(t *testing.T) {
	for name, put := range map[string]func(path, other string) error{
		"none of ours": func(path, _ string) error { return os.WriteFile(path, []byte("mine"), 0o644) },
		"large": func(path, _ string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40))
		},
		"a link":      func(path, other string) error { return os.Symlink(other, path) },
		"endless":     func(path, _ string) error { return os.Symlink("/dev/zero", path) },
		"a pipe":      func(path, _ string) error { return unix.Mkfifo(path, 0o644) },
		"a directory": func(path, _ string) error { return os.MkdirAll(path+"/below", 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := parent(t)
			path, other := m.path(signFile), m.path("other")
			err := errors.Join(os.Remove(path), os.WriteFile(other, []byte(`{"machine_id":"new-id"}`), 0o644), put(path, other))
			if err != nil {
				t.Fatal(err)
			}
			if copied, err := m.Copied("new-id"); !copied || err != nil {
				t.Errorf("copied %v, %v", copied, err)
			}
			if _, _, err := m.Disk("new-id", "new"); err != nil {
				t.Fatal(err)
			}
			if copied, err := m.Copied("new-id"); copied || err != nil {
				t.Errorf("signed: copied %v, %v", copied, err)
			}
			info, err := os.Lstat(path)
			if b, err2 := os.ReadFile(other); err != nil || info.Size() > 100 || err2 != nil || string(b) != `{"machine_id":"new-id"}` {
				t.Errorf("%v %v, and beside it %q %v", info, err, b, err2)
			}
		})
	}
}

// A file with another name shows what became of its content.
func TestWipeOverwritesAllOfAFile(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{0, 1, wipeChunk, 2*wipeChunk + 7} {
		path, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		if err := errors.Join(os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600), os.Link(path, other), Wipe(path)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(other); err != nil || !bytes.Equal(b, make([]byte, size)) {
			t.Errorf("%d bytes: something is left", size)
		}
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWipeFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := errors.Join(os.WriteFile(outside, []byte("x"), 0o600), os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	if err := Wipe(filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "x" {
		t.Error(err, string(b))
	}
}

// Services in images of their own go on: their roots are mounted below /fuse, and
// nothing there is wiped.
func TestWhatServicesRunInStays(t *testing.T) {
	m, _ := parent(t)
	image := m.path("fuse/services/image-x")
	plan := m.path("fuse/services/db.json")
	elsewhere := m.path("fuse/mounted")
	if err := errors.Join(os.MkdirAll(image, 0o700), os.MkdirAll(elsewhere, 0o700), os.WriteFile(plan, []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{image, elsewhere} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("the image's"), 0o400); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := m.Do(t.Context(), ask(fleet.ThawFork)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{plan, filepath.Join(image, "file"), filepath.Join(elsewhere, "file")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(m.path("fuse/auth-token")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the parent's token: %v", err)
	}
}
