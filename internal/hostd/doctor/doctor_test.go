package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMeminfo(t *testing.T) {
	total, available, huge := meminfo(strings.NewReader("MemTotal:       16384000 kB\nMemFree: 1 kB\nMemAvailable:    8192000 kB\nHugePages_Free:       12\nnonsense\n"))
	if total != 16000 || available != 8000 || huge != 12 {
		t.Errorf("total %d, available %d, huge pages %d", total, available, huge)
	}
}

func TestWorst(t *testing.T) {
	for _, tt := range []struct {
		levels []Level
		want   Level
	}{
		{nil, OK},
		{[]Level{OK, OK}, OK},
		{[]Level{OK, Warn, OK}, Warn},
		{[]Level{Fail, Warn, OK}, Fail},
		{[]Level{Warn, Fail}, Fail},
	} {
		var all []Finding
		for _, l := range tt.levels {
			all = append(all, Finding{Level: l})
		}
		if got := Worst(all); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.levels, got, tt.want)
		}
	}
}

// TestMachine looks at this machine, on which the tests of hosts pass.
func TestMachine(t *testing.T) {
	dir := t.TempDir()
	checks := Machine(filepath.Join(dir, "not", "there"), "127.0.0.1:0")
	var order []string
	for _, f := range Run(t.Context(), checks, func(f Finding) { order = append(order, f.Check) }) {
		if f.Level == Fail || f.Detail == "" || f.Level != OK && f.Remedy == "" {
			t.Errorf("%+v", f)
		}
	}
	want := []string{"root", "tools", "kernel", "cgroups", "docker", "memory", "disk", "files", "clock", "port"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := Run(ended, checks, func(Finding) {}); len(got) != 0 {
		t.Errorf("checks after the end: %v", got)
	}
}

func TestLiveSnapshots(t *testing.T) {
	lent := errors.New("vm.unprivileged_userfaultfd is 0 and cannot be lent")
	for _, tt := range []struct {
		err          error
		want         Level
		says, remedy string
	}{
		{nil, OK, "milliseconds", ""},
		{lent, Warn, "cannot be lent: a live snapshot stops", "vm.unprivileged_userfaultfd=1"},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, Warn, "no userfaultfd", "CONFIG_USERFAULTFD"},
	} {
		got := Run(t.Context(), []Check{LiveSnapshots(func() error { return tt.err })}, func(Finding) {})
		if len(got) != 1 || got[0].Level != tt.want || !strings.Contains(got[0].Detail, tt.says) || !strings.Contains(got[0].Remedy, tt.remedy) {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
}

func TestPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for listen, want := range map[string]Level{
		l.Addr().String():  Warn, // somebody answers there
		"127.0.0.1:0":      OK,
		"192.0.2.1:80":     Fail, // not this machine's
		"127.0.0.1:999999": Fail,
	} {
		if f := port(t.Context(), listen); f.Level != want {
			t.Errorf("%s: %+v, want %s", listen, f, want)
		}
	}
}

func TestReach(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {})
	alive, other := httptest.NewServer(mux), httptest.NewServer(http.NotFoundHandler())
	defer alive.Close()
	defer other.Close()
	closed := httptest.NewServer(mux)
	closed.Close()
	for _, tt := range []struct {
		url, says string
		level     Level
	}{
		{alive.URL, "answers in", OK},
		{alive.URL + "/", "answers in", OK},
		{other.URL, "404", Fail},
		{closed.URL, "refused", Fail},
		{"http://nobody.invalid:80", "not known here", Fail},
		{"ftp://127.0.0.1", "not the URL", Fail},
		{"127.0.0.1:80", "not the URL", Fail},
	} {
		f := Reach("server", tt.url, http.DefaultClient).Run(t.Context())
		if f.Level != tt.level || !strings.Contains(f.Detail, tt.says) || f.Level != OK && f.Remedy == "" {
			t.Errorf("%s: %+v", tt.url, f)
		}
	}
	if f := Advertised(alive.URL, "https://fuse.example.com", http.DefaultClient).Run(t.Context()); f.Level != Fail || !strings.Contains(f.Remedy, "--advertise") {
		t.Errorf("a loopback address told to others: %+v", f)
	}
	if f := Advertised(alive.URL, alive.URL, http.DefaultClient).Run(t.Context()); f.Level != OK {
		t.Errorf("one machine: %+v", f)
	}
}

func TestPublished(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if f := Published("h1", address).Run(t.Context()); f.Level != OK || f.Remedy != "" {
		t.Errorf("served: %+v", f)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if f := Published("h1", address).Run(t.Context()); f.Level != Warn || !strings.Contains(f.Remedy, "0.0.0.0") {
		t.Errorf("refused: %+v", f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	<-ctx.Done()
	if f := Published("h1", address).Run(ctx); f.Level != Fail || !strings.Contains(f.Remedy, "--port-address") {
		t.Errorf("silent: %+v", f)
	}
}

// A port that a firewall drops must not hold the doctor up.
func TestReachIsBounded(t *testing.T) {
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer srv.Close()
	defer close(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if f := reach(ctx, srv.URL, http.DefaultClient); f.Level != Fail || !strings.Contains(f.Remedy, "firewall") {
		t.Errorf("%+v", f)
	}
}

func TestAccelerator(t *testing.T) {
	for _, tt := range []struct {
		accel, why string
		err        error
		want       Level
	}{
		{"kvm", "", nil, OK},
		{"tcg", "a guest does not boot", nil, Warn},
		{"", "", context.DeadlineExceeded, Fail},
	} {
		f := Accelerator(func(context.Context) (string, string, string, error) { return tt.accel, "7.2.22", tt.why, tt.err }).Run(t.Context())
		if f.Level != tt.want || !strings.Contains(f.Detail, tt.why) {
			t.Errorf("%+v: %+v", tt, f)
		}
	}
}
