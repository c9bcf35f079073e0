package process

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
)

// session is a command on a terminal.
type session struct {
	t      *testing.T
	keys   *io.PipeWriter
	screen *testkit.Output
	handle Handle
	status chan fleet.ExecStatus
}

func terminal(t *testing.T, argv ...string) *session {
	t.Helper()
	reaper := NewReaper()
	r, err := NewRunner(Config{Reaper: reaper})
	if err != nil {
		t.Fatal(err)
	}
	in, keys := io.Pipe()
	s := &session{t: t, keys: keys, screen: &testkit.Output{}, status: make(chan fleet.ExecStatus, 1)}
	started := make(chan Handle, 1)
	go func() {
		st, err := r.Run(t.Context(), fleet.ExecSpec{Argv: argv, Env: map[string]string{"PS1": "$ ", "TERM": "xterm"}}, IO{
			Stdin: in, Stdout: s.screen, Terminal: &Size{Rows: 24, Cols: 80}, Started: func(h Handle) { started <- h },
		}, nil)
		if err != nil {
			t.Errorf("run: %v", err)
		}
		s.status <- st
	}()
	s.handle = <-started
	t.Cleanup(func() {
		_ = keys.Close()
		r.Close()
		reaper.Wait()
	})
	return s
}

func (s *session) types(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) shows(text string) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, "the screen shows "+text, func() bool { return strings.Contains(s.screen.String(), text) })
}

func (s *session) ends(want fleet.ExecStatus) {
	s.t.Helper()
	select {
	case got := <-s.status:
		if got != want {
			s.t.Errorf("the session ended with %+v, not %+v; screen %q", got, want, s.screen.String())
		}
	case <-time.After(patience):
		s.t.Fatalf("the session goes on; screen %q", s.screen.String())
	}
}

func TestTerminalSizeAndResize(t *testing.T) {
	t.Parallel()
	s := terminal(t, "sh", "-c", `trap 'stty size; echo resized' WINCH; stty size; echo ready; while :; do read line && break; done; echo bye; exit 3`)
	s.shows("24 80\r\nready\r\n")
	if err := s.handle.Resize(Size{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	s.shows("50 132\r\nresized\r\n")
	s.types("go\n")
	s.shows("bye\r\n")
	s.ends(fleet.ExecStatus{ExitCode: 3})
	if err := s.handle.Resize(Size{Rows: 1, Cols: 1}); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("resize after the end: %v", err)
	}
	if err := s.handle.Signal(syscall.SIGTERM, false); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestTerminalControlKeys(t *testing.T) {
	t.Parallel()
	s := terminal(t, "sh", "-i")
	s.shows("$ ")
	// The line that the command writes tells that it has the terminal.
	s.types("sh -c 'echo up-$((1+1)); exec sleep 600'\n")
	s.shows("up-2")
	s.types("\x03")
	s.shows("^C")
	s.types("echo after-$?\n")
	s.shows("after-130")
	s.types("cat; echo cat-$?\n")
	s.types("\x04")
	s.shows("cat-0")
	s.types("sh -c 'echo up-$((1+2)); exec sleep 601'\n")
	s.shows("up-3")
	s.types("\x1a")
	s.shows("Stopped")
	s.types("kill -9 %1; echo killed-$?\n")
	s.shows("killed-0")
	s.types("fg\n") // waits for its end: a shell with a stopped job does not go at once
	s.types("printf '\\033[31mred\\033[0m\\n'\n")
	s.shows("\x1b[31mred\x1b[0m\r\n")
	s.types("\x04")
	select {
	case <-s.status:
	case <-time.After(patience):
		t.Fatalf("the shell goes on after ^D; screen %q", s.screen.String())
	}
}

func TestTerminalTakesABigPaste(t *testing.T) {
	t.Parallel()
	size := testkit.Count(1<<20, 10<<20)
	s := terminal(t, "sh", "-c", `stty raw -echo; printf ready; head -c "$1" | sha256sum`, "sh", strconv.Itoa(size))
	s.shows("ready")
	paste := bytes.Repeat([]byte("äöü € 漢字 \x00\x03\x04\xff"), size/20)
	paste = append(paste, bytes.Repeat([]byte("."), size)...)[:size]
	sum := sha256.Sum256(paste)
	s.types(string(paste))
	s.shows(hex.EncodeToString(sum[:]))
	s.ends(fleet.ExecStatus{})
}

func TestSignals(t *testing.T) {
	t.Parallel()
	s := terminal(t, "sh", "-c", `trap 'echo got-usr1' USR1; echo ready; while :; do sleep 0.05; done`)
	s.shows("ready")
	if err := s.handle.Signal(syscall.SIGUSR1, false); err != nil {
		t.Fatal(err)
	}
	s.shows("got-usr1")
	if err := s.handle.Signal(syscall.SIGTERM, true); err != nil {
		t.Fatal(err)
	}
	s.ends(fleet.ExecStatus{ExitCode: 143, Signal: "TERM"})
}

func TestMemoryFor(t *testing.T) {
	t.Parallel()
	for total, want := range map[uint64]uint64{128 << 20: 112 << 20, 256 << 20: 224 << 20, 8 << 30: 8<<30 - 32<<20} {
		if got := memoryFor(total); got != want {
			t.Errorf("of %d bytes commands may have %d, not %d", total, got, want)
		}
	}
}
