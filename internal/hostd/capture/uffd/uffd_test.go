package uffd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// lender is one of a setting that is a file.
func lender(t *testing.T, value string) (l Lender, get func() string) {
	t.Helper()
	dir := t.TempDir()
	l = Lender{filepath.Join(dir, "setting"), filepath.Join(dir, "note")}
	if err := os.WriteFile(l.setting, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return l, func() string {
		b, err := os.ReadFile(l.setting)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
}

func TestTheSettingIsLentAndPutBack(t *testing.T) {
	testkit.Leaks(t)
	l, get := lender(t, "0")
	for range 2 {
		back, err := l.Lend(t.Context())
		if err != nil || get() != "1" {
			t.Fatalf("lent: %s, %v", get(), err)
		}
		second, err := l.Lend(t.Context()) // waits for nobody
		if err != nil {
			t.Fatal(err)
		}
		if err := back(); err != nil || get() != "1" {
			t.Errorf("one of two is done: %s, %v", get(), err)
		}
		if err := second(); err != nil || get() != "0" {
			t.Errorf("put back: %s, %v", get(), err)
		}
	}
}

func TestASettingThatIsOnStaysOn(t *testing.T) {
	l, get := lender(t, "1")
	back, err := l.Lend(t.Context())
	if err != nil || get() != "1" {
		t.Fatal(get(), err)
	}
	if err := back(); err != nil || get() != "1" {
		t.Error(get(), err)
	}
}

// TestALenderThatDiedIsMadeUpFor leaves a setting as a killed lender does.
func TestALenderThatDiedIsMadeUpFor(t *testing.T) {
	l, get := lender(t, "1")
	if err := os.WriteFile(l.note, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	back, err := l.Lend(t.Context())
	if err != nil || get() != "1" {
		t.Fatal(get(), err)
	}
	if err := back(); err != nil || get() != "0" {
		t.Error(get(), err)
	}
}

func TestALenderThatDiedIsSettledAtTheNextStart(t *testing.T) {
	testkit.Leaks(t)
	l, get := lender(t, "1")
	if err := l.Settle(); err != nil || get() != "1" {
		t.Errorf("nobody died: %s, %v", get(), err)
	}
	if err := os.WriteFile(l.note, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Settle(); err != nil || get() != "0" {
		t.Errorf("%s, %v", get(), err)
	}
	back, err := l.Lend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Settle(); err != nil || get() != "1" {
		t.Errorf("while it is lent: %s, %v", get(), err)
	}
	if err := back(); err != nil || get() != "0" {
		t.Errorf("%s, %v", get(), err)
	}
}

// What another user noted is that one's to settle, and no trouble of this one.
func TestTheNoteOfAnotherUserIsLeftAlone(t *testing.T) {
	l, get := lender(t, "1")
	if err := os.WriteFile(l.note, []byte("0\n"), 0); err != nil {
		t.Fatal(err)
	}
	settled := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this function
		if os.Geteuid() == 0 {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); errno != 0 {
				settled <- errno
				return
			}
		}
		settled <- l.Settle()
	}()
	if err := <-settled; err != nil {
		t.Error(err)
	}
	if get() != "1" {
		t.Errorf("the setting is %s", get())
	}
}

// TestALenderWaitsWhileTheSettingIsPutBack holds the lock of one that does.
func TestALenderWaitsWhileTheSettingIsPutBack(t *testing.T) {
	testkit.Leaks(t)
	l, _ := lender(t, "0")
	f, err := os.Create(l.note)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lend(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it did not wait: %v", err)
	}
}

func TestManyLendersAtOnce(t *testing.T) {
	testkit.Leaks(t)
	l, get := lender(t, "0")
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				back, err := l.Lend(t.Context())
				if err != nil || get() != "1" {
					t.Errorf("lent: %v", err)
					return
				}
				if err := back(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if get() != "0" {
		t.Error("it stayed on")
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	l, _ := lender(t, "0")
	if err := l.Works(); err != nil {
		t.Error(err)
	}
	l.setting += ".none"
	if err := l.Works(); err == nil {
		t.Error("without the setting it is said to work")
	}
	if _, err := l.Lend(t.Context()); err == nil {
		t.Error("lent what is not there")
	}
}
