// Package procs keeps a machine's processes as objects: each has an id, goes
// on without its caller, keeps the end of its output to be read by byte offset,
// takes input by offset, and stays for a while after it has ended. What is kept
// is bounded in number, memory and time.
package procs

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
)

// Bounds of what is kept.
const (
	DefaultKeep = 1 << 20  // bytes of a stream
	MaxKeep     = 64 << 20 // bytes of a stream that a caller can ask for
	minKeep     = 64 << 10 // what a stream gets when memory is short
	maxKept     = 128      // processes that have ended
	keepFor     = 15 * time.Minute
	// removeWait is how long a removal waits for the end of the process.
	removeWait = 10 * time.Second
)

// Runner runs commands; *process.Runner is one.
type Runner interface {
	Run(ctx context.Context, spec fleet.ExecSpec, stdio process.IO, started func(pid int)) (fleet.ExecStatus, error)
}

// Config of a Table. Runner is needed.
type Config struct {
	Runner Runner
	Memory int64         // bytes for all output together; zero is 64 MiB
	Keep   time.Duration // of a process that has ended; zero is 15 minutes
}

// Spec is a process to start.
type Spec struct {
	ID       string
	Command  fleet.ExecSpec
	Input    bool          // it will be sent input
	Terminal *process.Size // nil: it gets pipes
	Keep     int64         // bytes of each stream; zero is DefaultKeep
	Hold     bool          // output waits for its reader instead of being dropped
	Linger   time.Duration // how long it goes on when nobody follows it; zero: always
	// Namespaces are flags of clone: what the process gets of its own.
	Namespaces uintptr

	passing bool // it belongs to one call; see Passing
}

// Table holds the processes.
type Table struct {
	cfg  Config
	wait sync.WaitGroup

	mu     sync.Mutex
	procs  map[string]*proc
	order  []*proc // as they were started
	used   int64   // of the memory
	closed bool
}

// New makes an empty table. Close ends what runs.
func New(cfg Config) *Table {
	if cfg.Memory <= 0 {
		cfg.Memory = 64 << 20
	}
	if cfg.Keep <= 0 {
		cfg.Keep = keepFor
	}
	return &Table{cfg: cfg, procs: map[string]*proc{}}
}

var idRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Start starts a process and returns once it runs or has failed to. A repeat
// with the id of one that is there returns that one.
func (t *Table) Start(ctx context.Context, spec Spec) (Info, error) {
	if !idRule.MatchString(spec.ID) {
		return Info{}, fleet.Errorf(fleet.CodeInvalidArgument, "process id %.80q is not allowed", spec.ID).
			With(fleet.DetailScope, "id").With(fleet.DetailLimit, idRule.String()).With(fleet.DetailRemedy, "take another id, or none: one is made")
	}
	if spec.Hold && spec.Linger <= 0 {
		return Info{}, errHoldForever()
	}
	_, info, err := t.begin(ctx, spec)
	return info, err
}

// begin starts a process, or finds it. Beside an error there may be one that is
// still being started.
func (t *Table) begin(ctx context.Context, spec Spec) (*proc, Info, error) {
	p, err := t.add(spec)
	if err != nil {
		return nil, Info{}, err
	}
	select {
	case <-p.up:
	case <-p.done:
	case <-ctx.Done():
		return p, Info{}, context.Cause(ctx)
	}
	info := p.info()
	if p.neverRan() { // what the caller got wrong is an answer, not an object
		t.forget(p)
		return nil, Info{}, info.Failure
	}
	return p, info, nil
}

func (p *proc) neverRan() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handle == nil && p.failure != nil && !p.ended.IsZero() && context.Cause(p.ctx) == nil
}

// add makes the object and has it run, or finds the one that is there. Whoever
// closes the table then waits for it.
func (t *Table) add(spec Spec) (*proc, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "the machine is shutting down")
	}
	if p := t.procs[spec.ID]; p != nil {
		return p, nil
	}
	p := &proc{
		id: spec.ID, spec: spec, started: time.Now(), up: make(chan struct{}), done: make(chan struct{}), changed: make(chan struct{}),
	}
	if err := t.grantLocked(p); err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	if spec.Input || spec.Terminal != nil {
		p.input = newInput()
	}
	t.procs[p.id] = p
	t.order = append(t.order, p)
	p.mu.Lock()
	p.lingerLocked()
	p.mu.Unlock()
	t.wait.Go(func() {
		p.run(t.cfg.Runner)
		t.over(p)
	})
	return p, nil
}

// grantLocked gives a process memory for its output. When there is little left
// those that ended longest ago make room, then it gets less.
func (t *Table) grantLocked(p *proc) error {
	want := p.spec.Keep
	if want <= 0 {
		want = DefaultKeep
	}
	want = min(max(want, minKeep), MaxKeep)
	n := int64(streams)
	if p.spec.Terminal != nil {
		n = 1
	}
	if p.spec.passing { // bounded by how many commands run at once
		return p.makeRings(n, minKeep)
	}
	for t.used+n*want > t.cfg.Memory && t.evictLocked() {
	}
	want = min(want, max((t.cfg.Memory-t.used)/n/4, minKeep)) // something is left for the next
	want = (want + pageSize - 1) / pageSize * pageSize
	if t.used+n*want > t.cfg.Memory {
		return fleet.Errorf(fleet.CodeUnavailable, "the output of running processes takes all the memory that the machine has for it").
			With(fleet.DetailLimit, itoa(t.cfg.Memory)+" bytes").With(fleet.DetailUsage, itoa(t.used)+" bytes").
			With(fleet.DetailRemedy, "end or remove some processes")
	}
	if err := p.makeRings(n, want); err != nil {
		return err
	}
	p.reserved = n * want
	t.used += p.reserved
	return nil
}

func (p *proc) makeRings(n, size int64) error {
	for i := range n {
		r, err := newRing(int(size))
		if err != nil {
			p.freeLocked()
			return fleet.Wrap(fleet.CodeUnavailable, err, "the machine has no memory for the process's output")
		}
		p.out[i].ring = r
	}
	return nil
}

const pageSize = 4096

func (p *proc) freeLocked() {
	for i := range p.out {
		if len(p.out[i].mem) > 0 {
			p.out[i].free()
		}
	}
}

// evictLocked forgets the process that ended longest ago.
func (t *Table) evictLocked() bool {
	var oldest *proc
	for _, p := range t.order {
		if end := p.endedAt(); !end.IsZero() && !p.spec.passing && (oldest == nil || end.Before(oldest.endedAt())) {
			oldest = p
		}
	}
	if oldest != nil {
		t.dropLocked(oldest)
	}
	return oldest != nil
}

func (p *proc) endedAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// dropLocked forgets a process that has ended. Its readers find its output gone.
func (t *Table) dropLocked(p *proc) {
	if t.procs[p.id] != p {
		return
	}
	delete(t.procs, p.id)
	t.order = slices.DeleteFunc(t.order, func(q *proc) bool { return q == p })
	t.used -= p.reserved
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeLocked()
	if p.expiry != nil {
		p.expiry.Stop()
	}
	p.changedLocked()
}

func (t *Table) forget(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(p)
}

// over keeps a process that has ended, for a while and with others of its kind.
func (t *Table) over(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.procs[p.id] != p || p.spec.passing {
		return
	}
	p.mu.Lock()
	if t.closed {
		p.mu.Unlock()
		return
	}
	kept := int64(0)
	for i := range p.out {
		kept += (p.out[i].used() + pageSize - 1) / pageSize * pageSize
	}
	t.used += kept - p.reserved
	p.reserved = kept
	p.expiry = time.AfterFunc(t.cfg.Keep, func() { t.forget(p) })
	p.mu.Unlock()
	ended := 0
	for _, q := range t.order {
		if !q.endedAt().IsZero() && !q.spec.passing {
			ended++
		}
	}
	if ended > maxKept {
		t.evictLocked()
	}
}

func (t *Table) find(id string) (*proc, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.procs[id]
	if p == nil {
		return nil, fleet.Errorf(fleet.CodeNotFound, "this machine has no process %.80q", id).
			With(fleet.DetailRemedy, "one that has ended is kept for "+t.cfg.Keep.String()+", and not over a reboot")
	}
	return p, nil
}

// shared finds a process whose streams are anybody's.
func (t *Table) shared(id string) (*proc, error) {
	p, err := t.find(id)
	if err == nil && p.spec.passing {
		return nil, errPassing(id)
	}
	return p, err
}

// Info is what there is to know of a process.
type Info struct {
	ID       string
	PID      int
	Argv     []string
	Started  time.Time
	Ended    time.Time // zero: it runs
	Status   fleet.ExecStatus
	Failure  error // why it was not run or watched to its end
	Terminal bool
	HasInput bool
	Input    int64 // how much of it was taken
	Out      [streams]Range
}

// Range is which bytes of a stream are kept.
type Range struct{ Start, End int64 }

func (p *proc) info() Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := Info{
		ID: p.id, Argv: p.spec.Command.Argv, Started: p.started, Ended: p.ended, Status: p.status, Failure: p.failure,
		Terminal: p.spec.Terminal != nil, HasInput: p.input != nil,
	}
	if p.handle != nil {
		i.PID = p.handle.PID()
	}
	if p.input != nil {
		i.Input = p.input.at()
	}
	for n := range p.out {
		i.Out[n] = Range{p.out[n].start, p.out[n].end}
	}
	return i
}

// List lists the processes, oldest first.
func (t *Table) List() []Info {
	t.mu.Lock()
	all := slices.Clone(t.order)
	t.mu.Unlock()
	out := make([]Info, len(all))
	for i, p := range all {
		out[i] = p.info()
	}
	return out
}

// Wait returns when the process has ended, or after a time.
func (t *Table) Wait(ctx context.Context, id string, most time.Duration) (Info, error) {
	p, err := t.find(id)
	if err != nil {
		return Info{}, err
	}
	if most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
		case <-ctx.Done():
			return Info{}, context.Cause(ctx)
		}
	}
	return p.info(), nil
}

// Signal sends a signal to the process, or to all that it started.
func (t *Table) Signal(id string, sig syscall.Signal, tree bool) error {
	h, err := t.handle(id)
	if err != nil {
		return err
	}
	if sig < 1 || sig > 64 {
		return fleet.Errorf(fleet.CodeInvalidArgument, "there is no signal %d", sig).With(fleet.DetailLimit, "1 to 64")
	}
	return h.Signal(sig, tree)
}

// Resize changes the size of the process's terminal.
func (t *Table) Resize(id string, size process.Size) error {
	h, err := t.handle(id)
	if err != nil {
		return err
	}
	return h.Resize(size)
}

func (t *Table) handle(id string) (process.Handle, error) {
	p, err := t.find(id)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handle == nil || !p.ended.IsZero() {
		return nil, fleet.Errorf(fleet.CodeConflict, "process %s has ended", id).With(fleet.DetailReason, "ended")
	}
	return p.handle, nil
}

// Adjust changes what happens when nobody follows the process.
func (t *Table) Adjust(id string, hold bool, linger time.Duration) error {
	if hold && linger <= 0 {
		return errHoldForever()
	}
	p, err := t.shared(id)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spec.Hold, p.spec.Linger = hold, linger
	if p.linger != nil {
		p.linger.Stop()
	}
	p.lingerLocked()
	p.changedLocked()
	return nil
}

func errHoldForever() error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "a process that holds its output needs a time after which it ends when nobody follows it").
		With(fleet.DetailScope, "linger").With(fleet.DetailLimit, "above 0").With(fleet.DetailRemedy, "give linger_ms, or do not hold")
}

// SendInput adds input that begins at offset and returns how much was taken so
// far.
func (t *Table) SendInput(ctx context.Context, id string, offset int64, data []byte, eof bool) (int64, error) {
	return t.SendInputAs(ctx, id, "", offset, data, eof)
}

// SendInputAs does the same for one of several writers, each of which has
// offsets of its own.
func (t *Table) SendInputAs(ctx context.Context, id, writer string, offset int64, data []byte, eof bool) (int64, error) {
	p, err := t.shared(id)
	if err != nil {
		return 0, err
	}
	if p.input == nil {
		return 0, fleet.Errorf(fleet.CodeConflict, "process %s was started without input", id).With(fleet.DetailReason, "no_input").
			With(fleet.DetailRemedy, "start it with stdin")
	}
	if eof && p.spec.Terminal != nil { // a terminal has no end, but a key for it
		return p.input.send(ctx, writer, offset, append(slices.Clone(data), endOfTransmission), false)
	}
	return p.input.send(ctx, writer, offset, data, eof)
}

// endOfTransmission is ^D.
const endOfTransmission = 4

// Follow sends a process's output; see Follow. When the process has ended and
// all was sent, ended says how.
func (t *Table) Follow(ctx context.Context, id string, f Follow, sink Sink) (ended *Info, err error) {
	p, err := t.shared(id)
	if err != nil {
		return nil, err
	}
	defer p.follow()()
	over, err := p.copyOut(ctx, f, sink)
	if err != nil || !over {
		return nil, err
	}
	info := p.info()
	return &info, nil
}

// Remove ends a process with all it started and forgets it.
func (t *Table) Remove(ctx context.Context, id string) error {
	p, err := t.find(id)
	if err != nil {
		return err
	}
	p.cancel(errRemoved)
	timer := time.NewTimer(removeWait)
	defer timer.Stop()
	select {
	case <-p.done:
		if !p.spec.passing { // its caller reads what is left
			t.forget(p)
		}
		return nil
	case <-timer.C:
		return fleet.Errorf(fleet.CodeUnavailable, "process %s does not end", id)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends every process and waits for their ends.
func (t *Table) Close() {
	t.mu.Lock()
	t.closed = true
	all := slices.Clone(t.order)
	t.mu.Unlock()
	for _, p := range all {
		p.cancel(errClosing)
	}
	t.wait.Wait()
	for _, p := range all {
		t.forget(p)
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// failureText says why a process was not run or watched to its end.
func failureText(err error) string {
	var fe *fleet.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &fe):
		return fe.Message
	}
	return err.Error()
}
