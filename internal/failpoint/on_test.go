//go:build failpoints

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestErrorEveryHitAndOneHit(t *testing.T) {
	tab, err := parse("a=error|b@2=error")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true} {
		if got := tab.hit("a") != nil; got != want {
			t.Errorf("a, hit %d: error %v, want %v", i+1, got, want)
		}
	}
	for i, want := range []bool{false, true, false} {
		if got := tab.hit("b") != nil; got != want {
			t.Errorf("b, hit %d: error %v, want %v", i+1, got, want)
		}
	}
	if err := tab.hit("c"); err != nil {
		t.Errorf("a name that is not listed: %v", err)
	}
}

func TestPauseWaitsForRemoval(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p")
	tab, err := parse("a=pause(" + path + ")")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- tab.hit("a") }()
	for {
		if err := os.Remove(path); err == nil {
			break
		} else if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestExitIsAKill(t *testing.T) {
	if os.Getenv(Env) != "" {
		_ = Hit("die")
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestExitIsAKill$")
	cmd.Env = append(os.Environ(), Env+"=die=exit")
	err := cmd.Run()
	var ee *exec.ExitError
	if !errors.As(err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("ended with %v, want SIGKILL", err)
	}
}

func TestBadSpecsAreNamed(t *testing.T) {
	for _, spec := range []string{"a", "=error", "a=boom", "a=pause", "a=pause()", "a@0=error", "a@x=error", "a=exit(1)"} {
		if _, err := parse(spec); err == nil || !strings.Contains(err.Error(), Env) {
			t.Errorf("%q: %v, want an error that names %s", spec, err, Env)
		}
	}
}
