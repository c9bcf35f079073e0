package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
)

// An error travels as the host's own answer, also when a call to a guest lies
// below it that broke off; only what Connect itself made passes as it is.
func TestErrorsAreTheHostsAnswer(t *testing.T) {
	m := errorMapper{slog.New(slog.DiscardHandler)}
	broken := connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF)
	for name, c := range map[string]struct {
		err      error
		answered bool
		is       error
	}{
		"a guest's connection":   {fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrGuestUnavailable, broken), "write files: the guest does not answer"), true, fleet.ErrGuestUnavailable},
		"an error of its own":    {fleet.Errorf(fleet.CodeConflict, "%w: it is being destroyed", fleet.ErrVMNotRunning), true, fleet.ErrVMNotRunning},
		"an error without code":  {errors.New("disk on fire"), true, nil},
		"what Connect says":      {broken, false, nil},
		"the check of who it is": {hostwire.CheckIdentity("other", "this"), true, nil},
	} {
		e, answered := hostwire.FromConnect(m.mapped(context.Background(), "/proc", c.err))
		if answered != c.answered {
			t.Errorf("%s: counts as answered: %v, %v", name, answered, e)
		}
		if c.is != nil && !errors.Is(e, c.is) {
			t.Errorf("%s: arrives as %v, want %v", name, e, c.is)
		}
	}
}
