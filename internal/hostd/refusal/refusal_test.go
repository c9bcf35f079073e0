package refusal

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

var (
	errCause = errors.New("the true cause")
	errUndo  = fleet.Errorf(fleet.CodeForbidden, "the undoing failed").With(fleet.DetailStep, "undo")
	errTold  = fleet.Errorf(fleet.CodeConflict, "%w: the snapshot is another machine's", fleet.ErrSnapshotIncompatible).With(fleet.DetailStep, "seed")
)

// stopped is a machine that has ended.
type stopped struct{ driver.Instance }

func (stopped) Done() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
func (stopped) Exit() fleet.ExitRecord { return fleet.ExitRecord{Cause: "guest_panic"} }

func ended(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

// Whatever a caller is told, the log has the cause.
func TestCausesAreKept(t *testing.T) {
	bg := context.Background()
	work := func(ctx, life context.Context, inst driver.Instance, err error) error {
		return Work(ctx, life, inst, "restore", err)
	}
	guest := func(ctx, life context.Context, inst driver.Instance, err error) error {
		return Guest(ctx, life, inst, err)
	}
	create := func(ctx, life context.Context, _ driver.Instance, err error) error { return Create(ctx, life, err) }
	remove := func(ctx, _ context.Context, _ driver.Instance, err error) error { return Remove(ctx, err) }
	for name, tt := range map[string]struct {
		do        func(ctx, life context.Context, inst driver.Instance, err error) error
		ctx, life context.Context
		inst      driver.Instance
		err       error
		code      fleet.Code
		step      string
		is        error
	}{
		"a host's failure":                       {do: work, err: errCause, code: fleet.CodeInternal},
		"and its undoing's":                      {do: work, err: errors.Join(errCause, errUndo), code: fleet.CodeInternal},
		"a refusal and its undoing's":            {do: work, err: errors.Join(errTold, errCause, errUndo), code: fleet.CodeConflict, step: "seed", is: fleet.ErrSnapshotIncompatible},
		"a full disk":                            {do: work, err: errors.Join(unix.ENOSPC, errCause), code: fleet.CodeUnavailable},
		"out of time":                            {do: work, ctx: ended(context.DeadlineExceeded), err: errCause, code: fleet.CodeDeadlineExceeded},
		"destroyed meanwhile":                    {do: work, life: ended(ErrDestroyed), err: errCause, code: fleet.CodeConflict, is: fleet.ErrVMNotRunning},
		"the agent closes":                       {do: work, life: ended(ErrClosing), err: errCause, code: fleet.CodeUnavailable, is: ErrClosing},
		"the machine stopped":                    {do: work, inst: stopped{}, err: errCause, code: fleet.CodeConflict, is: fleet.ErrVMNotRunning},
		"a guest's silence":                      {do: guest, err: errCause, code: fleet.CodeUnavailable, is: fleet.ErrGuestUnavailable},
		"a call whose caller left":               {do: guest, ctx: ended(context.Canceled), err: errCause, code: fleet.CodeInternal, is: context.Canceled},
		"a create and its undoing's":             {do: create, err: errors.Join(errCause, errUndo), code: fleet.CodeInternal},
		"a refused create and its undoing's":     {do: create, err: errors.Join(errTold, errCause, errUndo), code: fleet.CodeConflict, step: "seed"},
		"a create that was destroyed":            {do: create, life: ended(ErrDestroyed), err: errCause, code: fleet.CodeConflict},
		"a create at the agent's end":            {do: create, life: ended(ErrClosing), err: errCause, code: fleet.CodeUnavailable},
		"a refused removal that broke off twice": {do: remove, err: errors.Join(errTold, errCause), code: fleet.CodeConflict, step: "seed"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, life := tt.ctx, tt.life
			if ctx == nil {
				ctx = bg
			}
			if life == nil {
				life = bg
			}
			err := tt.do(ctx, life, tt.inst, tt.err)
			if !strings.Contains(err.Error(), errCause.Error()) || fleet.CodeOf(err) != tt.code {
				t.Errorf("%s: %v", fleet.CodeOf(err), err)
			}
			var fe *fleet.Error
			if errors.As(err, &fe) && fe.Details[fleet.DetailStep] != tt.step {
				t.Errorf("details %v", fe.Details)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is not %v", err, tt.is)
			}
		})
	}
}

// What is told is the first error's own, not how the others read.
func TestCallersAreToldTheFirst(t *testing.T) {
	var fe *fleet.Error
	if !errors.As(Guest(t.Context(), t.Context(), nil, errors.Join(errTold, errCause)), &fe) || fe.Message != errTold.Message {
		t.Errorf("told %q", fe.Message)
	}
	if got := Guest(t.Context(), t.Context(), nil, errTold); got.Error() != errTold.Error() || errors.Unwrap(got) != errors.Unwrap(errTold) { //nolint:errorlint // the very same
		t.Errorf("one error became %v", got)
	}
}

func TestWhatDoesNotRunNamesTheRemedy(t *testing.T) {
	for phase, remedy := range map[string]string{
		"paused": "fuse resume fuse-a", "creating": "again", "unadopted": "again", "condemned": "anew", "running": "anew",
	} {
		var fe *fleet.Error
		err := NotRunning("fuse-a", phase)
		if !errors.As(err, &fe) || !errors.Is(err, fleet.ErrVMNotRunning) || fe.Details[fleet.DetailReason] != phase || !strings.Contains(fe.Details[fleet.DetailRemedy], remedy) {
			t.Errorf("%s: %v, %v", phase, err, fe)
		}
	}
	var fe *fleet.Error
	if err := Stopped("fuse-a", "guest_panic"); !errors.As(err, &fe) || fe.Details[fleet.DetailReason] != "guest_panic" || !strings.Contains(fe.Details[fleet.DetailRemedy], "fuse explain fuse-a") {
		t.Errorf("one that has stopped: %v", err)
	}
}
