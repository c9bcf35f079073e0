// Package process runs commands in a guest: it starts each in a session and a
// cgroup of its own, moves its input and output, ends its whole tree when its
// time is up, and reaps what is left when the guest agent is PID 1.
package process

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper starts processes and collects how they ended. As PID 1 it is the
// only caller of wait4, because a status that something else collects is lost:
// nothing in the same program may use os/exec.
type Reaper struct {
	all bool // collects every child, adopted ones too

	mu       sync.Mutex
	starting int                        // starts whose pid is not known yet
	early    map[int]syscall.WaitStatus // ended while a start was under way
	children map[int]*Child
	waits    sync.WaitGroup
}

// Child is one started process.
type Child struct {
	PID    int
	done   chan struct{}
	status syscall.WaitStatus
}

// Done is closed once the process has ended and been reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Status is how the process ended. It is valid after Done.
func (c *Child) Status() syscall.WaitStatus { return c.status }

// NewReaper returns a reaper for an ordinary program: it waits only for the
// processes it started.
func NewReaper() *Reaper { return newReaper(false) }

// NewInitReaper returns a reaper for PID 1 (or a subreaper). Run must be
// running for any status to arrive.
func NewInitReaper() *Reaper { return newReaper(true) }

func newReaper(all bool) *Reaper {
	return &Reaper{all: all, early: map[int]syscall.WaitStatus{}, children: map[int]*Child{}}
}

// Start starts a process as syscall.ForkExec does.
func (r *Reaper) Start(argv0 string, argv []string, attr *syscall.ProcAttr) (*Child, error) {
	r.mu.Lock()
	r.starting++
	r.mu.Unlock()

	pid, err := syscall.ForkExec(argv0, argv, attr)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting--
	var c *Child
	if err == nil {
		c = &Child{PID: pid, done: make(chan struct{})}
		if status, ended := r.early[pid]; ended && !isChild(pid) {
			c.status = status
			close(c.done)
		} else if r.all {
			r.children[pid] = c
		} else {
			r.waits.Go(func() { c.wait() })
		}
	}
	if r.starting == 0 {
		clear(r.early)
	}
	return c, err
}

// isChild tells whether pid is a child not yet reaped. A status kept from
// before is then another process's, whose number has come round again.
func isChild(pid int) bool {
	return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == nil
}

func (c *Child) wait() {
	for {
		_, err := syscall.Wait4(c.PID, &c.status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			close(c.done)
			return
		}
	}
}

// Run collects children until ctx ends. It is for a reaper made by
// NewInitReaper.
func (r *Reaper) Run(ctx context.Context) {
	ended := make(chan os.Signal, 1) // one pending wake-up is enough: collect takes all
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		r.collect()
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

// Wait returns when the processes of an ordinary reaper have ended.
func (r *Reaper) Wait() { r.waits.Wait() }

func (r *Reaper) collect() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.deliver(pid, status)
	}
}

func (r *Reaper) deliver(pid int, status syscall.WaitStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.children[pid]; ok {
		delete(r.children, pid)
		c.status = status
		close(c.done)
		return
	}
	if r.starting > 0 {
		r.early[pid] = status
	}
}
