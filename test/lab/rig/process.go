package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// output keeps what a process prints and wakes those who wait for a text.
type output struct {
	copy io.Writer // gets it too; may be nil

	mu   sync.Mutex
	buf  bytes.Buffer
	wake chan struct{}
}

func newOutput(to io.Writer) *output { return &output{copy: to, wake: make(chan struct{})} }

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p)
	close(o.wake)
	o.wake = make(chan struct{})
	if o.copy != nil {
		return o.copy.Write(p)
	}
	return len(p), nil
}

func (o *output) text() (string, chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String(), o.wake
}

// process is one process of a lab. It ends when this one does.
type process struct {
	cmd  *exec.Cmd
	out  *output
	done chan struct{} // closed when it has ended
	pid  int           // whom signals go to: of nsenter, its child
}

// spawn starts a process and writes it down.
func (r *run) spawn(attr *syscall.SysProcAttr, env []string, out *output, argv ...string) (*process, error) {
	p := &process{out: out, done: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), argv[0], argv[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if attr == nil {
		attr = &syscall.SysProcAttr{}
	}
	attr.Pdeathsig = syscall.SIGKILL
	p.cmd.SysProcAttr = attr
	// Machines that outlive their agent hold its output no longer than this.
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = p.cmd.Process.Pid
	go func() {
		_ = p.cmd.Wait() // how it ended is read from ProcessState
		close(p.done)
	}()
	if err := r.remember(p.pid); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(sig syscall.Signal) error {
	if !p.alive() {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.pid, sig)
}

// kill ends it with SIGKILL and waits for its end.
func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL) // it may have ended
	<-p.done
}

// stop asks it to end and waits, a minute at most.
func (p *process) stop() error {
	_ = p.signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.kill()
		return errors.New("it does not end after SIGTERM")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("exit code %d after SIGTERM", code)
	}
	return nil
}

// line waits for the first line from a place of the output on that has a
// prefix, and returns what follows it.
func (p *process) line(from int, prefix string, within time.Duration) (string, error) {
	late := time.After(within)
	for {
		text, wake := p.out.text()
		for l := range strings.Lines(text[from:]) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(l), prefix); ok && strings.HasSuffix(l, "\n") {
				return rest, nil
			}
		}
		select {
		case <-wake:
		case <-p.done:
			return "", fmt.Errorf("it has ended without %q:\n%s", prefix, tail(text))
		case <-late:
			return "", fmt.Errorf("no %q within %v:\n%s", prefix, within, tail(text))
		}
	}
}

// tail is the end of a long text.
func tail(s string) string { return s[max(0, len(s)-6000):] }
