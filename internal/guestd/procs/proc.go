package procs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
)

// Why a process ended that did not by itself.
var (
	errRemoved    = errors.New("it was removed")
	errUnfollowed = errors.New("nobody followed it any more")
	errClosing    = errors.New("the guest agent ends")
)

// The streams of a process.
const (
	stdout = iota
	stderr
	streams
)

// proc is one process.
type proc struct {
	id      string
	spec    Spec
	started time.Time
	ctx     context.Context //nolint:containedctx // the life of the process
	cancel  context.CancelCauseFunc
	input   *input // nil: it takes none
	up      chan struct{}
	done    chan struct{}

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change
	out       [streams]stream
	handle    process.Handle // nil: not started
	status    fleet.ExecStatus
	failure   error
	ended     time.Time // zero: it runs
	followers int
	linger    *time.Timer // runs while nobody follows
	expiry    *time.Timer // runs once it has ended
	reserved  int64       // of the table's memory; guarded by the table's lock
}

// stream is what a process wrote to one of its outputs.
type stream struct {
	ring
	read int64 // everything before is the reader's own business
}

func (p *proc) changedLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// outlet is where a process writes one stream.
type outlet struct {
	p     *proc
	which int
}

// Write keeps b. If the process holds its output it waits for the reader, else
// the oldest bytes are dropped.
func (o outlet) Write(b []byte) (int, error) {
	p, written := o.p, 0
	for {
		p.mu.Lock()
		s := &p.out[o.which]
		n := len(b)
		if p.spec.Hold {
			n = int(min(int64(n), max(0, s.size()-(s.end-s.read))))
		}
		if n > 0 {
			s.write(b[:n])
			b, written = b[n:], written+n
			p.changedLocked()
		}
		wait := p.changed
		p.mu.Unlock()
		if len(b) == 0 {
			return written, nil
		}
		select {
		case <-wait:
		case <-p.ctx.Done():
			return written, context.Cause(p.ctx)
		}
	}
}

// run runs the process and keeps how it ended.
func (p *proc) run(r Runner) {
	stdio := process.IO{
		Stdout: outlet{p, stdout}, Stderr: outlet{p, stderr}, Terminal: p.spec.Terminal, Namespaces: p.spec.Namespaces,
		Started: func(h process.Handle) {
			p.mu.Lock()
			p.handle = h
			p.changedLocked()
			p.mu.Unlock()
			close(p.up)
		},
	}
	if p.spec.Terminal != nil {
		stdio.Stderr = stdio.Stdout
	}
	if p.input != nil {
		stdio.Stdin = p.input
	}
	status, err := r.Run(p.ctx, p.spec.Command, stdio, nil)
	if cause := context.Cause(p.ctx); err != nil && cause != nil {
		err = cause
	}
	if p.input != nil {
		_ = p.input.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.failure, p.ended = status, err, time.Now()
	if p.linger != nil {
		p.linger.Stop()
	}
	p.changedLocked()
	close(p.done)
}

// follow counts a follower in; the result counts it out.
func (p *proc) follow() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followers++
	if p.linger != nil {
		p.linger.Stop()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.followers--
		p.lingerLocked()
	}
}

// lingerLocked ends the process if nobody follows it for its time.
func (p *proc) lingerLocked() {
	if p.spec.Linger <= 0 || p.followers > 0 || !p.ended.IsZero() {
		return
	}
	if p.linger == nil {
		p.linger = time.AfterFunc(p.spec.Linger, p.unfollowed)
		return
	}
	p.linger.Reset(p.spec.Linger)
}

func (p *proc) unfollowed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.followers == 0 {
		p.cancel(errUnfollowed)
	}
}

// Streams of a piece.
const (
	Stdout = stdout + 1
	Stderr = stderr + 1
)

// Piece is a part of one stream's output. Gap output begins beyond the end of
// the piece before.
type Piece struct {
	Stream int // Stdout or Stderr
	Offset int64
	Data   []byte
}

// Follow says what to read of a process.
type Follow struct {
	Stdout, Stderr int64
	// Limit ends the reading after about so many bytes; zero: none. With it,
	// what a process holds counts as read only when it is asked for what follows.
	Limit int64
	// Wait for output that is yet to come.
	Wait bool
	// Quiet is how long nothing may happen before quiet is called; zero: never.
	Quiet time.Duration
}

// pieceSize bounds one piece, in bytes.
const pieceSize = process.ChunkSize

// Sink takes what is read; an error ends the reading.
type Sink struct {
	Piece func(Piece) error
	Quiet func() error
}

// copyOut sends output until there is no more to send now. ended is true once
// the process has ended and all was sent.
func (p *proc) copyOut(ctx context.Context, f Follow, sink Sink) (ended bool, err error) {
	at := [streams]int64{f.Stdout, f.Stderr}
	if err := p.acknowledge(at, f.Limit > 0); err != nil {
		return false, err
	}
	buf, sent := make([]byte, pieceSize), int64(0)
	for {
		piece, next := p.next(&at, buf, f.Limit > 0 && sent >= f.Limit)
		if piece.Stream > 0 {
			if err := sink.Piece(piece); err != nil {
				return false, err
			}
			sent += int64(len(piece.Data))
			if f.Limit == 0 {
				p.sent(piece)
			}
			continue
		}
		if next.ended || next.full || !f.Wait {
			return next.ended, nil
		}
		if err := p.await(ctx, next.wait, f.Quiet, sink.Quiet); err != nil {
			return false, err
		}
	}
}

// acknowledge checks where a reader begins, and frees what it has read.
func (p *proc) acknowledge(at [streams]int64, frees bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range at {
		s := &p.out[i]
		if at[i] < 0 || at[i] > s.end {
			return fleet.Errorf(fleet.CodeInvalidArgument, "output stream %d ends at byte %d, before %d", i+1, s.end, at[i]).
				With(fleet.DetailLimit, itoa(s.end)).With(fleet.DetailScope, []string{"stdout", "stderr"}[i])
		}
	}
	for i := range at {
		if s := &p.out[i]; frees && at[i] > s.read {
			s.read = at[i]
			p.changedLocked()
		}
	}
	return nil
}

// sent frees what an endless reader was sent.
func (p *proc) sent(piece Piece) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := &p.out[piece.Stream-1]; piece.Offset+int64(len(piece.Data)) > s.read {
		s.read = piece.Offset + int64(len(piece.Data))
		p.changedLocked()
	}
}

// state is what a reader that has read all there is has to know.
type state struct {
	ended bool
	full  bool // the reader has had enough, or has to come again for the process to go on
	wait  <-chan struct{}
}

// next copies the next piece into buf. A piece without a stream is none.
func (p *proc) next(at *[streams]int64, buf []byte, enough bool) (Piece, state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := state{ended: !p.ended.IsZero(), wait: p.changed, full: enough}
	for i := range at {
		s := &p.out[i]
		if at[i] == s.end {
			st.full = st.full || p.spec.Hold && s.end-s.read >= s.size() && s.size() > 0
			continue
		}
		if enough {
			st.ended = false
			continue
		}
		at[i] = max(at[i], s.start)
		n := s.ring.read(buf, at[i])
		piece := Piece{Stream: i + 1, Offset: at[i], Data: buf[:n]}
		at[i] += int64(n)
		return piece, st
	}
	return Piece{}, st
}

func (p *proc) await(ctx context.Context, change <-chan struct{}, quiet time.Duration, tell func() error) error {
	var silence <-chan time.Time
	if quiet > 0 && tell != nil {
		timer := time.NewTimer(quiet)
		defer timer.Stop()
		silence = timer.C
	}
	select {
	case <-change:
		return nil
	case <-silence:
		return tell()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
