package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

const crashEnv = "FUSE_STORETEST_CRASH_CHILD"

// crashWriters is how many goroutines of the child change the state at once.
const crashWriters = 4

// CrashChild is called first in TestMain: in the process that Crash starts it
// changes the state on the storage at the path it is given, tells every
// acknowledged change, and never returns.
func CrashChild(open func(path string) Backend) {
	path := os.Getenv(crashEnv)
	if path == "" {
		return
	}
	if err := crashChild(open(path)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func crashChild(b Backend) error {
	s, err := state.Open(context.Background(), state.Config{Journal: b, Lease: b, Candidate: state.Candidate{Name: "crash test"}})
	if err != nil {
		return err
	}
	if _, err := s.Update(context.Background(), func(tx *state.Tx) error { return tx.PutHost(benchHost) }); err != nil {
		return err
	}
	var out sync.Mutex
	failed := make(chan error)
	for w := range crashWriters {
		go func() {
			for i := 0; ; i++ {
				text, err := crashStep(s, w, i)
				if err != nil {
					failed <- err
					return
				}
				out.Lock()
				fmt.Println(text)
				out.Unlock()
			}
		}()
	}
	return <-failed
}

// crashStep makes one life in four changes and says what was acknowledged.
func crashStep(s *state.Store, w, i int) (string, error) {
	id := fmt.Sprintf("%d-%d-%d", s.Term(), w, i/4)
	step := []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDestroying, fleet.VMStateDestroyed}[i%4]
	c, err := s.Update(context.Background(), func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: id, UID: id, Type: string(step), State: step})
		if step == fleet.VMStateDestroyed {
			return errors.Join(tx.DeleteVM(id), tx.PutLife(fleet.Life{UID: id, VMID: id}))
		}
		return tx.PutVM(fleet.VM{ID: id, UID: id, TaskID: id, HostID: "h1", State: step, Spec: fleet.Spec{CPUs: 1, RamMB: 1, StorageGB: 1}})
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s %d %d", id, step, c.Revision, c.Events[0].Seq), nil
}

// Crash kills a child that changes the state on the storage at path, with
// SIGKILL at a random moment, rounds times, and checks after each that all it
// acknowledged is there, in order and exactly once. Only a test binary whose
// TestMain calls CrashChild can run it.
func Crash(t *testing.T, path string, rounds int, open func(path string) Backend) {
	var last acknowledged
	for round := range rounds {
		last = runAndKill(t, path, last)
		b := open(path)
		s, err := state.Open(t.Context(), state.Config{Journal: b, Lease: b, Candidate: state.Candidate{Name: "after the crash"}})
		if err != nil {
			t.Fatalf("round %d: open after the crash: %v", round, err)
		}
		last.check(t, s)
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if len(last.steps) == 0 {
		t.Error("the child never acknowledged anything: nothing was tested")
	}
}

// acknowledged is the newest acknowledged step of each life, and the highest
// numbers.
type acknowledged struct {
	steps         map[string]string
	revision, seq uint64
}

func runAndKill(t *testing.T, path string, last acknowledged) acknowledged {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), os.Args[0], "-test.run=^$") //nolint:gosec // this very test binary
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if last.steps == nil {
		last.steps = map[string]string{}
	}
	killAt := 1 + rand.IntN(120)                                        //nolint:gosec // not a secret
	guard := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	defer guard.Stop()
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ { // also what was still in the pipe when it died
		f := strings.Fields(lines.Text())
		if len(f) != 4 {
			continue // the kill cut the line
		}
		revision, err1 := strconv.ParseUint(f[2], 10, 64)
		seq, err2 := strconv.ParseUint(f[3], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		last.steps[f[0]] = f[1]
		last.revision, last.seq = max(last.revision, revision), max(last.seq, seq)
		if n == killAt {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	return last
}

// order of the steps of one life.
var stepOrder = map[string]int{
	string(fleet.VMStateProvisioning): 1, string(fleet.VMStateRunning): 2,
	string(fleet.VMStateDestroying): 3, string(fleet.VMStateDestroyed): 4,
}

func (a acknowledged) check(t *testing.T, s *state.Store) {
	t.Helper()
	events := map[string]int{}
	var seq uint64
	for {
		page, err := s.Events(t.Context(), state.EventQuery{After: seq})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			if e.Seq != seq+1 || stepOrder[e.Type] != events[e.EntityID]+1 {
				t.Fatalf("event %d (%s %s) follows %d", e.Seq, e.EntityID, e.Type, seq)
			}
			seq, events[e.EntityID] = e.Seq, stepOrder[e.Type]
		}
	}
	revision, head := s.Head()
	if seq < a.seq || head != seq || revision < a.revision {
		t.Errorf("revision %d and event %d are left of the acknowledged %d and %d, the head is %d", revision, seq, a.revision, a.seq, head)
	}
	err := s.View(func(tx *state.ReadTx) error {
		for id, step := range a.steps {
			got := 0
			if v, ok := tx.VMs().Get(id); ok {
				got = stepOrder[string(v.State)]
			}
			if _, ok := tx.Lives().GetUID(id); ok {
				got = stepOrder[string(fleet.VMStateDestroyed)]
			}
			if got < stepOrder[step] || got != events[id] {
				t.Errorf("%s: acknowledged %s, its row is at step %d, its events at %d", id, step, got, events[id])
			}
		}
		h, ok := tx.Hosts().Get("h1")
		if !ok || h.Allocated.VMCount != tx.VMs().Len() {
			t.Errorf("%d environments, host %+v", tx.VMs().Len(), h)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
