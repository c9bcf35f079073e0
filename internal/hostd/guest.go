package hostd

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/entry"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	"github.com/fusevm/fuse/internal/hostd/rpc"
)

// guests is the part of a host that reaches into VMs.
type guests struct{ *core }

// ExecCall is one command to run in a guest.
type ExecCall struct {
	Fence Fence
	Ref   Ref
	Spec  fleet.ExecSpec
	Stdio fleet.Stdio
	// Admitted, if set, is called once nothing of the host's refuses the
	// command.
	Admitted func() error
	// Broken, if set, is called when the VM is to end before the command
	// has: a stream that the caller does not take must not hold that up.
	Broken func()
}

// Exec runs a command in a guest. If ctx ends, or the VM is destroyed, the
// command's whole process tree is killed. A stream that cannot be written ends
// it too.
func (h *guests) Exec(ctx context.Context, call ExecCall) (fleet.ExecStatus, error) {
	if len(call.Spec.Argv) == 0 || call.Spec.Argv[0] == "" {
		return fleet.ExecStatus{}, fleet.Errorf(fleet.CodeInvalidArgument, "the command is empty")
	}
	if call.Spec.Timeout < 0 {
		return fleet.ExecStatus{}, ops.Invalid("timeout", call.Spec.Timeout.String(), "zero or more")
	}
	l, inst, err := h.guest(call.Fence, call.Ref)
	if err != nil {
		return fleet.ExecStatus{}, err
	}
	ctx, release := l.bind(ctx)
	defer release()
	if call.Broken != nil {
		told := make(chan struct{})
		stop := context.AfterFunc(l.ctx, func() { call.Broken(); close(told) })
		defer func() {
			if !stop() {
				<-told
			}
		}()
	}
	if call.Admitted != nil {
		if err := call.Admitted(); err != nil {
			return fleet.ExecStatus{}, err
		}
	}
	status, err := inst.Guest().Exec(ctx, call.Spec, call.Stdio)
	if err != nil {
		return status, refusal.Guest(ctx, l.ctx, inst, err)
	}
	return status, nil
}

// writeTimeout bounds the writing of files into one guest.
const writeTimeout = 5 * time.Minute

// WriteFiles writes files into a guest.
func (h *guests) WriteFiles(ctx context.Context, f Fence, ref Ref, files []fleet.GuestFile) error {
	l, inst, err := h.guest(f, ref)
	if err != nil {
		return err
	}
	ctx, release := l.bind(ctx)
	defer release()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := inst.Guest().WriteFiles(ctx, files); err != nil {
		return refusal.Guest(ctx, l.ctx, inst, err)
	}
	return nil
}

// Drain stops the guest's services, then runs command if it is not empty. It
// goes on when the caller leaves, and its answer is remembered.
func (h *guests) Drain(ctx context.Context, f Fence, ref Ref, command string) (fleet.ExecStatus, error) {
	a, err := h.once(ctx, f, ref, op{verb: verbDrain, limit: h.cfg.DrainTimeout, do: func(ctx context.Context, _ *life, inst driver.Instance, a *answer) error {
		status, err := inst.Guest().Drain(ctx, command)
		if err == nil {
			a.Status = &status
		}
		return err
	}})
	if err != nil || a.Status == nil {
		return fleet.ExecStatus{}, err
	}
	return *a.Status, nil
}

// op is an operation on one life that is done once: its answer is kept.
type op struct {
	verb   string
	limit  time.Duration
	paused bool // it is for a VM that is paused, too
	do     func(ctx context.Context, l *life, inst driver.Instance, a *answer) error
}

// once does an operation, or joins or repeats the answer of the same one. When
// ctx ends the caller is let go and the work goes on.
func (h *guests) once(ctx context.Context, f Fence, ref Ref, o op) (answer, error) {
	if err := ref.Validate(); err != nil {
		return answer{}, err
	}
	fl, err := h.admit(f, ref, o)
	if err != nil {
		return answer{}, err
	}
	a, err := fl.Wait(ctx, nil)
	if err == nil {
		err = a.Failure()
	}
	return a, err
}

func (h *guests) admit(f Fence, ref Ref, o op) (*flight, error) {
	h.reg.mu.Lock()
	defer h.reg.mu.Unlock()
	l, err := h.liveLocked(f, ref)
	if err != nil {
		return nil, err
	}
	key := flightKey(o.verb, ref.OpID)
	if fl := l.flights[key]; fl != nil {
		return fl, nil
	}
	if a, ok := entry.Answered(l.answers, o.verb, ref.OpID); ok {
		return landed(a), nil
	}
	inst, err := l.runningLocked()
	if err != nil && !(o.paused && l.phase == phasePaused) {
		return nil, err
	}
	if h.closedLocked() {
		return nil, refusal.Closing()
	}
	fl := ops.NewFlight[answer]()
	l.flights[key] = fl
	h.work.Go(func() {
		a, err := h.perform(l, inst, ref.OpID, o)
		h.reg.mu.Lock()
		delete(l.flights, key)
		h.reg.mu.Unlock()
		fl.Land(a, err)
	})
	return fl, nil
}

func (h *guests) perform(l *life, inst driver.Instance, opID string, o op) (answer, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(l.ctx, o.limit)
	defer cancel()
	a := answer{UID: l.owner.VM.UID, Verb: o.verb, OpID: opID}
	err := o.do(ctx, l, inst, &a)
	if err != nil {
		err = refusal.Work(ctx, l.ctx, inst, o.verb, err)
		h.log.Warn("operation failed", "verb", o.verb, "vm_id", l.owner.VM.ID, "uid", a.UID, "op_id", opID, "error", err)
		a.Error = ops.KeepError(err)
	}
	h.metrics.Observe(o.verb, begun, err)
	return a, h.reg.answer(l, a).Wait()
}

// guest admits a call into a guest.
func (h *guests) guest(f Fence, ref Ref) (*life, driver.Instance, error) {
	if err := ref.Validate(); err != nil {
		return nil, nil, err
	}
	h.reg.mu.Lock()
	defer h.reg.mu.Unlock()
	l, err := h.liveLocked(f, ref)
	if err != nil {
		return nil, nil, err
	}
	inst, err := l.runningLocked()
	return l, inst, err
}

// liveLocked finds the life that a fenced call means.
func (h *guests) liveLocked(f Fence, ref Ref) (*life, error) {
	if err := h.reg.marks.Check(f); err != nil {
		return nil, err
	}
	l := h.reg.lives[ref.UID]
	if l == nil {
		return nil, refusal.NotFound(ref.VMID)
	}
	return l, l.isMeant(f, ref)
}

func (l *life) runningLocked() (driver.Instance, error) {
	switch {
	case l.phase == phaseStopped:
		return nil, refusal.Stopped(l.owner.VM.ID, l.exit.Cause)
	case l.phase != phaseRunning || l.ctx.Err() != nil:
		return nil, refusal.NotRunning(l.owner.VM.ID, l.phase.String())
	}
	return l.inst, nil
}

// bind ends ctx with the life.
func (l *life) bind(ctx context.Context) (context.Context, func()) { return rpc.Bind(ctx, l.ctx) }
