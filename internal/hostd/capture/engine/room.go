package engine

import (
	"context"
	"errors"
	"time"
)

// roomEvery is how often a host's disk is looked at while a capture fills it.
const roomEvery = 100 * time.Millisecond

// withRoom does what fills the host's disk, and ends it before there is too
// little room: the guests on the host would be hurt, whose disks are there too.
func (e *Engine) withRoom(ctx context.Context, do func(context.Context) error) error {
	if err := e.Room(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	full := make(chan error, 1)
	go func() {
		tick := time.NewTicker(roomEvery)
		defer tick.Stop()
		defer close(full)
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if err := e.Room(); err != nil {
				full <- err
				cancel()
				return
			}
		}
	}()
	err := do(ctx)
	cancel()
	if late := <-full; err != nil && late != nil {
		return errors.Join(late, err)
	}
	return err
}
