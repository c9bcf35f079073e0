package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/attachframe"
)

// interactive starts a process with a terminal and joins it to ours.
func (a *app) interactive(ctx context.Context, g client.Guest, env string, req *gen.StartProcess, keys string) error {
	in, ok := terminalOf(a.In, a.IsTerminal)
	if !ok {
		return errors.New("standard input is no terminal; fuse exec without --tty needs none")
	}
	size := sizeOf(in)
	req.Tty = &gen.TerminalSize{Rows: size.Rows, Cols: size.Cols}
	if t := os.Getenv("TERM"); t != "" && req.Env["TERM"] == "" {
		vars := map[string]string{"TERM": t}
		for k, v := range req.Env {
			vars[k] = v
		}
		req.Env = vars
	}
	if _, err := parseKeys(keys); err != nil {
		return a.Usage("%w", err)
	}
	if _, err := g.Start(ctx, env, *req); err != nil {
		return err
	}
	s := &session{app: a, g: g, env: env, id: req.ID, owned: true, keys: client.NewKeyboard()}
	return s.run(ctx, keys)
}

func sizeOf(f *os.File) attachframe.Size {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || rows <= 0 || cols <= 0 {
		return attachframe.Size{Rows: 24, Cols: 80}
	}
	return attachframe.Size{Rows: rows, Cols: cols}
}

// session is our terminal joined to that of a process.
type session struct {
	*app
	g       client.Guest
	env, id string
	owned   bool // it was started for this session and ends with it

	seen int64 // of the output
	keys *client.Keyboard

	mu   sync.Mutex
	conn *client.Terminal // nil while there is none
}

var errDetached = errors.New("detached")

// run joins the terminals until the process ends or is left. Ours is restored
// on every way out.
func (s *session) run(ctx context.Context, keys string) error {
	seq, err := parseKeys(keys)
	if err != nil {
		return s.Usage("%w", err)
	}
	in, ok := terminalOf(s.In, s.IsTerminal)
	if !ok {
		return errors.New("standard input is no terminal")
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("take over the terminal: %w", err)
	}
	restore := sync.OnceFunc(func() { _ = term.Restore(int(in.Fd()), before) }) // the terminal is gone if it fails
	defer restore()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	go func() { // ends with ctx
		for {
			select {
			case <-resized:
				s.tell(func(t *client.Terminal) error { return t.Resize(sizeOf(in)) })
			case <-hangup:
				cancel(context.Canceled)
			case <-ctx.Done():
				return
			}
		}
	}()
	// Not waited for: a read of a terminal ends when it likes.
	go s.read(ctx, in, &detector{keys: seq}, cancel)
	exit, err := s.show(ctx, in)
	restore()
	switch {
	case errors.Is(context.Cause(ctx), errDetached):
		return s.left(context.WithoutCancel(ctx))
	case err != nil:
		return err
	}
	if s.owned {
		s.forget(ctx, s.g, s.env, s.id)
	}
	return s.ended(exit)
}

// left lets the process go on without anybody.
func (s *session) left(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := s.g.Act(ctx, s.env, s.id, "adjust", gen.ProcessAction{}); err != nil {
		return fmt.Errorf("let the process go on: %w", err)
	}
	s.Progress("\nleft running; come back with: fuse attach %s %s", s.env, s.id)
	return nil
}

// reconnectFor bounds how long a connection that broke is tried again.
const reconnectFor = 2 * time.Minute

// show passes output on until the process ends, over as many connections as it
// takes.
func (s *session) show(ctx context.Context, in *os.File) (*attachframe.ExitStatus, error) {
	lost := time.Time{}
	for {
		exit, err := s.once(ctx, in, &lost)
		var answer *client.Error
		switch {
		case exit != nil || ctx.Err() != nil:
			return exit, context.Cause(ctx)
		case errors.As(err, &answer) && answer.Status != 503 && answer.Status != 502:
			return nil, err
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > reconnectFor:
			return nil, err
		}
		timer := time.NewTimer(500 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (s *session) once(ctx context.Context, in *os.File, lost *time.Time) (*attachframe.ExitStatus, error) {
	t, err := s.g.Attach(ctx, s.env, s.id, s.seen, sizeOf(in), s.keys)
	if err != nil {
		return nil, err
	}
	sending, stop := context.WithCancel(ctx)
	var typing sync.WaitGroup
	typing.Go(func() { _ = s.keys.Send(sending, t) }) // a cut is noticed where output is read
	s.joined(t)
	defer func() {
		s.joined(nil)
		stop()
		t.Close()
		typing.Wait()
	}()
	*lost = time.Time{}
	for {
		out, exit, err := t.Next()
		if err != nil || exit != nil {
			return exit, err
		}
		s.seen += int64(len(out))
		if _, err := s.Out.Write(out); err != nil {
			return nil, err
		}
	}
}

// joined makes t the one that is told of our size; nil: there is none.
func (s *session) joined(t *client.Terminal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = t
}

// tell sends something while there is a connection.
func (s *session) tell(send func(*client.Terminal) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = send(s.conn) // a cut is noticed where output is read
	}
}

// flushFor is how long the detach keys wait until what was typed before them has
// been taken.
const flushFor = 5 * time.Second

// read sends what is typed, until the detach keys.
func (s *session) read(ctx context.Context, in *os.File, d *detector, cancel context.CancelCauseFunc) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		out, detach := d.feed(buf[:n])
		if s.keys.Type(ctx, out) != nil {
			return
		}
		if detach {
			ctx, stop := context.WithTimeout(ctx, flushFor)
			_ = s.keys.Flush(ctx) // what is not taken by then is lost
			stop()
			cancel(errDetached)
			return
		}
		if err != nil {
			return
		}
	}
}

// detector finds the detach keys in what is typed.
type detector struct {
	keys    []byte
	matched int
}

// feed returns what is to be sent of p; keys that may begin the sequence are
// held back until the next one tells.
func (d *detector) feed(p []byte) (out []byte, detach bool) {
	if len(d.keys) == 0 {
		return p, false
	}
	for _, b := range p {
		switch {
		case b == d.keys[d.matched]:
			d.matched++
			if d.matched == len(d.keys) {
				return out, true
			}
			continue
		case d.matched > 0:
			out = append(out, d.keys[:d.matched]...)
			d.matched = 0
			if b == d.keys[0] {
				d.matched = 1
				continue
			}
		}
		out = append(out, b)
	}
	return out, false
}

// parseKeys reads keys such as "ctrl-p,ctrl-q" or "~,.".
func parseKeys(text string) ([]byte, error) {
	var out []byte
	if text == "" {
		return nil, nil
	}
	for key := range strings.SplitSeq(text, ",") {
		if rest, ok := strings.CutPrefix(key, "ctrl-"); ok && len(rest) == 1 && strings.Contains("@abcdefghijklmnopqrstuvwxyz[\\]^_", rest) {
			out = append(out, rest[0]&0x1f)
			continue
		}
		if len(key) != 1 {
			return nil, fmt.Errorf("detach key %q is neither a character nor ctrl- and one", key)
		}
		out = append(out, key[0])
	}
	return out, nil
}
