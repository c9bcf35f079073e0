package procs

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/testkit"
)

func pass(t *testing.T, table *Table, script string, input bool) *Passing {
	t.Helper()
	x, err := table.Pass(t.Context(), fleet.ExecSpec{Argv: []string{"sh", "-c", script}}, input)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// written waits for the first output of a process: one that a signal meets
// before that ends without a word.
func written(t *testing.T, table *Table, id string) {
	t.Helper()
	testkit.Eventually(t, patience, "it has written", func() bool {
		return slices.ContainsFunc(table.List(), func(p Info) bool { return p.ID == id && p.Out[0].End > 0 })
	})
}

// What belongs to one call is seen by all, ended by all, and read and fed by
// that call alone.
func TestAPassingProcessIsItsCallersAlone(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	x := pass(t, table, "echo begun; exec cat", true)
	list := table.List()
	if len(list) != 1 || list[0].PID != x.PID() || x.PID() == 0 || !strings.HasPrefix(list[0].ID, passingPrefix) {
		t.Fatalf("listed: %+v", list)
	}
	id := list[0].ID
	_, followed := table.Follow(t.Context(), id, Follow{}, Sink{})
	_, fed := table.SendInput(t.Context(), id, 0, []byte("x"), true)
	for what, err := range map[string]error{"follow": followed, "input": fed, "adjust": table.Adjust(id, false, 0)} {
		if fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("%s by another: %v", what, err)
		}
	}
	written(t, table, id)
	if err := table.Signal(id, syscall.SIGTERM, false); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	status, err := x.Follow(t.Context(), func(p Piece) error { out.Write(p.Data); return nil })
	if err != nil || status.Signal != "TERM" || status.ExitCode != 143 || out.String() != "begun\n" {
		t.Errorf("ended with %+v, %v, output %q", status, err, &out)
	}
	x.Close()
	if list := table.List(); len(list) != 0 {
		t.Errorf("kept after its call: %+v", list)
	}
}

func TestAPassingProcessThatAnotherRemoves(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	x := pass(t, table, "echo begun; exec sleep 600", false)
	defer x.Close()
	id := table.List()[0].ID
	written(t, table, id)
	if err := table.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	status, err := x.Follow(t.Context(), func(p Piece) error { out.Write(p.Data); return nil })
	if err != nil || status.Signal != "KILL" || status.ExitCode != 137 || out.String() != "begun\n" {
		t.Errorf("ended with %+v, %v, output %q", status, err, &out)
	}
}

// Output that is kept takes no memory from calls, and calls take none from it.
func TestKeptOutputKeepsNoCallOut(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{Memory: 1 << 20})
	for i := 0; ; i++ {
		spec := sh("p"+itoa(int64(i)), "exec sleep 600")
		if _, err := table.Start(t.Context(), spec); fleet.CodeOf(err) == fleet.CodeUnavailable {
			break
		} else if err != nil || i > 100 {
			t.Fatalf("process %d: %v", i, err)
		}
	}
	used := table.used
	x := pass(t, table, "yes | head -c 1000000", false)
	n := 0
	if status, err := x.Follow(t.Context(), func(p Piece) error { n += len(p.Data); return nil }); err != nil || status.ExitCode != 0 || n != 1000000 {
		t.Errorf("%d bytes, %+v, %v", n, status, err)
	}
	x.Close()
	if table.used != used {
		t.Errorf("the table's memory went from %d to %d", used, table.used)
	}
}

// A caller that breaks off, at its start too, leaves nothing that runs.
func TestAPassingProcessEndsWithItsCall(t *testing.T) {
	t.Parallel()
	table := newTable(t, Config{})
	x := pass(t, table, "yes", false)
	if _, err := x.Follow(t.Context(), func(Piece) error { return errCut }); !errors.Is(err, errCut) {
		t.Errorf("the reader's own failure: %v", err)
	}
	x.Close()
	held := make(chan struct{})
	slow := New(Config{Runner: runnerFunc(func(ctx context.Context) error {
		close(held)
		<-ctx.Done()
		return context.Cause(ctx)
	})})
	defer slow.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-held; cancel() }()
	if _, err := slow.Pass(ctx, fleet.ExecSpec{Argv: []string{"x"}}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that ended while its process was started: %v", err)
	}
	if list := append(table.List(), slow.List()...); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

// Nothing runs after a table was closed, whatever is started meanwhile.
func TestCloseWaitsForWhatIsStartedMeanwhile(t *testing.T) {
	t.Parallel()
	for range testkit.Count(200, 20_000) {
		var closed atomic.Bool
		table := New(Config{Runner: runnerFunc(func(ctx context.Context) error {
			if closed.Load() {
				t.Error("a process begins after the end")
			}
			<-ctx.Done()
			if closed.Load() {
				t.Error("a process runs after the end")
			}
			return context.Cause(ctx)
		})})
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { _, _ = table.Start(t.Context(), sh("p"+itoa(int64(i)), "x")) }) // refused, or ended with the table
		}
		table.Close()
		closed.Store(true)
		all.Wait()
	}
}

// runnerFunc is a runner whose commands are never started.
type runnerFunc func(ctx context.Context) error

func (f runnerFunc) Run(ctx context.Context, _ fleet.ExecSpec, _ process.IO, _ func(int)) (fleet.ExecStatus, error) {
	return fleet.ExecStatus{}, f(ctx)
}
