package guestwire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/testkit"
)

var _ driver.Guest = (*guestwire.Client)(nil)

func TestMain(m *testing.M) { testkit.Main(m) }

// A guest that takes what it is sent and never answers, as a crashed kernel
// behind a live link does.
func silentGuest(t *testing.T) (dial func(context.Context) (net.Conn, error), dials *int) {
	t.Helper()
	dials = new(int)
	return func(context.Context) (net.Conn, error) {
		*dials++
		ours, theirs := net.Pipe()
		go func() {
			_, _ = io.Copy(io.Discard, theirs) // until the client hangs up
			_ = theirs.Close()
		}()
		return ours, nil
	}, dials
}

func TestDeadConnectionIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, dials := silentGuest(t)
		c := guestwire.NewClient(dial, "x")
		defer c.Close()
		for range 2 {
			began := time.Now()
			_, err := c.Exec(t.Context(), fleet.ExecSpec{Argv: []string{"sleep", "9999"}}, fleet.Stdio{})
			took := time.Since(began)
			if fleet.CodeOf(err) != fleet.CodeUnavailable || !errors.Is(err, fleet.ErrGuestUnavailable) {
				t.Errorf("error is %v", err)
			}
			if took < guestwire.PingAfter || took > guestwire.PingAfter+guestwire.PingTimeout+time.Second {
				t.Errorf("noticed after %v", took)
			}
		}
		if *dials != 2 {
			t.Errorf("%d connections, want a new one for the second call", *dials)
		}
	})
}

func TestDialIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := guestwire.NewClient(func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "x")
		began := time.Now()
		_, err := c.Info(t.Context())
		if fleet.CodeOf(err) != fleet.CodeUnavailable || time.Since(began) != guestwire.DialTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestDeadlineOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, _ := silentGuest(t)
		c := guestwire.NewClient(dial, "x")
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := c.Info(ctx)
		if fleet.CodeOf(err) != fleet.CodeDeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		canceled, cancel2 := context.WithCancel(t.Context())
		cancel2()
		if _, err := c.Exec(canceled, fleet.ExecSpec{}, fleet.Stdio{}); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestClosedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, _ := silentGuest(t)
		c := guestwire.NewClient(dial, "x")
		failed := make(chan error, 1)
		go func() {
			_, err := c.Info(t.Context())
			failed <- err
		}()
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("the call under way: %v", err)
		}
		if _, err := c.Info(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a call afterwards: %v", err)
		}
	})
}

// babbler refuses every call at length.
type babbler struct {
	guestwirev1connect.UnimplementedGuestHandler
	code connect.Code
}

func (b babbler) Info(context.Context, *connect.Request[guestwirev1.InfoRequest]) (*connect.Response[guestwirev1.InfoResponse], error) {
	return nil, connect.NewError(b.code, errors.New(strings.Repeat("no ", 300_000)))
}

// Whoever owns a guest decides what it says: its words must not fill logs,
// rows and answers.
func TestRefusalsAreBounded(t *testing.T) {
	for _, code := range []connect.Code{connect.CodeFailedPrecondition, connect.CodeDataLoss} {
		_, handler := guestwirev1connect.NewGuestHandler(babbler{code: code})
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		srv := httptest.NewUnstartedServer(handler)
		srv.Config.Protocols = protocols
		srv.Start()
		c := guestwire.NewClient(func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		}, "x")
		_, err := c.Info(t.Context())
		if err == nil || len(fmt.Sprint(err)) > 2<<10 || !strings.Contains(fmt.Sprint(err, errors.Unwrap(err)), "no no") {
			t.Errorf("%v: an error of %d bytes", code, len(fmt.Sprint(err)))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
	}
}
