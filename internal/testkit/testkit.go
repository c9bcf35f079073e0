// Package testkit is what tests of many packages share: how long a long loop
// is in this run, what a test may leave behind (nothing), and waiting for
// something real to happen without sleeping. Only tests import it.
package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// SoakEnv makes long loops run with their full counts when it is "1".
const SoakEnv = "FUSE_SOAK"

// Count is how often a loop runs: short in an ordinary run, long in a soak.
func Count(short, long int) int {
	if os.Getenv(SoakEnv) == "1" {
		return long
	}
	return short
}

// Main is the body of a TestMain: it runs the tests and fails the package if
// they leave goroutines behind.
func Main(m *testing.M) { os.Exit(Leakless{m}.Run()) }

// Leakless is what Main runs, for a TestMain that has more to do.
type Leakless struct{ Tests interface{ Run() int } }

// Run runs the tests and returns the code to exit with.
func (l Leakless) Run() int {
	code := l.Tests.Run()
	if code != 0 {
		return code
	}
	if err := gone(settle); err != nil {
		fmt.Fprintf(os.Stderr, "goroutines left: %v\n", err)
		return 1
	}
	return 0
}

// settle is how long goroutines and descriptors may take to disappear after
// the code that owned them has returned. A busy machine lets one wait for
// seconds before it runs its last instructions.
const settle = 30 * time.Second

// gone waits for the goroutines to end that options do not ignore.
func gone(within time.Duration, options ...goleak.Option) (err error) {
	wait(within, func() bool { err = goleak.Find(options...); return err == nil })
	return err
}

// Leaks fails the test if at its end it has more goroutines or other open
// file descriptors than now. Call it first, so that it looks last. It cannot
// be used in a parallel test.
func Leaks(t testing.TB) { leaks(t, settle) }

func leaks(t testing.TB, within time.Duration) {
	t.Helper()
	goroutines := goleak.IgnoreCurrent()
	before := FDs(t)
	t.Cleanup(func() {
		if err := gone(within, goroutines); err != nil {
			t.Errorf("goroutines left: %v", err)
		}
		var left []string
		if !wait(within, func() bool { left = added(before, FDs(t)); return len(left) == 0 }) {
			t.Errorf("file descriptors left: %s", strings.Join(left, ", "))
		}
	})
}

// FDs lists the open descriptors of this process as "number kind", without
// those that the runtime's poller and the listing itself use.
func FDs(t testing.TB) []string {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var fds []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || strings.HasPrefix(target, "/proc/") || strings.HasPrefix(target, "anon_inode:[event") {
			continue
		}
		fds = append(fds, fmt.Sprintf("%s %s", e.Name(), target))
	}
	return fds
}

// added is what after has and before has not.
func added(before, after []string) []string {
	return slices.DeleteFunc(slices.Clone(after), func(s string) bool { return slices.Contains(before, s) })
}

// Eventually fails the test if cond is not true within the given time. It is
// for real processes and sockets; loops of our own are tested in a synctest
// bubble instead.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	if !wait(within, cond) {
		t.Fatalf("not within %v: %s", within, what)
	}
}

func wait(within time.Duration, cond func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		began := time.Now()
		if cond() {
			return true
		}
		select {
		case <-deadline.C:
			return cond()
		case <-time.After(Pause(time.Since(began))):
		}
	}
}

// Pause is how long to wait after a look that took so long: whoever looks leaves
// three quarters of the time to what is waited for, which may need the processor.
func Pause(look time.Duration) time.Duration {
	return min(max(3*look, 5*time.Millisecond), time.Second)
}
