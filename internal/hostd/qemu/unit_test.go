package qemu

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright": "7.2.22",
		"QEMU emulator version 10.0.2":                                           "10.0.2",
		"QEMU emulator version 7.1.9":                                            "",
		"QEMU emulator version 2.12.0":                                           "",
		"sh: not found":                                                          "",
		"":                                                                       "",
	} {
		got, err := parseVersion(in)
		if got != want || (err == nil) != (want != "") || (err != nil && fleet.CodeOf(err) != fleet.CodeUnavailable) {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

func TestRecordsSurviveAndTheFirstExitCounts(t *testing.T) {
	dir := t.TempDir()
	if _, err := readRecord[guestRecord](dir, fileGuest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
	want := guestRecord{UID: "u", Token: "t", Port: 7}
	if err := writeRecord(dir, fileGuest, want); err != nil {
		t.Fatal(err)
	}
	if got, err := readRecord[guestRecord](dir, fileGuest); err != nil || got != want {
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

func TestHedgedConnects(t *testing.T) {
	refused := errors.New("connection refused")
	for name, c := range map[string]struct {
		silentFor, refusesFor time.Duration // from the start
		answer                time.Duration // how long a packet takes to be answered
		within                time.Duration
	}{
		"a guest that is up":      {0, 0, time.Millisecond, 2 * time.Millisecond},
		"one that refuses first":  {0, 300 * time.Millisecond, time.Millisecond, 320 * time.Millisecond},
		"one that is silent":      {3 * time.Second, 0, time.Millisecond, 3*time.Second + 100*time.Millisecond},
		"one that is very slow":   {8 * time.Second, 0, time.Second, 10 * time.Second},
		"silent, then it refuses": {time.Second, 2 * time.Second, time.Millisecond, 2*time.Second + 100*time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			var open, most atomic.Int32
			dial := func(ctx context.Context) (net.Conn, error) {
				most.Store(max(most.Load(), open.Add(1)))
				defer open.Add(-1)
				if time.Since(begun) < c.silentFor {
					<-ctx.Done() // the packet is lost
					return nil, ctx.Err()
				}
				select {
				case <-time.After(c.answer):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				if time.Since(begun) < c.refusesFor {
					return nil, refused
				}
				a, b := net.Pipe()
				b.Close()
				return a, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			conn, err := hedged(ctx, dial)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			conn.Close()
			if took := time.Since(begun); took > c.within {
				t.Errorf("%s: connected after %v, want %v at most", name, took, c.within)
			}
			if most.Load() > 2+attempts {
				t.Errorf("%s: %d attempts at a time", name, most.Load())
			}
		})
	}
}

func TestHedgedGivesUpWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		refused := errors.New("connection refused")
		_, err := hedged(ctx, func(context.Context) (net.Conn, error) { return nil, refused })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, refused) {
			t.Errorf("%v", err)
		}
	})
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
