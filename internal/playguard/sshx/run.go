package sshx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Limits of a command's output, in bytes.
const (
	MaxStdout = observe.MaxAnswer + observe.MaxPreamble
	MaxStderr = 64 << 10
)

// Command is one thing to run. Line is a constant, or made with Quote; what
// anybody else wrote travels in Stdin.
type Command struct {
	Line  string
	Stdin []byte
	// Input is standard input as it comes, instead of Stdin. Its reads must end
	// when the caller has gone.
	Input io.Reader
	// Stdout and Stderr receive output as it comes; nil collects it in the
	// Result.
	Stdout io.Writer
	Stderr io.Writer
	// Terminal asks for one on the host; nil for none.
	Terminal *Terminal
	// Stream marks a command of a person, which may go on for hours: it takes
	// one of MaxStreams sessions or none.
	Stream bool
}

// Terminal is the terminal of a command.
type Terminal struct {
	Name string // as TERM has it
	Size Size
	// Resizes are its later sizes; may be nil. Whoever sends ends with ctx.
	Resizes <-chan Size
}

// Size of a terminal in characters.
type Size struct{ Rows, Columns int }

// Result is how a command ended. Stdout and Stderr are what came until then.
type Result struct {
	Ending observe.Ending
	Status int // with EndedExit and EndedSignal
	Stdout []byte
	Stderr []byte
	From   time.Time
	To     time.Time
}

// Run runs a command in a session of its own until it ends, ctx ends, it
// writes too much or the connection is lost. The result says which; the error
// repeats every ending but an exit or a signal. Ending a session does not end
// the command on the host: it has its own deadline there.
func (c *Conn) Run(ctx context.Context, cmd Command) (Result, error) {
	res := Result{From: time.Now()}
	err := c.run(ctx, cmd, &res)
	res.To = time.Now()
	if err != nil {
		res.Ending = EndingOf(err)
	}
	return res, err
}

func (c *Conn) run(ctx context.Context, cmd Command, res *Result) error {
	giveBack, err := c.take(ctx, cmd.Stream)
	if err != nil {
		return err
	}
	session, err := c.session(ctx, giveBack)
	if err != nil {
		return err
	}
	out, errText := &bounded{left: MaxStdout, to: cmd.Stdout}, &bounded{left: MaxStderr, drop: true, to: cmd.Stderr}
	over := make(chan struct{})
	out.over = sync.OnceFunc(func() { close(over) })
	errText.over = out.over
	if cmd.Stdout != nil {
		out.left = -1
	}
	session.Stdin, session.Stdout, session.Stderr = bytes.NewReader(cmd.Stdin), out, errText
	if cmd.Input != nil {
		session.Stdin = cmd.Input
	}
	resized := c.terminal(ctx, session, cmd.Terminal)
	ended := make(chan error, 1)
	c.goes.Go(func() {
		// sshd counts a session until its command has ended, also when nobody
		// waits for it any more; so does the slot.
		defer giveBack()
		err := resized.begin()
		if err == nil {
			err = session.Run(cmd.Line)
		}
		resized.end()
		ended <- err
	})

	done := false
	select {
	case err = <-ended:
		done = true
	case <-over:
	case <-ctx.Done():
	case <-c.done:
	}
	cut := c.cut(ctx, over, done, err)
	if !done {
		// Telling the host may block on a dead way to it until the connection
		// ends; that is for the keepalive to decide.
		c.goes.Go(func() { session.Close() }) //nolint:errcheck // it is given up
	}
	res.Stdout, res.Stderr = out.bytes(), errText.bytes()
	if cut != nil {
		return cut
	}
	return c.outcome(err, res)
}

// cut is what cut a command short; nil: its end came, or the link broke. The end of
// what it was cut by may come as an end of its own, so that one explains the other.
func (c *Conn) cut(ctx context.Context, over <-chan struct{}, ended bool, end error) error {
	var exit *ssh.ExitError
	select {
	case <-over:
		return &Error{Ending: observe.EndedOutputOver, Op: "run on " + c.address, Err: errors.New("it writes more than is taken")}
	default:
	}
	switch {
	case ended && (end == nil || errors.As(end, &exit)):
		return nil
	case ctx.Err() != nil:
		return &Error{Ending: observe.EndedDeadline, Op: "run on " + c.address, Err: context.Cause(ctx)}
	case c.over():
		return c.lost("run")
	}
	return nil
}

// session opens one. The library has no way to stop waiting for it: one that
// comes late is closed and keeps its slot until then, and whatever else goes on
// over the connection is left alone. Without a session the slot is given back.
func (c *Conn) session(ctx context.Context, giveBack func()) (*ssh.Session, error) {
	type answer struct {
		session *ssh.Session
		err     error
	}
	came, late := make(chan answer), make(chan struct{})
	opened := c.opening()
	c.goes.Go(func() {
		s, err := c.client.NewSession()
		opened()
		select {
		case came <- answer{s, err}:
		case <-late:
			if err == nil {
				s.Close() //nolint:errcheck // nobody waits for it
			}
			giveBack()
		}
	})
	timer := time.NewTimer(c.limits.Session)
	defer timer.Stop()
	var a answer
	select {
	case a = <-came:
	case <-timer.C:
		close(late)
		return nil, &Error{Ending: observe.EndedDeadline, Op: "open a session on " + c.address, Err: errDeadline}
	case <-ctx.Done():
		close(late)
		return nil, &Error{Ending: observe.EndedDeadline, Op: "open a session on " + c.address, Err: context.Cause(ctx)}
	case <-c.done:
		close(late)
		return nil, c.lost("open a session")
	}
	if a.err == nil {
		return a.session, nil
	}
	giveBack()
	var refused *ssh.OpenChannelError
	if errors.As(a.err, &refused) {
		return nil, &Error{Ending: observe.EndedSession, Op: "open a session on " + c.address, Err: a.err}
	}
	if c.over() {
		return nil, c.lost("open a session")
	}
	return nil, &Error{Ending: observe.EndedWithout, Op: "open a session on " + c.address, Err: a.err}
}

// terminalOf is the terminal of a session while its command runs.
type terminalOf struct {
	conn    *Conn
	session *ssh.Session
	want    *Terminal
	ctx     context.Context
	cancel  context.CancelFunc
}

func (c *Conn) terminal(ctx context.Context, session *ssh.Session, want *Terminal) terminalOf {
	t := terminalOf{conn: c, session: session, want: want}
	t.ctx, t.cancel = context.WithCancel(ctx)
	return t
}

func (t terminalOf) begin() error {
	if t.want == nil {
		return nil
	}
	name := t.want.Name
	if name == "" {
		name = "xterm"
	}
	size := t.want.Size
	if err := t.session.RequestPty(name, max(size.Rows, 1), max(size.Columns, 1), ssh.TerminalModes{}); err != nil {
		return fmt.Errorf("ask for a terminal: %w", err)
	}
	if t.want.Resizes != nil {
		t.conn.goes.Go(t.follow)
	}
	return nil
}

// follow passes on the sizes that the terminal takes.
func (t terminalOf) follow() {
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.conn.done:
			return
		case s, ok := <-t.want.Resizes:
			if !ok || t.session.WindowChange(max(s.Rows, 1), max(s.Columns, 1)) != nil {
				return
			}
		}
	}
}

func (t terminalOf) end() { t.cancel() }

func (c *Conn) outcome(err error, res *Result) error {
	var exit *ssh.ExitError
	switch {
	case err == nil:
		res.Ending = observe.EndedExit
		return nil
	case errors.As(err, &exit):
		res.Ending, res.Status = observe.EndedExit, exit.ExitStatus()
		if exit.Signal() != "" {
			res.Ending = observe.EndedSignal
		}
		return nil
	}
	return &Error{Ending: observe.EndedWithout, Op: "run on " + c.address, Err: err}
}

// bounded collects or passes on output up to a limit.
type bounded struct {
	mu   sync.Mutex // a session that was given up may still write
	buf  bytes.Buffer
	to   io.Writer
	left int  // negative: no limit
	drop bool // what is over the limit is dropped, not an end
	over func()
}

var errOver = errors.New("too much output")

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	n := len(p)
	if b.to != nil {
		n, err := b.to.Write(p)
		if err != nil { // the host would wait for a reader for good
			b.over()
		}
		return n, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left >= 0 && n > b.left {
		p = p[:b.left]
	}
	b.buf.Write(p)
	b.left -= len(p)
	if len(p) == n || b.drop {
		return n, nil
	}
	b.over()
	return len(p), errOver
}

func (b *bounded) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}
