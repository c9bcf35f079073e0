package qemu

import (
	"context"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

var _ driver.Rotator = (*instance)(nil)

// Rotate implements driver.Rotator. The record has the next token beside the
// present one before the guest is told, and the next alone after it answered.
func (i *instance) Rotate(ctx context.Context, r driver.Rotation) error {
	if err := i.takeRotating(ctx); err != nil {
		return err
	}
	defer i.leaveRotating()
	rec, err := readRecord[guestRecord](i.vm.Dir, fileGuest)
	switch {
	case err != nil:
		return fmt.Errorf("how to reach the guest is not recorded: %w", err)
	case r.Number < rec.Rotation:
		return &driver.StaleRotationError{Number: r.Number, Last: rec.Rotation}
	case r.Number == rec.Rotation && rec.Next == "":
		return nil
	}
	rec.Rotation, rec.Next, rec.Cert, rec.Key = r.Number, r.Token, string(r.CertPEM), string(r.KeyPEM)
	if err := writeRecord(i.vm.Dir, fileGuest, rec); err != nil {
		return err
	}
	if err := failpoint.Hit("qemu.rotate.recorded"); err != nil {
		return err
	}
	if err := i.guest.Rotate(ctx, r.Token, r.CertPEM, r.KeyPEM); err != nil {
		return err
	}
	if err := failpoint.Hit("qemu.rotate.told"); err != nil {
		return err
	}
	rec.Token, rec.Next = r.Token, ""
	return writeRecord(i.vm.Dir, fileGuest, rec)
}

func (i *instance) takeRotating(ctx context.Context) error {
	select {
	case i.rotating <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (i *instance) leaveRotating() { <-i.rotating }

// settleLimit bounds the question to an adopted guest which token it takes.
const settleLimit = 5 * time.Second

// settleRotation ends a rotation that an earlier process did not see the end
// of, if the guest has taken the next token. If it has not, or does not answer
// now, the present one is presented; the rotation will be asked for again.
func (i *instance) settleRotation(ctx context.Context, rec guestRecord) {
	if rec.Rotation > 0 {
		i.guestReset() // it may have rebooted while nobody watched
	}
	if rec.Next == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if i.takeRotating(ctx) != nil {
		return
	}
	defer i.leaveRotating()
	taken, err := i.guest.Takes(ctx, rec.Next)
	if err == nil && taken {
		i.guest.Present(rec.Next)
		rec.Token, rec.Next = rec.Next, ""
		err = writeRecord(i.vm.Dir, fileGuest, rec)
	}
	if err != nil {
		i.d.log.Warn("rotation of an adopted guest's token not settled", "vm_id", i.vm.ID, "uid", i.vm.UID, "error", err)
	}
}

// guestReset notes that the guest may have forgotten what only a rotation told
// it.
func (i *instance) guestReset() {
	select {
	case i.reset <- struct{}{}:
	default: // noted already
	}
}

// Tries to tell a guest that boots.
const (
	retellEvery = time.Second
	retellFor   = 5 * time.Minute
)

// retell tells a guest that has rebooted the certificate of its last rotation
// again: over the reboot it has kept the token alone, and that as a hash.
func (i *instance) retell() {
	for {
		select {
		case <-i.reset:
		case <-i.alive.Done():
			return
		}
		tick := time.NewTicker(retellEvery)
		for end := time.Now().Add(retellFor); time.Now().Before(end) && !i.retold(); {
			select {
			case <-tick.C:
			case <-i.alive.Done():
			}
		}
		tick.Stop()
	}
}

// retold reports whether there is nothing to tell any more.
func (i *instance) retold() bool {
	ctx, cancel := context.WithTimeout(i.alive, settleLimit)
	defer cancel()
	if i.takeRotating(ctx) != nil {
		return i.alive.Err() != nil
	}
	defer i.leaveRotating()
	rec, err := readRecord[guestRecord](i.vm.Dir, fileGuest)
	if err != nil || rec.Rotation == 0 || rec.Next != "" || rec.Cert == "" {
		return true
	}
	return i.guest.Rotate(ctx, rec.Token, []byte(rec.Cert), []byte(rec.Key)) == nil || i.alive.Err() != nil
}
