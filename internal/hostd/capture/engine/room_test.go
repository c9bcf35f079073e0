package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// What fills the disk ends before it is full, and says why.
func TestACaptureLeavesRoom(t *testing.T) {
	errFull := fleet.Errorf(fleet.CodeUnavailable, "%w: nearly full", fleet.ErrNoCapacity)
	for name, tt := range map[string]struct {
		looks int // that find room
		takes time.Duration
		want  error
		begun bool
	}{
		"room":           {looks: 1000, takes: time.Second, begun: true},
		"none":           {want: fleet.ErrNoCapacity},
		"full meanwhile": {looks: 4, takes: time.Hour, want: fleet.ErrNoCapacity, begun: true},
		"done in time":   {looks: 4, takes: 350 * time.Millisecond, begun: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				looks, begun := 0, false
				e := &Engine{Host: Host{Room: func() error {
					if looks++; looks > tt.looks {
						return errFull
					}
					return nil
				}}}
				err := e.withRoom(t.Context(), func(ctx context.Context) error {
					begun = true
					select {
					case <-time.After(tt.takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				if !errors.Is(err, tt.want) || begun != tt.begun {
					t.Errorf("begun: %v, %v", begun, err)
				}
			})
		})
	}
}
