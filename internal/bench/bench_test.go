package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestPercentiles(t *testing.T) {
	times := make([]time.Duration, 0, 200)
	for i := range 200 {
		times = append(times, time.Duration(200-i)*time.Millisecond)
	}
	l := summarize(times, 4*time.Second)
	want := Latency{N: 200, P50: 101 * time.Millisecond, P99: 199 * time.Millisecond, Max: 200 * time.Millisecond, Wall: 4 * time.Second}
	if l != want || l.Rate() != 50 {
		t.Errorf("%+v at %v/s, want %+v at 50/s", l, l.Rate(), want)
	}
	if l := summarize(nil, time.Second); l.Rate() != 0 || l.N != 0 {
		t.Errorf("nothing gave %+v", l)
	}
}

func TestEachCallsEveryOneOnceAndStopsAtAnError(t *testing.T) {
	var seen [100]atomic.Int32
	l, err := Each(t.Context(), len(seen), 7, func(_ context.Context, i int) error {
		seen[i].Add(1)
		return nil
	})
	if err != nil || l.N != len(seen) {
		t.Fatalf("%+v, %v", l, err)
	}
	for i := range seen {
		if n := seen[i].Load(); n != 1 {
			t.Errorf("call %d ran %d times", i, n)
		}
	}
	broken := errors.New("broken")
	var ran atomic.Int32
	_, err = Each(t.Context(), 1000, 1, func(context.Context, int) error {
		if ran.Add(1) == 3 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) || ran.Load() != 3 {
		t.Errorf("%d ran, %v", ran.Load(), err)
	}
}

func TestTheListingIsWalkedToItsEnd(t *testing.T) {
	pages := map[string]string{
		"":  `{"environments":[{"uid":"a"},{"uid":"b"}],"next_cursor":"x"}`,
		"x": `{"environments":[{"uid":"c"}]}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			t.Error("a request without the token")
		}
		fmt.Fprint(w, pages[r.URL.Query().Get("cursor")])
	}))
	defer srv.Close()
	target := Target{Base: srv.URL, Token: "t", Client: srv.Client()}
	if n, err := target.ListAll(t.Context()); err != nil || n != 3 {
		t.Errorf("%d rows, %v", n, err)
	}
	pages["x"] = pages[""]
	if _, err := target.ListAll(t.Context()); !errors.Is(err, errCursor) {
		t.Errorf("a cursor that repeats gave %v", err)
	}
}

func TestUsageOfThisProcess(t *testing.T) {
	began := time.Now()
	u, err := ProcessUsage("self", os.Getpid())
	for x := 1; err == nil && u.CPU < clockTick && time.Since(began) < time.Minute; x++ { // a busy machine gives little
		_ = slices.Repeat([]byte{byte(x)}, 1<<16)
		u, err = ProcessUsage("self", os.Getpid())
	}
	if err != nil || u.RSS < 1<<20 || u.Peak < u.RSS/2 || u.CPU < clockTick || u.CPU > time.Hour {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := ProcessUsage("none", 1<<30); err == nil {
		t.Error("a process that is not there has a usage")
	}
}

func TestCPUTimeIsReadBehindAnyName(t *testing.T) {
	stat := "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 150 25 7 8 20 0 9 0"
	if d, err := statCPU([]byte(stat)); err != nil || d != 1750*time.Millisecond {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := statCPU([]byte("42 (a) S 1")); err == nil {
		t.Error("a short line was read")
	}
}

func TestMetricsAreRead(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# HELP x y\nprocess_resident_memory_bytes 1.048576e+08\nprocess_resident_memory_bytes_x 3\nprocess_cpu_seconds_total 1.5\n")
	}))
	defer srv.Close()
	u, err := Target{Base: srv.URL, Client: srv.Client()}.MetricsUsage(t.Context())
	if err != nil || len(u) != 1 || u[0].RSS != 100<<20 || u[0].CPU != 1500*time.Millisecond {
		t.Errorf("%+v, %v", u, err)
	}
	if text := describe(u); text != "server 100 MB" {
		t.Errorf("%q", text)
	}
	after := []Usage{{Process: "server", CPU: 2500 * time.Millisecond}}
	if text := spent(u, after, 1000); strings.TrimSpace(text) != "server 1.00 ms" {
		t.Errorf("%q", text)
	}
}
