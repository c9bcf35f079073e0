package guest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	apiclient "github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/testkit"
)

func (w *world) dialPort(ctx context.Context, port int) (*apiclient.PortConn, error) {
	w.t.Helper()
	api, err := apiclient.New(w.url, apiclient.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	return apiclient.NewGuest(api).DialPort(ctx, "fuse-t", port)
}

// What is sent comes back whole, and the end of one direction leaves the other.
func TestForwardKeepsHalfClose(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conn, err := w.dialPort(ctx, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if a, ok := w.guests.Activity(w.uid); !ok || a.Open != 1 {
		t.Errorf("a forwarded port is no use of the environment: %+v", a)
	}
	sent := make([]byte, testkit.Count(3, 64)<<20)
	_, _ = rand.Read(sent)
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		failed <- errors.Join(err, conn.CloseWrite())
	}()
	got, err := io.ReadAll(conn) // the echo goes on after the end of what was sent
	if werr := <-failed; err != nil || werr != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d came back; %v, %v", len(got), len(sent), err, werr)
	}
	w.unused()
}

// A client that leaves ends the connection in the guest, and the use.
func TestForwardEndsWithItsClient(t *testing.T) {
	w := newWorld(t)
	conn, err := w.dialPort(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	w.unused()
}

func TestForwardRefuses(t *testing.T) {
	w := newWorld(t)
	var answer *apiclient.Error
	for port, status := range map[int]int{0: http.StatusBadRequest, 65536: http.StatusBadRequest, -1: http.StatusBadRequest, 8: http.StatusServiceUnavailable} {
		if _, err := w.dialPort(t.Context(), port); !errors.As(err, &answer) || answer.Status != status {
			t.Errorf("port %d: %v, not %d", port, err, status)
		}
	}
	w.want(http.StatusBadRequest, http.MethodGet, "/forward?port=7", "") // no upgrade
	w.unused()
}

// The same over bare frames.
func TestForwardOverBareFrames(t *testing.T) {
	w := newWorld(t)
	u, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /v1/environments/fuse-t/forward?port=7 HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: fuse-attach/1\r\n\r\n", u.Host)
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil) //nolint:bodyclose // it is the connection
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	frame := attachframe.Append(nil, attachframe.Stdin, []byte("hello"))
	if _, err := conn.Write(attachframe.Append(frame, attachframe.Stdin, nil)); err != nil {
		t.Fatal(err)
	}
	frames := attachframe.NewReader(r)
	for _, want := range []string{"hello", ""} {
		if typ, payload, err := frames.Next(); typ != attachframe.Stdout || string(payload) != want || err != nil {
			t.Errorf("%d %q, %v", typ, payload, err)
		}
	}
	if _, _, err := frames.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after both ends: %v", err)
	}
}
