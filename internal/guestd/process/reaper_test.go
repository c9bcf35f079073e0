package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// As PID 1 under load, every start gets its own status and nothing stays a
// zombie: children that end before their start returns, orphans by the hundred
// and programs that do not exist, all at once.
func TestReaperAsInit(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVar+"=init")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "init: ok\n") {
		t.Fatalf("init: %v\n%s", err, out)
	}
}

// initRole is the test's PID 1.
func initRole() int {
	if err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("proc", "/proc", "proc", 0, ""),
	); err != nil {
		fmt.Fprintln(os.Stdout, "init: mount:", err)
		return 1
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stdout, "init: not PID 1 but", os.Getpid())
		return 1
	}
	ctx, stop := context.WithCancel(context.Background())
	r := NewInitReaper()
	var collecting sync.WaitGroup
	collecting.Go(func() { r.Run(ctx) })
	wrong := storm(r)
	stop()
	collecting.Wait()
	if wrong != "" {
		fmt.Fprintln(os.Stdout, "init:", wrong)
		return 1
	}
	fmt.Fprintln(os.Stdout, "init: ok")
	return 0
}

// storm starts commands from many goroutines and says what went wrong.
func storm(r *Reaper) string {
	const workers, rounds = 8, 60
	faults := make(chan string, workers*rounds)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range rounds {
				if fault := stormOne(r, (w*rounds+i)%120); fault != "" {
					faults <- fault
				}
			}
		})
	}
	all.Wait()
	close(faults)
	for f := range faults {
		return f
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for {
		zombies, others := 0, 0
		for _, pid := range listProcs() {
			if s, ok := readStat(pid); ok && pid != 1 && s.state == 'Z' {
				zombies++
			} else if ok && pid != 1 {
				others++
			}
		}
		if zombies+others == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("%d zombies and %d others are left", zombies, others)
		}
		<-tick.C
	}
	if len(r.children)+len(r.early) > 0 {
		return fmt.Sprintf("%d children and %d early statuses are still kept", len(r.children), len(r.early))
	}
	return ""
}

func stormOne(r *Reaper, code int) string {
	attr := &syscall.ProcAttr{Env: []string{"PATH=/usr/bin:/bin"}}
	if _, err := r.Start("/nonexistent", []string{"x"}, attr); !errors.Is(err, syscall.ENOENT) {
		return fmt.Sprintf("a missing program: %v", err)
	}
	// Two orphans that end at once and one a little later.
	script := fmt.Sprintf("( (exit 9) & (exit 8) & sleep 0.0%d & ) ; exit %d", code%10, code)
	c, err := r.Start("/bin/sh", []string{"sh", "-c", script}, attr)
	if err != nil {
		return fmt.Sprintf("start: %v", err)
	}
	select {
	case <-c.Done():
	case <-time.After(patience):
		return fmt.Sprintf("the status of %d was lost", c.PID)
	}
	if got := c.Status().ExitStatus(); got != code {
		return fmt.Sprintf("exit %d was told as %d", code, got)
	}
	return ""
}

func TestEarlyStatusOfAnotherProcessIsNotTaken(t *testing.T) {
	t.Parallel()
	r := NewInitReaper()
	// The number of the child about to start ended earlier, as an orphan.
	early := syscall.WaitStatus(7 << 8)
	r.mu.Lock()
	r.starting++ // another start keeps the map
	r.mu.Unlock()
	c, err := r.Start("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	r.deliver(c.PID+1, early)
	if got := r.early[c.PID+1]; got != early {
		t.Fatalf("the status of an unknown process during a start is %v, want it kept", got)
	}
	if !isChild(c.PID) {
		t.Error("a running child is not taken for one")
	}
	if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(c.PID, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	if isChild(c.PID) {
		t.Error("a reaped child is still taken for one")
	}
	r.deliver(c.PID, ws)
	select {
	case <-c.Done():
	default:
		t.Error("the child's own status was not delivered")
	}
}
