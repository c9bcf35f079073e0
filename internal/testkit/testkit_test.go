package testkit

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestCount(t *testing.T) {
	for _, tt := range []struct {
		env  string
		want int
	}{{"", 10}, {"0", 10}, {"1", 1000}} {
		t.Setenv(SoakEnv, tt.env)
		if got := Count(10, 1000); got != tt.want {
			t.Errorf("%s=%q: %d, want %d", SoakEnv, tt.env, got, tt.want)
		}
	}
}

func TestAddedFDs(t *testing.T) {
	before := FDs(t)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	left := added(before, FDs(t))
	if len(left) != 1 || !strings.HasSuffix(left[0], " /dev/null") {
		t.Errorf("left = %q, want one /dev/null", left)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if left := added(before, FDs(t)); len(left) != 0 {
		t.Errorf("left after close = %q", left)
	}
}

// recorder notes failures in place of failing.
type recorder struct {
	testing.TB
	cleanups []func()
	errors   int
}

func (r *recorder) Helper()               {}
func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(string, ...any) { r.errors++ }
func (r *recorder) Fatalf(string, ...any) { r.errors++ }

func TestLeaksSeesAGoroutine(t *testing.T) {
	r := &recorder{TB: t}
	leaks(r, time.Millisecond)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { <-stop; close(done) }()
	r.cleanups[0]()
	close(stop)
	<-done
	if r.errors != 1 {
		t.Errorf("errors = %d, want 1", r.errors)
	}
}

// A goroutine that a busy machine lets wait before it ends is no leak.
func TestLeaksWaitsForAGoroutineThatEnds(t *testing.T) {
	r := &recorder{TB: t}
	leaks(r, time.Minute)
	stop := make(chan struct{})
	go func() { <-stop }()
	defer time.AfterFunc(time.Second, func() { close(stop) }).Stop()
	r.cleanups[0]()
	if r.errors != 0 {
		t.Errorf("errors = %d, want 0", r.errors)
	}
}

type tests func() int

func (t tests) Run() int { return t() }

func TestLeaklessKeepsTheCodeOfTheTests(t *testing.T) {
	for _, code := range []int{0, 3} {
		if got := (Leakless{tests(func() int { return code })}).Run(); got != code {
			t.Errorf("code %d, want %d", got, code)
		}
	}
}

func TestLeaksIsQuietWhenNothingIsLeft(t *testing.T) {
	Leaks(t)
}

func TestEventually(t *testing.T) {
	n := 0
	Eventually(t, time.Minute, "three looks", func() bool { n++; return n == 3 })
	r := &recorder{TB: t}
	Eventually(r, time.Millisecond, "never", func() bool { return false })
	if r.errors != 1 {
		t.Errorf("errors = %d, want 1", r.errors)
	}
}

func TestPause(t *testing.T) {
	for look, want := range map[time.Duration]time.Duration{
		0: 5 * time.Millisecond, time.Millisecond: 5 * time.Millisecond, 40 * time.Millisecond: 120 * time.Millisecond, time.Minute: time.Second,
	} {
		if got := Pause(look); got != want {
			t.Errorf("after a look of %v: %v, want %v", look, got, want)
		}
	}
}
