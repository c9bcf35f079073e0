package kept

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
)

// machine is what a guest agent keeps in memory.
type machine struct {
	boot  string
	files map[string]string
	did   string
	down  bool
}

var errDown = errors.New("down")

func (m *machine) reboot(id string) { m.boot, m.files, m.did = id, map[string]string{}, "" }

func (m *machine) Info(context.Context) (fleet.GuestInfo, error) {
	if m.down {
		return fleet.GuestInfo{}, errDown
	}
	return fleet.GuestInfo{BootID: m.boot}, nil
}

func (m *machine) WriteFiles(_ context.Context, files []fleet.GuestFile) error {
	if m.down {
		return errDown
	}
	m.did += "write "
	for _, f := range files {
		m.files[f.Path] = string(f.Data)
	}
	return nil
}

func (m *machine) Drain(context.Context, string) (fleet.ExecStatus, error) {
	m.did += "drain "
	return fleet.ExecStatus{}, nil
}

func TestAGuestThatRebootedGetsItsFilesAgain(t *testing.T) {
	dir := t.TempDir()
	console := filepath.Join(dir, "console.log")
	m := &machine{}
	m.reboot("one")
	k := keeper{agent: m, dir: dir, lock: new(keylock.Lock)}
	again := func(want string) {
		t.Helper()
		if cause, err := k.again(t.Context(), console); err != nil || cause != want {
			t.Errorf("%q, %v, want %q", cause, err, want)
		}
	}
	again("")
	write := func(path, data string) {
		t.Helper()
		if err := k.writeFiles(t.Context(), []fleet.GuestFile{{Path: path, Data: []byte(data), Mode: 0o600}}); err != nil {
			t.Fatal(err)
		}
	}
	write("/fuse/secrets.json", "old")
	write("/fuse/secrets.json", "new")
	write("/root/mine", "on the disk")
	if st, err := os.Stat(filepath.Join(dir, File)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	m.did = ""
	again("")
	if m.did != "" {
		t.Errorf("without a reboot: %s", m.did)
	}

	m.reboot("two")
	m.down = true
	if _, err := k.again(t.Context(), console); !errors.Is(err, errDown) {
		t.Errorf("of a guest that does not answer: %v", err)
	}
	m.down = false
	again(CauseReboot)
	if m.files["/fuse/secrets.json"] != "new" || len(m.files) != 1 || m.did != "write " {
		t.Errorf("%v %s", m.files, m.did)
	}
	again("")

	// A drain holds over a reboot, and a panic is told from the console.
	if _, err := k.drain(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	m.reboot("three")
	if err := os.WriteFile(console, []byte("msg=ready\nKernel panic - not syncing: sysrq\n[0.0] Linux\nmsg=ready\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again(CausePanic)
	if m.did != "drain write " {
		t.Error(m.did)
	}
	m.reboot("four")
	if err := os.WriteFile(console, []byte("Kernel panic - not syncing: sysrq\nmsg=ready\nrestarting\nmsg=ready\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again(CauseReboot)
	if r, err := k.load(); err != nil || len(r.Boots) != 3 || r.Boots[1].Cause != CausePanic || r.BootID != "four" {
		t.Errorf("%+v, %v", r, err)
	}

	// A kernel that says so itself is believed at once, and told once.
	m.down = true
	for range 2 {
		if err := k.panicked(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if told, err := Reboots(dir); err != nil || len(told) != 4 || told[3].Cause != CausePanic {
		t.Errorf("before it is back: %+v, %v", told, err)
	}
	m.down = false
	m.reboot("five")
	again(CausePanic)
	m.reboot("six")
	again(CauseReboot)
	if r, err := k.load(); err != nil || len(r.Boots) != 5 || r.Boots[4].Cause != CauseReboot || r.Panic || r.BootID != "six" {
		t.Errorf("%+v, %v", r, err)
	}
}
