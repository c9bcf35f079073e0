package remote_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/testkit"
)

func (w *world) guest(t *testing.T) guestwire.Surface {
	t.Helper()
	g, ok := w.env.(provider.GuestReacher)
	if !ok {
		t.Fatal("the environment does not reach its guest")
	}
	return g.Guest()
}

func startProcess(t *testing.T, g guestwire.Surface, m *guestwirev1.StartProcessRequest, argv ...string) {
	t.Helper()
	m.Id, m.Command = "p", &guestwirev1.ExecStart{Argv: argv}
	if _, err := g.Processes.StartProcess(t.Context(), connect.NewRequest(m)); err != nil {
		t.Fatal(err)
	}
}

// TestForwardedOutput reads a process through the host, piece by piece, and
// gets every byte once.
func TestForwardedOutput(t *testing.T) {
	w := newWorld(t, "")
	g := w.guest(t)
	startProcess(t, g, &guestwirev1.StartProcessRequest{Hold: true, LingerMs: 60_000}, "seq", "1000000")
	sum, at := sha256.New(), int64(0)
	for ended := false; !ended; {
		out, err := g.Processes.FollowOutput(t.Context(), connect.NewRequest(&guestwirev1.FollowOutputRequest{Id: "p", Stdout: at, Limit: 1 << 20, Follow: true}))
		if err != nil {
			t.Fatal(err)
		}
		for out.Receive() {
			if p := out.Msg().GetPiece(); p != nil {
				if p.Offset != at {
					t.Fatalf("a piece at %d after %d", p.Offset, at)
				}
				_, _ = sum.Write(p.Data)
				at += int64(len(p.Data))
			}
			if end := out.Msg().GetEnd(); end != nil {
				ended = true
				if end.GetExit().GetExitCode() != 0 {
					t.Errorf("ended with %v", end)
				}
			}
		}
		if err := out.Err(); err != nil {
			t.Fatal(err)
		}
	}
	want := sha256.New()
	for i := range 1000000 {
		fmt.Fprintln(want, i+1)
	}
	if string(sum.Sum(nil)) != string(want.Sum(nil)) {
		t.Error("other bytes than were written")
	}
	w.destroy(t)
}

func TestForwardedErrorsArriveAsTheyAre(t *testing.T) {
	w := newWorld(t, "")
	g := w.guest(t)
	wait := func(g guestwire.Surface) error {
		_, err := g.Processes.WaitProcess(t.Context(), connect.NewRequest(&guestwirev1.WaitProcessRequest{Id: "nothing"}))
		return err
	}
	var fe *fleet.Error
	if err := wait(g); fleet.CodeOf(err) != fleet.CodeNotFound || !errors.As(err, &fe) || fe.Details[fleet.DetailRemedy] == "" {
		t.Errorf("the guest's refusal: %v, details %v", err, fe)
	}
	if _, err := g.Files.StatFile(t.Context(), connect.NewRequest(&guestwirev1.StatFileRequest{})); err == nil {
		t.Error("a place without a path is none")
	}
	out, err := g.Processes.FollowOutput(t.Context(), connect.NewRequest(&guestwirev1.FollowOutputRequest{Id: "nothing"}))
	if err != nil {
		t.Fatal(err)
	}
	if out.Receive(); fleet.CodeOf(out.Err()) != fleet.CodeNotFound {
		t.Errorf("a stream's refusal: %v", out.Err())
	}
	gone := w.ref
	gone.UID = ulid.Make().String()
	reach, ok := w.p.Open(gone).(provider.GuestReacher)
	if !ok {
		t.Fatal("no reach")
	}
	if err := wait(reach.Guest()); !errors.Is(err, fleet.ErrVMNotFound) {
		t.Errorf("another life: %v", err)
	}
	w.destroy(t)
	if err := wait(g); !errors.Is(err, fleet.ErrVMNotFound) && !errors.Is(err, fleet.ErrVMNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

// TestDestroyEndsForwardedCalls destroys a VM while its output is followed.
func TestDestroyEndsForwardedCalls(t *testing.T) {
	w := newWorld(t, "")
	g := w.guest(t)
	startProcess(t, g, &guestwirev1.StartProcessRequest{}, "sleep", "600")
	out, err := g.Processes.FollowOutput(t.Context(), connect.NewRequest(&guestwirev1.FollowOutputRequest{Id: "p", Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		told := false // how the process ended, which is the whole of its output
		for out.Receive() {
			told = told || out.Msg().GetEnd() != nil
		}
		if err := out.Err(); err != nil || told {
			done <- nil
			return
		}
		done <- errors.New("output that broke off is no success")
	}()
	w.destroy(t)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the call outlives its VM")
	}
}

// TestSlowFollowerHoldsTheProcessUp leaves the output of a flood unread: what
// piles up on the way is bounded.
func TestSlowFollowerHoldsTheProcessUp(t *testing.T) {
	w := newWorld(t, "")
	g := w.guest(t)
	startProcess(t, g, &guestwirev1.StartProcessRequest{Hold: true, LingerMs: 60_000}, "yes", strings.Repeat("y", 1000))
	out, err := g.Processes.FollowOutput(t.Context(), connect.NewRequest(&guestwirev1.FollowOutputRequest{Id: "p", Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !out.Receive() {
		t.Fatal(out.Err())
	}
	last := int64(-1)
	testkit.Eventually(t, time.Minute, "the process is held up", func() bool {
		res, err := g.Processes.WaitProcess(t.Context(), connect.NewRequest(&guestwirev1.WaitProcessRequest{Id: "p", WaitMs: 100}))
		if err != nil {
			t.Error(err)
			return true
		}
		end := res.Msg.GetProcess().GetStdout().GetEnd()
		held := end == last
		last = end
		return held
	})
	if last > 8<<20 {
		t.Errorf("%d bytes are on the way to a reader that reads nothing", last)
	}
	_ = out.Close()
	w.destroy(t)
}
