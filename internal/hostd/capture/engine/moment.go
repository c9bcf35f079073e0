package engine

import (
	"context"
	"errors"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/hostd/capture/live"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/qmp"
)

// Disk and memory of a capture are of one moment. Most of what QEMU does before
// the memory's, reading each page once, can be done while the machine runs: it
// then stands still only while its devices are saved and its memory protected.
// The disk's overlay is frozen before that, so this is for machines whose disk
// is not written from then on, which QEMU's own counters tell afterwards.

// errWritten says that the disk was written between its moment and the memory's.
var errWritten = errors.New("the machine's disk was written while its memory was made ready")

// sendMoment freezes the overlay and begins the stream, and returns once the
// machine runs again.
func (c *capture) sendMoment(ctx context.Context) error {
	c.src.Watch(func(e qmp.Event) {
		to := c.stopped
		if e.Name == "RESUME" {
			to = c.resumed
		}
		select {
		case to <- e.At:
		default:
		}
	})
	m := moment{c}
	calm, err := m.calm(ctx)
	switch {
	case err != nil:
		return err
	case calm:
		return m.sendRunning(ctx)
	}
	return m.sendStopped(ctx)
}

// moment is that of a capture whose guest stands still.
type moment struct{ *capture }

// calm says whether the machine may run until QEMU stops it: nothing was written
// since the guest was told to stand still.
func (c moment) calm(ctx context.Context) (bool, error) {
	if c.still || c.next == 0 || !c.m.Timings.Background {
		return false, nil
	}
	now, err := live.Written(ctx, c.src.QMP)
	return now == c.written, err
}

// stream freezes the overlay and begins the stream.
func (c moment) stream(ctx context.Context) error {
	if err := errors.Join(c.stillFrozen(), c.rotate(ctx)); err != nil {
		return err
	}
	if err := failpoint.Hit("qemu.capture.rotated"); err != nil {
		return err
	}
	return live.Send(ctx, c.src.QMP)
}

// sendRunning freezes the overlay of a machine that runs and begins the stream,
// for which QEMU stops the machine for a moment.
func (c moment) sendRunning(ctx context.Context) error {
	if err := c.stream(ctx); err != nil {
		return err
	}
	if err := c.awaitRun(ctx); err != nil {
		return err
	}
	now, err := live.Written(ctx, c.src.QMP)
	if err == nil && now != c.written {
		err = errWritten
	}
	return errors.Join(err, c.stillFrozen())
}

// sendStopped stops the machine, freezes its overlay and begins the stream; where
// its memory can be protected it runs on by itself.
func (c moment) sendStopped(ctx context.Context) error {
	src := c.src.QMP
	if err := src.Execute(ctx, "stop", nil, nil); err != nil {
		return err
	}
	if err := c.stream(ctx); err != nil {
		return err
	}
	if !c.m.Timings.Background {
		if err := live.Await(ctx, src, driver.Tick(ctx, "memory")); err != nil || c.next == 0 {
			return err
		}
		if err := live.Go(ctx, src); err != nil {
			return err
		}
	}
	return c.awaitRun(ctx)
}
