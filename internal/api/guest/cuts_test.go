package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	apiclient "github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/cutter"
)

// over is a client whose connections are cut.
func over(t *testing.T, cut *cutter.Cutter) apiclient.Guest {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	api, err := apiclient.New(cut.URL(), apiclient.Options{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return apiclient.NewGuest(api)
}

// TestEverythingOverCutConnections does what the command line does, several at a
// time, over connections that are cut at random bytes in both directions: a
// file up and down, and input through a process and back.
func TestEverythingOverCutConnections(t *testing.T) {
	w := newWorld(t)
	size := testkit.Count(1<<20, 128<<20)
	cut := cutter.New(t, w.url, 1<<20)
	guest := over(t, cut)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range 2 {
		data := make([]byte, size)
		seed := [32]byte{byte(i), 7}
		_, _ = rand.NewChaCha8(seed).Read(data) // never fails
		id := fmt.Sprintf("p%d", i)
		w.process("POST", "/processes", fmt.Sprintf(`{"id":%q,"hold":true,"stdin":true,"keep_bytes":524288,"cmd":["cat"]}`, id), 201)
		all.Go(func() {
			if err := thereAndBack(ctx, guest, "/cut/"+id, data); err != nil {
				t.Errorf("file %d: %v", i, err)
			}
		})
		all.Go(func() {
			if err := throughCat(ctx, guest, id, data); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	all.Wait()
	t.Logf("%d connections were cut", cut.Cuts())
	if cut.Cuts() == 0 {
		t.Errorf("no connection was cut")
	}
}

func thereAndBack(ctx context.Context, guest apiclient.Guest, path string, data []byte) error {
	if _, err := guest.Upload(ctx, "fuse-t", apiclient.Upload{Path: path, Parents: true, Data: bytes.NewReader(data)}); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	sum := sha256.New()
	if err := guest.Download(ctx, "fuse-t", path, sum); err != nil {
		return fmt.Errorf("down: %w", err)
	}
	return same(sum.Sum(nil), data)
}

func throughCat(ctx context.Context, guest apiclient.Guest, id string, data []byte) error {
	sum := sha256.New()
	var input error
	var in sync.WaitGroup
	in.Go(func() { input = guest.CopyInput(ctx, "fuse-t", id, bytes.NewReader(data)) })
	exit, err := guest.CopyOutput(ctx, "fuse-t", id, apiclient.ProcessOutput{Stdout: sum, Follow: true})
	in.Wait()
	if err = errors.Join(err, input); err != nil {
		return err
	}
	if exit == nil || exit.ExitCode != 0 {
		return fmt.Errorf("it ended with %+v", exit)
	}
	return same(sum.Sum(nil), data)
}

// TestTypingOverCutConnections types into the terminal of a process that has had
// input of others, over connections that are cut at random bytes.
func TestTypingOverCutConnections(t *testing.T) {
	w := newWorld(t)
	size := testkit.Count(256<<10, 16<<20)
	cut := cutter.New(t, w.url, 128<<10)
	guest := over(t, cut)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w.process("POST", "/processes", `{"id":"t","hold":true,"tty":{"rows":24,"cols":80},"cmd":["sh","-c","stty raw -echo; echo ready; exec cat"]}`, 201)
	c := dialRaw(t, w, "tty=1&process=t")
	c.shows("ready\n")
	c.types("of others ")
	c.shows("of others ")
	c.close()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data) // never fails
	keys := apiclient.NewKeyboard()
	var typing sync.WaitGroup
	typing.Go(func() {
		if err := keys.Type(ctx, data); err != nil {
			t.Errorf("type: %v", err)
		}
	})
	want := append([]byte("ready\nof others "), data...)
	var got []byte
	for len(got) < len(want) && ctx.Err() == nil {
		got = append(got, shown(ctx, guest, int64(len(got)), len(want)-len(got), keys)...)
	}
	typing.Wait()
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes are shown, of %d; the first that differs is %d", len(got), len(want), differ(got, want))
	}
	t.Logf("%d connections were cut", cut.Cuts())
	if cut.Cuts() == 0 {
		t.Errorf("no connection was cut")
	}
}

// shown is what the terminal shows over one connection, to the number of bytes.
func shown(ctx context.Context, guest apiclient.Guest, from int64, most int, keys *apiclient.Keyboard) (out []byte) {
	term, err := guest.Attach(ctx, "fuse-t", "t", from, attachframe.Size{}, keys)
	if err != nil {
		return nil // it was cut before it was one
	}
	ctx, stop := context.WithCancel(ctx)
	var sending sync.WaitGroup
	sending.Go(func() { _ = keys.Send(ctx, term) }) // ends with the connection
	for len(out) < most {
		piece, exit, err := term.Next()
		if err != nil || exit != nil {
			break
		}
		out = append(out, piece...)
	}
	stop()
	term.Close()
	sending.Wait()
	return out
}

func differ(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func same(sum, data []byte) error {
	if want := sha256.Sum256(data); !bytes.Equal(sum, want[:]) {
		return fmt.Errorf("other bytes than the %d that were sent", len(data))
	}
	return nil
}
