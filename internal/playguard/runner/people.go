package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Logs selects what of a playground's output is read.
type Logs struct {
	Playground model.PlaygroundID
	Services   []string // none: all
	Follow     bool
	Tail       int           // lines of each container that are there already
	Since      time.Duration // not older than that; 0: all
	Stamps     bool          // the time before each line
}

// Exec is a command in a running container of a service.
type Exec struct {
	Playground model.PlaygroundID
	Service    string
	Command    []string
	Env        map[string]string // reaches no command line
	User       string
	Workdir    string
	Stdin      []byte
	Input      io.Reader // instead of Stdin, as it comes
	Terminal   *sshx.Terminal
	Stdout     io.Writer
	Stderr     io.Writer
}

// hangupLimit bounds telling the host that nobody listens any more.
const hangupLimit = 10 * time.Second

// Logs writes the output of the playground's containers to w, as lines of
// "service-number | text". With Follow it ends with ctx, which is no error.
func (h Host) Logs(ctx context.Context, sh Shell, q Logs, w io.Writer) error {
	words := []string{string(q.Playground), bit(q.Follow), strconv.Itoa(max(q.Tail, 0)), strconv.Itoa(int(q.Since / time.Second)), bit(q.Stamps)}
	s := stream{host: h, shell: sh, name: nonce()}
	if err := s.prepare(ctx, nil); err != nil {
		return err
	}
	errText := &clipped{left: sshx.MaxStderr}
	status, err := s.run(ctx, append(append([]string{"logs"}, s.args()...), append(words, q.Services...)...), sshx.Command{Stdout: w, Stderr: s.marked(errText)})
	switch {
	case err != nil && ctx.Err() != nil && q.Follow:
		return nil
	case err != nil:
		return fmt.Errorf("read logs: %w", err)
	}
	return outcome("read logs", sshx.Result{Status: status, Stderr: errText.bytes()}, nil)
}

// Exec runs a command and returns its exit status; an error means that its end
// is not known. If ctx ends before it, the command is told to end, as it is if
// the connection is lost.
func (h Host) Exec(ctx context.Context, sh Shell, e Exec) (int, error) {
	if len(e.Command) == 0 {
		return 0, fleet.Invalid("command", "a program and its arguments", "", "is empty")
	}
	var env bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		if name == "" || strings.ContainsAny(name, "=\n\x00 ") || strings.ContainsAny(e.Env[name], "\n\x00") {
			return 0, fleet.Invalid("env", "names without spaces and =, values of one line", "", "has %.80q, which no environment file can hold", name)
		}
		fmt.Fprintf(&env, "%s=%s\n", name, e.Env[name])
	}
	s := stream{host: h, shell: sh, name: nonce()}
	if err := s.prepare(ctx, env.Bytes()); err != nil {
		return 0, err
	}
	cmd := sshx.Command{Stdin: e.Stdin, Input: e.Input, Terminal: e.Terminal, Stdout: e.Stdout, Stderr: e.Stderr}
	own := &clipped{left: sshx.MaxStderr} // what comes before the mark is the runner's
	if e.Terminal != nil {
		cmd.Stdout = s.markedOr(own, orDiscard(e.Stdout))
	} else {
		cmd.Stdout, cmd.Stderr = orDiscard(e.Stdout), s.markedOr(own, orDiscard(e.Stderr))
	}
	args := append(append([]string{"execute"}, s.args()...), string(e.Playground), e.Service, bit(e.Terminal != nil), e.User, e.Workdir)
	status, err := s.run(ctx, append(args, e.Command...), cmd)
	switch {
	case err != nil:
		return 0, fmt.Errorf("run a command in %s: %w", e.Service, err)
	case s.mark.seen():
		return status, nil
	case status == statusNoContainer:
		return 0, fleet.Errorf(fleet.CodeConflict, "service %s has no running container", e.Service).
			With(fleet.DetailRemedy, "see what runs with 'fuse playground explain'")
	}
	if err := outcome("run a command in "+e.Service, sshx.Result{Status: status, Stderr: own.bytes()}, nil); err != nil {
		return 0, err
	}
	return 0, fleet.Errorf(fleet.CodeUnavailable, "run a command in %s: the host ended it before it began", e.Service)
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// stream is one command that a person waits for.
type stream struct {
	host  Host
	shell Shell
	name  string
	mark  *marker
}

func (s *stream) args() []string {
	return []string{s.host.Layout.Root(), string(s.host.Installation), s.name}
}

// prepare brings the runner and the environment there. What follows cannot be
// tried a second time, because its input is gone by then.
func (s *stream) prepare(ctx context.Context, env []byte) error {
	res, err := s.host.call(ctx, s.shell, env, append([]string{"keep"}, s.args()...)...)
	return outcome("reach the host", res, err)
}

// run runs a verb without a limit of the host's. When ctx ends first, or nobody
// takes what comes, the host is told.
func (s *stream) run(ctx context.Context, words []string, cmd sshx.Command) (int, error) {
	line, _, err := s.host.line(0, words...)
	if err != nil {
		return 0, err
	}
	cmd.Line, cmd.Stream = line, true
	res, err := s.shell.Run(ctx, cmd)
	if ctx.Err() != nil || err != nil && sshx.EndingOf(err) == observe.EndedOutputOver {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangupLimit)
		defer cancel()
		// A connection that is gone ends it too.
		_, _ = s.host.call(late, s.shell, nil, append([]string{"hangup"}, s.args()...)...)
	}
	if err == nil && res.Ending == observe.EndedSignal {
		return res.Status, fleet.Errorf(fleet.CodeUnavailable, "the host ended it")
	}
	return res.Status, err
}

func (s *stream) marked(rest io.Writer) io.Writer { return s.markedOr(rest, rest) }

func (s *stream) markedOr(before, after io.Writer) io.Writer {
	s.mark = &marker{want: "FUSE-STREAM " + s.name, before: before, after: after}
	return s.mark
}

// marker passes on what comes before and after the line by which the host says
// that output follows.
type marker struct {
	want          string
	before, after io.Writer

	mu    sync.Mutex
	line  []byte
	early int // bytes of the lines before it
	done  bool
}

// maxEarly bounds what a host may say before the line, in bytes: banners, its
// own errors, and the echo of what was typed early.
const maxEarly = 64 << 10

var errEarly = errors.New("the host says too much before the output begins")

func (m *marker) seen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done
}

// Write implements io.Writer.
func (m *marker) Write(p []byte) (int, error) {
	m.mu.Lock()
	if m.done {
		m.mu.Unlock()
		return m.after.Write(p) // may block: the lock is not held
	}
	defer m.mu.Unlock()
	m.line = append(m.line, p...)
	for {
		end := bytes.IndexByte(m.line, '\n')
		switch {
		case end < 0 && len(m.line) > maxEarly:
			return 0, errEarly
		case end < 0:
			return len(p), nil
		}
		// A terminal may have echoed what was typed early, in front of it.
		if early, is := strings.CutSuffix(strings.TrimRight(string(m.line[:end]), "\r"), m.want); is {
			m.done = true
			rest := append([]byte(early), m.line[end+1:]...)
			m.line = nil
			if len(rest) == 0 {
				return len(p), nil
			}
			if _, err := m.after.Write(rest); err != nil {
				return 0, err
			}
			return len(p), nil
		}
		if m.early += end + 1; m.early > maxEarly {
			return 0, errEarly
		}
		if _, err := m.before.Write(m.line[:end+1]); err != nil {
			return 0, err
		}
		m.line = m.line[end+1:]
	}
}

// clipped keeps the beginning of what is written to it.
type clipped struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	left int
}

// Write implements io.Writer.
func (c *clipped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(p), c.left)
	c.left -= n
	c.buf.Write(p[:n])
	return len(p), nil
}

func (c *clipped) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.buf.Bytes())
}
