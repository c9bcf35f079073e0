package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// TestAProcessLeadsAgain takes the lease away from a server several times: each
// time it takes its plane down, stands by, and leads anew, and nothing piles up.
func TestAProcessLeadsAgain(t *testing.T) {
	testkit.Leaks(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	d := datadir.Dir(t.TempDir())
	s := settingsFor(t, string(d))
	out := &testkit.Output{}
	ended := make(chan error, 1)
	go func() { ended <- runServer(ctx, s, "minimal", out) }()
	for round := 1; round <= testkit.Count(3, 30); round++ {
		testkit.Eventually(t, time.Minute, fmt.Sprint("the server leads for the ", round, ". time"), func() bool { return strings.Count(out.String(), "serving ") == round })
		if err := os.Remove(d.Path(plane.DatabaseFile + ".lock")); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, "the server gives up", func() bool { return strings.Count(out.String(), "control plane taken down") == round })
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// TestALostTermEndsEverythingAtOnce takes the database away from a server that
// waits for a slow host on behalf of one client and streams to another.
func TestALostTermEndsEverythingAtOnce(t *testing.T) {
	testkit.Leaks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	d := datadir.Dir(t.TempDir())
	hostToken := "0123456789abcdef"
	h, err := openHost(ctx, hostOptions{dir: d, driver: "sim", simSpec: "boot=10m", listen: "unix://" + d.Path("hostd.sock"), token: hostToken}, log)
	if err != nil {
		t.Fatal(err)
	}
	hostEnded := make(chan error, 1)
	hostCtx, stopHost := context.WithCancel(ctx)
	go func() { hostEnded <- h.run(hostCtx) }()
	defer func() {
		stopHost()
		<-hostEnded // what it was making is not made
	}()

	s := settingsFor(t, string(d))
	p, err := plane.New(ctx, plane.Config{Settings: s, Version: version, Image: "minimal", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	ready := make(chan string, 1)
	go func() { served <- p.Serve(ctx, func(url string) { ready <- url }) }()
	url := <-ready
	if _, err := p.Hosts.Register(ctx, hosts.RegisterRequest{ID: "h", URL: h.url, Token: hostToken, Owner: "master", Actor: fleet.ActorMaster}); err != nil {
		t.Fatal(err)
	}

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	begun := make(chan string, 2) // which answers have begun
	ask := func(method, path, body string, ended chan<- string) {
		r, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
		if err != nil {
			ended <- err.Error()
			return
		}
		r.Header.Set("Accept", "text/event-stream")
		resp, err := transport.RoundTrip(r)
		if err != nil {
			ended <- err.Error()
			return
		}
		defer resp.Body.Close()
		begun <- path
		raw, err := io.ReadAll(resp.Body)
		ended <- fmt.Sprint(resp.StatusCode, " ", string(raw), err)
	}
	create, stream := make(chan string, 1), make(chan string, 1)
	go ask(http.MethodGet, "/v1/events", "", stream)
	select {
	case <-begun:
	case got := <-stream:
		t.Fatalf("the stream was answered with %s", got)
	}
	go ask(http.MethodPost, "/v1/environments", `{"task_id":"slow","spec":{"cpus":1,"ram_mb":64,"storage_gb":1}}`, create)
	testkit.Eventually(t, time.Minute, "the create is at work", func() bool {
		n := 0
		_ = p.Store.View(func(tx *state.ReadTx) error { n = tx.VMs().Len(); return nil })
		return n == 1
	})

	if err := os.Rename(d.Path(plane.DatabaseFile), d.Path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	<-p.Store.Failed()
	lost := time.Now()
	if err := <-served; !errors.Is(err, fleet.ErrNotLeader) || ctx.Err() != nil {
		t.Errorf("the server ended with %v (%v)", err, ctx.Err())
	}
	if got := <-create; !strings.HasPrefix(got, "503 ") {
		t.Errorf("the create was answered with %s", got)
	}
	if got := <-stream; !strings.HasPrefix(got, "200 ") {
		t.Errorf("the stream was answered with %s", got)
	}
	// Neither the host nor what a server that is stopped waits for.
	if took := time.Since(lost); took > s.ShutdownTimeout*2/3 {
		t.Errorf("it took %v after the loss", took)
	}
}
