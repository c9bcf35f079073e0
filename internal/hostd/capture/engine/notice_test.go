package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

// A machine that ends under a capture is said to have ended, however long its
// process takes to after its channel; nobody waits for the end of one whose
// template alone has.
func TestTheEndOfAMachineIsNoticed(t *testing.T) {
	for name, tt := range map[string]struct {
		silent error         // of the machine's channel
		ends   time.Duration // after the channel; zero: never
		took   time.Duration
	}{
		"the machine":             {silent: qmp.ErrClosed, ends: 3 * time.Second, took: 3 * time.Second},
		"the template":            {},
		"the channel alone":       {silent: qmp.ErrClosed, took: noticeWithin},
		"nobody knows of whether": {silent: errors.New("no answer")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				alive, end := context.WithCancel(t.Context())
				defer end()
				if tt.ends > 0 {
					time.AfterFunc(tt.ends, end)
				}
				c := &capture{e: &Engine{}, src: Source{QMP: &monitor{silent: tt.silent}, Alive: alive}}
				begun := time.Now()
				err := c.run(t.Context(), []vmm.Step{{Name: "copy", Do: func(context.Context) error { return qmp.ErrClosed }}})
				if !errors.Is(err, qmp.ErrClosed) || errors.Is(err, fleet.ErrVMNotRunning) != (tt.ends > 0) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(begun); took != tt.took {
					t.Errorf("it took %v, want %v", took, tt.took)
				}
			})
		})
	}
}
