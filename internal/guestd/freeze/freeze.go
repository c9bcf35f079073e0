// Package freeze holds a machine still while it is captured, and lets it go on
// afterwards: the captured machine by itself, what was made from it only once
// it has been renewed. It is shut in doubt: what cannot tell that it is the
// captured machine stays as it is.
package freeze

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Limits in time.
const (
	DefaultLimit = 10 * time.Second // of standing still
	maxLimit     = 2 * time.Minute
	// Settle bounds the wait for everything to stand still.
	Settle = 5 * time.Second
)

// System is the kernel's part.
type System interface {
	// FreezeProcesses stops every process of users and returns how many there
	// are; when ctx ends first it lets them go on.
	FreezeProcesses(ctx context.Context) (int, error)
	ThawProcesses() error
	// FreezeFilesystem makes the disk whole and keeps it as it is; when ctx ends
	// first, it undoes that as soon as it can.
	FreezeFilesystem(ctx context.Context) error
	ThawFilesystem() error
	// Tell tells every process that it lives in another machine now.
	Tell() (int, error)
}

// Starts are the starts of commands; *process.Runner is one.
type Starts interface {
	Hold(ctx context.Context) error
	Let()
}

// Config of a Freezer. All is needed but Log.
type Config struct {
	System System
	Starts Starts
	// Incarnation is the identity of the virtual machine that this kernel runs
	// in now, as the machine's own hardware tells it; empty: it does not.
	Incarnation func() string
	Log         *slog.Logger
}

// Request says what is to stand still.
type Request struct {
	Processes  bool
	Filesystem bool
	Limit      time.Duration
	KeyHash    [sha256.Size]byte // of the key that opens what is made of the capture
}

// Report is what stands still, and how long it took to.
type Report struct {
	Froze, Synced time.Duration
	Processes     int
}

// Freezer is the one place that knows whether the machine stands still.
type Freezer struct {
	cfg  Config
	turn chan struct{} // held through each change

	mu   sync.Mutex
	held *hold // nil while the machine runs
	open chan struct{}
	last hold // the one that ended last, for a repeated Thaw
}

// hold is one standing still.
type hold struct {
	req         Request
	since       time.Time
	incarnation string
	generation  string // once renewed
	renewedIn   string // incarnation
	timer       *time.Timer
}

// New makes a freezer of a machine that runs.
func New(cfg Config) *Freezer {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	f := &Freezer{cfg: cfg, turn: make(chan struct{}, 1), open: make(chan struct{})}
	close(f.open)
	return f
}

// take waits for the other changes.
func (f *Freezer) take(ctx context.Context) (func(), error) {
	select {
	case f.turn <- struct{}{}:
		return func() { <-f.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Frozen says whether the machine stands still.
func (f *Freezer) Frozen() bool { return f.current() != nil }

func (f *Freezer) current() *hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// Generation is that of the last continuation from a capture; empty: none.
func (f *Freezer) Generation() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held != nil && f.held.generation != "" {
		return f.held.generation
	}
	return f.last.generation
}

// Await returns once the machine runs.
func (f *Freezer) Await(ctx context.Context) error {
	f.mu.Lock()
	open := f.open
	f.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Freeze makes the machine stand still. What it did is undone on an error, and
// at the limit.
func (f *Freezer) Freeze(ctx context.Context, req Request) (Report, error) {
	if req.Processes == req.Filesystem {
		return Report{}, fleet.Errorf(fleet.CodeInvalidArgument, "either the processes are frozen, for a capture of the memory, or the filesystem, for one of the disk")
	}
	if req.Limit <= 0 {
		req.Limit = DefaultLimit
	}
	if req.Limit > maxLimit {
		return Report{}, fleet.Errorf(fleet.CodeInvalidArgument, "the machine cannot stand still for %s", req.Limit).With(fleet.DetailLimit, maxLimit.String())
	}
	done, err := f.take(ctx)
	if err != nil {
		return Report{}, err
	}
	defer done()
	if f.Frozen() {
		return Report{}, fleet.Errorf(fleet.CodeConflict, "the machine stands still already")
	}
	h := &hold{req: req, incarnation: f.cfg.Incarnation()}
	ctx, cancel := context.WithTimeout(ctx, min(Settle, req.Limit))
	defer cancel()
	var report Report
	begun := time.Now()
	if req.Processes {
		report.Processes, err = f.stop(ctx)
		report.Froze = time.Since(begun)
	} else {
		err = f.cfg.System.FreezeFilesystem(ctx)
		report.Synced = time.Since(begun)
	}
	if err != nil {
		return Report{}, err
	}
	h.since = begun
	f.mu.Lock()
	f.held, f.open = h, make(chan struct{})
	f.mu.Unlock()
	h.timer = time.AfterFunc(req.Limit, func() { f.expire(h) })
	return report, nil
}

// stop stops the processes and keeps others from starting.
func (f *Freezer) stop(ctx context.Context) (int, error) {
	if err := f.cfg.Starts.Hold(ctx); err != nil {
		return 0, fmt.Errorf("wait for commands that start: %w", err)
	}
	n, err := f.cfg.System.FreezeProcesses(ctx)
	if err != nil {
		f.cfg.Starts.Let()
	}
	return n, err
}

// expire ends a hold whose caller did not come back. What may be a machine
// made from the capture stays shut: its host alone opens it.
func (f *Freezer) expire(h *hold) {
	done, err := f.take(context.Background())
	if err != nil {
		return
	}
	defer done()
	if f.current() != h {
		return
	}
	if h.req.Processes && (h.generation != "" || !f.captured(h, true)) {
		f.cfg.Log.Warn("the machine stands still and may be made from a capture: it waits for its host")
		return
	}
	f.cfg.Log.Warn("the machine goes on by itself: whoever captured it did not come back", "after", h.req.Limit)
	if err := f.end(h); err != nil {
		f.cfg.Log.Error("the machine cannot go on", "error", err)
	}
}

// captured reports whether this is the machine that was captured, not one made
// from it. Where the hardware does not tell, only the host knows: sure wants
// proof.
func (f *Freezer) captured(h *hold, sure bool) bool {
	now := f.cfg.Incarnation()
	if h.incarnation == "" && now == "" {
		return !sure
	}
	return now == h.incarnation
}

// Release lets the captured machine go on, and says how long it stood still.
func (f *Freezer) Release(ctx context.Context) (time.Duration, error) {
	done, err := f.take(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	h := f.current()
	if h == nil {
		return 0, nil
	}
	if h.req.Processes && (h.generation != "" || !f.captured(h, false)) {
		return 0, fleet.Errorf(fleet.CodeConflict, "this machine was made from a capture and has to be renewed first")
	}
	if err := f.end(h); err != nil {
		return 0, err
	}
	return time.Since(h.since), nil
}

// end lets everything go on.
func (f *Freezer) end(h *hold) error {
	var err error
	if h.req.Processes {
		err = f.cfg.System.ThawProcesses()
	} else {
		err = f.cfg.System.ThawFilesystem()
	}
	if err != nil {
		return err
	}
	if h.req.Processes {
		f.cfg.Starts.Let()
	}
	h.timer.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.held = *h, nil
	close(f.open)
	return nil
}

// Opens reports whether a key is that of the freeze that holds, or held last.
func (f *Freezer) Opens(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := &f.last
	if f.held != nil {
		h = f.held
	}
	sum := sha256.Sum256([]byte(key))
	return h.req.Processes && h.req.KeyHash != [sha256.Size]byte{} && subtle.ConstantTimeCompare(sum[:], h.req.KeyHash[:]) == 1
}

// Renew runs renew while the machine stands still. Afterwards only Thaw of the
// same generation lets it go on; Renew may be repeated.
func (f *Freezer) Renew(ctx context.Context, generation string, renew func() error) error {
	if generation == "" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "a continuation needs a generation")
	}
	done, err := f.take(ctx)
	if err != nil {
		return err
	}
	defer done()
	h := f.current()
	switch {
	case h == nil || !h.req.Processes:
		return fleet.Errorf(fleet.CodeConflict, "the machine does not stand still for a capture of its memory")
	case f.captured(h, true):
		return fleet.Errorf(fleet.CodeConflict, "this is the captured machine itself: it is released, not renewed")
	}
	f.mu.Lock()
	h.generation, h.renewedIn = generation, f.cfg.Incarnation() // from here on nothing else opens it, whatever fails
	f.mu.Unlock()
	return renew()
}

// Thaw tells the processes and lets them go on. A repeat is success.
func (f *Freezer) Thaw(ctx context.Context, generation string, renewed func() error) (told int, held time.Duration, err error) {
	done, err := f.take(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	h := f.current()
	if h == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if generation != "" && f.last.generation == generation {
			return 0, 0, nil
		}
		return 0, 0, fleet.Errorf(fleet.CodeConflict, "the machine does not stand still")
	}
	if generation == "" || h.generation != generation || h.renewedIn != f.cfg.Incarnation() {
		return 0, 0, fleet.Errorf(fleet.CodeConflict, "the machine has not been renewed for this generation")
	}
	if err := renewed(); err != nil {
		return 0, 0, err
	}
	if told, err = f.cfg.System.Tell(); err != nil {
		return 0, 0, err
	}
	if err := f.end(h); err != nil {
		return 0, 0, err
	}
	return told, time.Since(h.since), nil
}

// ErrLate says that something did not stand still in time.
var ErrLate = errors.New("not everything stood still in time")
