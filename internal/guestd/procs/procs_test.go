package procs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is for what takes a moment on a machine that is not busy.
const patience = time.Minute

// newTable is a table that runs commands on this machine.
func newTable(t *testing.T, cfg Config) *Table {
	t.Helper()
	reaper := process.NewReaper()
	runner, err := process.NewRunner(process.Config{Reaper: reaper})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Runner = runner
	table := New(cfg)
	t.Cleanup(func() {
		table.Close()
		runner.Close()
		reaper.Wait()
	})
	return table
}

func sh(id, script string, args ...string) Spec {
	return Spec{ID: id, Command: fleet.ExecSpec{Argv: append([]string{"sh", "-c", script, "sh"}, args...)}}
}

func start(t *testing.T, table *Table, spec Spec) Info {
	t.Helper()
	info, err := table.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// reader follows a process as a client does: it counts what it got, and goes on
// from there.
type reader struct {
	at  [streams]int64
	got [streams]bytes.Buffer
	// gaps counts bytes that were dropped before they were read.
	gaps int64
}

var errCut = errors.New("the connection is cut")

// follow reads until the process's end, or until cut bytes have come.
func (r *reader) follow(ctx context.Context, table *Table, id string, limit int64, cut int) (*Info, error) {
	f := Follow{Stdout: r.at[0], Stderr: r.at[1], Limit: limit, Wait: true}
	return table.Follow(ctx, id, f, Sink{Piece: func(p Piece) error {
		i := p.Stream - 1
		data := p.Data
		if cut >= 0 && len(data) > cut {
			data = data[:cut]
		}
		if cut >= 0 {
			cut -= len(data)
		}
		r.gaps += p.Offset - r.at[i]
		r.got[i].Write(data)
		r.at[i] = p.Offset + int64(len(data))
		if len(data) < len(p.Data) {
			return errCut
		}
		return nil
	}})
}

func (r *reader) toEnd(t *testing.T, table *Table, id string, limit int64) Info {
	t.Helper()
	for {
		info, err := r.follow(t.Context(), table, id, limit, -1)
		if err != nil {
			t.Fatal(err)
		}
		if info != nil {
			return *info
		}
	}
}

func TestProcessGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	info := start(t, table, sh("p", `echo out; echo err >&2; exit 7`))
	if info.PID <= 0 || info.ID != "p" {
		t.Errorf("started %+v", info)
	}
	got, err := table.Wait(t.Context(), "p", patience)
	if err != nil || got.Status.ExitCode != 7 || got.Ended.IsZero() {
		t.Fatalf("ended %+v, %v", got, err)
	}
	var r reader
	if end := r.toEnd(t, table, "p", 0); end.Status.ExitCode != 7 || r.got[0].String() != "out\n" || r.got[1].String() != "err\n" {
		t.Errorf("read %q and %q, end %+v", &r.got[0], &r.got[1], end)
	}
	again := start(t, table, sh("p", `echo never`))
	if again.PID != info.PID {
		t.Errorf("a repeat started another process: %+v", again)
	}
	if list := table.List(); len(list) != 1 || list[0].Out[0] != (Range{0, 4}) {
		t.Errorf("list %+v", list)
	}
	if err := table.Remove(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Wait(t.Context(), "p", 0); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("a removed process: %v", err)
	}
}

func TestStartTellsWhatTheCallerGotWrong(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	for name, c := range map[string]struct {
		spec Spec
		code fleet.Code
	}{
		"id":        {sh("../x", "true"), fleet.CodeInvalidArgument},
		"user":      {Spec{ID: "a", Command: fleet.ExecSpec{Argv: []string{"true"}, User: "nobody-here"}}, fleet.CodeInvalidArgument},
		"directory": {Spec{ID: "a", Command: fleet.ExecSpec{Argv: []string{"true"}, Cwd: "/not/there"}}, fleet.CodeInvalidArgument},
		"argv":      {Spec{ID: "a", Command: fleet.ExecSpec{Argv: []string{"true", strings.Repeat("x", 3<<20)}}}, fleet.CodeInvalidArgument},
		"linger":    {Spec{ID: "a", Hold: true, Command: fleet.ExecSpec{Argv: []string{"true"}}}, fleet.CodeInvalidArgument},
	} {
		if _, err := table.Start(t.Context(), c.spec); fleet.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list := table.List(); len(list) != 0 {
		t.Errorf("left behind: %+v", list)
	}
	for argv, want := range map[string]int{"/not/there": 127, "/etc/passwd": 126} {
		for _, size := range []*process.Size{nil, {Rows: 24, Cols: 80}} {
			id := fmt.Sprintf("p%d-%t", want, size != nil)
			start(t, table, Spec{ID: id, Terminal: size, Command: fleet.ExecSpec{Argv: []string{argv}}})
			var r reader
			end := r.toEnd(t, table, id, 0)
			if said := r.got[0].String() + r.got[1].String(); end.Status.ExitCode != want || !strings.Contains(said, argv) {
				t.Errorf("%s ended with %d and said %q", argv, end.Status.ExitCode, said)
			}
		}
	}
}

// TestCutAtAnyByte reads output over connections that break after a random
// number of bytes: what came in all is what was written.
func TestCutAtAnyByte(t *testing.T) {
	t.Parallel()
	size := testkit.Count(4<<20, 1<<30)
	for _, hold := range []bool{true, false} {
		table := newTable(t, Config{Memory: 1 << 30})
		spec := sh("p", `head -c "$1" /dev/zero | tr '\0' 'abcdefg' | tee /dev/stderr`, fmt.Sprint(size))
		spec.Hold, spec.Linger = hold, time.Minute
		if !hold {
			spec.Keep = int64(min(size, MaxKeep))
		}
		start(t, table, spec)
		rng := rand.New(rand.NewPCG(1, 2))
		sums := [streams]interface {
			io.Writer
			Sum([]byte) []byte
		}{sha256.New(), sha256.New()}
		var r reader
		cuts := 0
		for {
			end, err := r.follow(t.Context(), table, "p", 256<<10, rng.IntN(400<<10))
			for i := range r.got {
				_, _ = r.got[i].WriteTo(sums[i])
			}
			if err != nil && !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			if err != nil {
				cuts++
			}
			if end != nil {
				break
			}
		}
		if hold && (r.gaps > 0 || r.at != [streams]int64{int64(size), int64(size)}) {
			t.Errorf("read to %v with %d bytes missing", r.at, r.gaps)
		}
		want := sha256.New()
		_, _ = io.CopyN(want, ones{}, int64(size))
		if hold && (!bytes.Equal(sums[0].Sum(nil), want.Sum(nil)) || !bytes.Equal(sums[1].Sum(nil), want.Sum(nil))) {
			t.Error("other bytes than were written")
		}
		if hold && cuts == 0 {
			t.Error("no connection was cut")
		}
	}
}

// ones is what tr makes of zeros.
type ones struct{}

func (ones) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// TestSlowReaderHoldsTheProcessUp checks that output which nobody reads stops
// the process instead of filling memory, and that it goes on when it is read.
func TestSlowReaderHoldsTheProcessUp(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	spec := sh("p", `yes | head -c 8000000; echo end >&2`)
	spec.Hold, spec.Linger, spec.Keep = true, time.Minute, 128<<10
	start(t, table, spec)
	last := int64(-1)
	testkit.Eventually(t, patience, "the process is held up", func() bool {
		info, err := table.Wait(t.Context(), "p", 50*time.Millisecond)
		if err != nil || !info.Ended.IsZero() {
			t.Errorf("%+v, %v", info, err)
			return true
		}
		held := info.Out[0].End == last && last > 0
		last = info.Out[0].End
		return held
	})
	if last > 128<<10 {
		t.Errorf("%d bytes were kept of a process that holds 128 KiB", last)
	}
	var r reader
	if end := r.toEnd(t, table, "p", 1<<20); r.got[0].Len() != 8000000 || r.gaps != 0 || end.Status.ExitCode != 0 || r.got[1].String() != "end\n" {
		t.Errorf("read %d bytes, %d missing, %+v", r.got[0].Len(), r.gaps, end)
	}
}

func TestBackgroundOutputKeepsItsEnd(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	spec := sh("p", `seq 1 100000`)
	spec.Keep = 64 << 10
	start(t, table, spec)
	if _, err := table.Wait(t.Context(), "p", patience); err != nil {
		t.Fatal(err)
	}
	var r reader
	r.toEnd(t, table, "p", 0)
	if !strings.HasSuffix(r.got[0].String(), "\n99999\n100000\n") || r.got[0].Len() != 64<<10 || r.gaps+64<<10 != r.at[0] {
		t.Errorf("kept %d bytes, %d missing, up to %d", r.got[0].Len(), r.gaps, r.at[0])
	}
}

func TestNobodyFollows(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	spec := sh("p", `yes`)
	spec.Hold, spec.Linger = true, 50*time.Millisecond
	start(t, table, spec)
	info, err := table.Wait(t.Context(), "p", patience)
	if err != nil || !errors.Is(info.Failure, errUnfollowed) {
		t.Errorf("ended %+v, %v", info, err)
	}
	if m := messageOf(info); m.GetExit().GetExitCode() != 137 || !strings.Contains(m.GetFailure(), "nobody followed") {
		t.Errorf("told %v", m)
	}
}

func TestInputByOffset(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	spec := sh("p", `cat`)
	spec.Input = true
	start(t, table, spec)
	send := func(offset int64, data string, eof bool, want int64) {
		t.Helper()
		got, err := table.SendInput(t.Context(), "p", offset, []byte(data), eof)
		if err != nil || got != want {
			t.Fatalf("input at %d: taken %d, %v", offset, got, err)
		}
	}
	send(0, "hello ", false, 6)
	send(0, "hello ", false, 6) // a repeat after a lost answer
	send(3, "lo world", false, 11)
	if got, err := table.SendInput(t.Context(), "p", 99, []byte("x"), false); fleet.CodeOf(err) != fleet.CodeConflict || got != 11 {
		t.Errorf("input beyond the end: %d, %v", got, err)
	}
	send(11, "\xc3", false, 12) // half a character
	send(12, "\xa9", true, 13)
	var r reader
	if end := r.toEnd(t, table, "p", 0); r.got[0].String() != "hello world\u00e9" || end.Input != 13 || end.Status.ExitCode != 0 {
		t.Errorf("read %q, %+v", &r.got[0], end)
	}
	spec = sh("q", `sleep 600`)
	start(t, table, spec)
	if _, err := table.SendInput(t.Context(), "q", 0, []byte("x"), false); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("input of one that takes none: %v", err)
	}
}

func TestInputOfSeveralWriters(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	spec := sh("p", `cat`)
	spec.Input = true
	start(t, table, spec)
	send := func(writer string, offset int64, data string, want int64) {
		t.Helper()
		got, err := table.SendInputAs(t.Context(), "p", writer, offset, []byte(data), false)
		if err != nil || got != want {
			t.Fatalf("input of %q at %d: taken %d, %v", writer, offset, got, err)
		}
	}
	send("", 0, "before ", 7)
	send("a", 0, "aaa ", 4)
	send("b", 0, "bbb ", 4)
	send("a", 0, "aaa ", 4) // a repeat after a lost answer
	send("b", 2, "b BBB ", 8)
	send("a", 4, "AAA ", 8)
	send("a", 0, "", 8) // how far it came
	send("c", 0, "", 0)
	if got, err := table.SendInputAs(t.Context(), "p", "a", 9, []byte("x"), false); fleet.CodeOf(err) != fleet.CodeConflict || got != 8 {
		t.Errorf("input beyond a writer's end: %d, %v", got, err)
	}
	if _, err := table.SendInputAs(t.Context(), "p", strings.Repeat("w", 65), 0, []byte("x"), false); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("a long name: %v", err)
	}
	for i := range maxWriters - 1 { // b is the one that wrote longest ago
		send("w"+strconv.Itoa(i), 0, ".", 1)
	}
	send("a", 0, "", 8)
	send("b", 0, "", 0)
	if _, err := table.SendInput(t.Context(), "p", 7+16+maxWriters-1, nil, true); err != nil {
		t.Fatal(err)
	}
	var r reader
	r.toEnd(t, table, "p", 0)
	if got, want := r.got[0].String(), "before aaa bbb BBB AAA "+strings.Repeat(".", maxWriters-1); got != want {
		t.Errorf("read %q, not %q", got, want)
	}
}

func TestInputThatNobodyReadsWaits(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	spec := sh("p", `sleep 600`)
	spec.Input = true
	start(t, table, spec)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	taken, err := table.SendInput(ctx, "p", 0, make([]byte, 1<<20), false)
	if !errors.Is(err, context.DeadlineExceeded) || taken > maxInput+process.ChunkSize*2 {
		t.Errorf("taken %d, %v", taken, err)
	}
	if err := table.Signal("p", syscall.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	info, err := table.Wait(t.Context(), "p", patience)
	if err != nil || info.Status.Signal != "TERM" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := table.SendInput(t.Context(), "p", taken, []byte("late"), true); err != nil {
		t.Errorf("late input falls away: %v", err)
	}
	if err := table.Signal("p", syscall.SIGTERM, false); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestTerminalProcess(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	spec := sh("p", `stty size; cat; echo over`)
	spec.Terminal = &process.Size{Rows: 30, Cols: 90}
	start(t, table, spec)
	if err := table.Resize("p", process.Size{Rows: 31, Cols: 91}); err != nil {
		t.Fatal(err)
	}
	if _, err := table.SendInput(t.Context(), "p", 0, []byte("hi\n"), true); err != nil {
		t.Fatal(err)
	}
	var r reader
	r.toEnd(t, table, "p", 0)
	if got := r.got[0].String(); strings.Count(got, "hi\r\n") != 2 || !strings.HasSuffix(got, "over\r\n") { // once by the terminal, once by cat
		t.Errorf("the terminal shows %q", got)
	}
	start(t, table, sh("q", `sleep 600`))
	if err := table.Resize("q", process.Size{}); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("resize without a terminal: %v", err)
	}
}

// TestKeptIsBounded starts more than is kept: memory is shared out, and those
// that ended make room.
func TestKeptIsBounded(t *testing.T) {
	t.Parallel()
	const memory = 4 << 20
	table := newTable(t, Config{Memory: memory})
	for i := range maxKept + 20 {
		id := fmt.Sprintf("p%d", i)
		start(t, table, sh(id, `echo here`))
		if _, err := table.Wait(t.Context(), id, patience); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(table.List()); n > maxKept+1 || n < 10 {
		t.Errorf("%d are kept", n)
	}
	running := 0
	for i := range 100 {
		_, err := table.Start(t.Context(), sh(fmt.Sprintf("r%d", i), `sleep 600`))
		if err != nil {
			if fleet.CodeOf(err) != fleet.CodeUnavailable {
				t.Error(err)
			}
			break
		}
		running++
	}
	if running < 8 || running > 40 {
		t.Errorf("%d run in %d bytes", running, memory)
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	if table.used > memory {
		t.Errorf("%d bytes are used", table.used)
	}
}

func TestEndedAreForgottenInTime(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{Keep: 50 * time.Millisecond})
	start(t, table, sh("p", `true`))
	testkit.Eventually(t, patience, "the process is forgotten", func() bool { return len(table.List()) == 0 })
	table.mu.Lock()
	defer table.mu.Unlock()
	if table.used != 0 {
		t.Errorf("%d bytes are used by nothing", table.used)
	}
}

func TestReadBeyondTheEnd(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	start(t, table, sh("p", `echo x`))
	if _, err := table.Wait(t.Context(), "p", patience); err != nil {
		t.Fatal(err)
	}
	_, err := table.Follow(t.Context(), "p", Follow{Stdout: 99}, Sink{})
	if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("offset beyond the end: %v", err)
	}
	ended, err := table.Follow(t.Context(), "p", Follow{Stdout: 2}, Sink{})
	if err != nil || ended == nil {
		t.Errorf("at the end: %v, %v", ended, err)
	}
}
