package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

func TestRecordsSurviveAndTheFirstExitCounts(t *testing.T) {
	dir := t.TempDir()
	if _, err := record.Read[guestRecord](dir, fileGuest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
	want := guestRecord{UID: "u", Token: "t", Port: 7}
	if err := record.Write(dir, fileGuest, want); err != nil {
		t.Fatal(err)
	}
	if got, err := record.Read[guestRecord](dir, fileGuest); err != nil || got != want {
		t.Errorf("read %+v, %v", got, err)
	}
	if st, err := os.Stat(filepath.Join(dir, fileGuest)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", st.Mode(), err)
	}
	first := fleet.ExitRecord{UID: "u", Cause: causePoweroff, At: time.Now().UTC().Truncate(0)}
	for _, e := range []fleet.ExitRecord{first, {UID: "u", Cause: causeExited}} {
		if got, err := recordExit(dir, e); err != nil || got.Cause != causePoweroff {
			t.Errorf("recorded %+v, %v", got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, fileExit), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := recordExit(dir, first); err == nil {
		t.Error("a damaged record was overwritten")
	}
}

func TestShapesOutOfBoundsAreRefused(t *testing.T) {
	ok := driver.VM{CPUs: 1, RamMB: 256, StorageGB: 1}
	if err := checkShape(ok); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*driver.VM){
		"no cpus":      func(v *driver.VM) { v.CPUs = 0 },
		"many cpus":    func(v *driver.VM) { v.CPUs = 256 },
		"negative ram": func(v *driver.VM) { v.RamMB = -1 },
		"too little":   func(v *driver.VM) { v.RamMB = 127 },
		"no disk":      func(v *driver.VM) { v.StorageGB = 0 },
		"absurd disk":  func(v *driver.VM) { v.StorageGB = 1 << 20 },
	} {
		vm := ok
		change(&vm)
		var fe *fleet.Error
		if err := checkShape(vm); !errors.As(err, &fe) || fe.Code != fleet.CodeInvalidArgument || fe.Details[fleet.DetailLimit] == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A guest that never answered is said to be so once.
func TestUnanswered(t *testing.T) {
	late := fmt.Errorf("ask the guest: %w", errBootTimeout)
	for _, c := range []struct {
		last error
		want string
	}{
		{nil, "the guest did not answer in time, which is 2m0s"},
		{late, "the guest did not answer in time, which is 2m0s"},
		{errors.New("refused"), "the guest did not answer in time, which is 2m0s (refused)"},
	} {
		if err := unanswered(2*time.Minute, c.last); err.Error() != c.want || !errors.Is(err, errBootTimeout) {
			t.Errorf("%v: %q, want %q", c.last, err, c.want)
		}
	}
}

// What is noted of a guest while its process ends is noted before the VM's files
// are removed.
func TestNothingIsNotedOfAVMThatIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &instance{done: make(chan struct{}), ctx: t.Context()}
		close(i.done)
		noted := false
		i.wg.Go(func() { <-time.After(3 * time.Second); noted = true })
		if err := i.settled(t.Context()); err != nil || !noted {
			t.Errorf("noted %v, %v", noted, err)
		}
	})
}

// A guest can say that it panicked whenever it likes, also while its machine is
// being taken hold of.
func TestAPanicWhileAMachineIsTakenHoldOf(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, fileQMP))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return // the test has failed
		}
		defer conn.Close()
		fmt.Fprintln(conn, `{"QMP":{}}`)
		asked := bufio.NewScanner(conn)
		for _, answer := range []string{`{}`, `{"name":"another"}`} {
			var c struct{ ID string }
			if !asked.Scan() || json.Unmarshal(asked.Bytes(), &c) != nil {
				return
			}
			fmt.Fprintf(conn, `{"return":%s,"id":%q}`+"\n"+`{"event":"GUEST_PANICKED","data":{}}`+"\n", answer, c.ID)
		}
		asked.Scan() // until it is let go
	}()
	defer func() { _ = l.Close(); <-served }()
	d := &Driver{log: slog.New(slog.DiscardHandler), cgroups: &cgroup.Manager{}}
	_, err = d.attach(t.Context(), driver.VM{UID: "u", Dir: dir}, &proc.Process{}, fileQMP, guestRecord{}, nil)
	if err == nil || !strings.Contains(err.Error(), `is "another"`) {
		t.Errorf("%v, want that it is another machine's", err)
	}
}
