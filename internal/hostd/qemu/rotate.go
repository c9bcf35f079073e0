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
	rec, err := readRecord[guestRecord](i.vm.Dir, fileGuest)
	switch {
	case err != nil:
		return fmt.Errorf("how to reach the guest is not recorded: %w", err)
	case r.Number < rec.Rotation:
		return &driver.StaleRotationError{Number: r.Number, Last: rec.Rotation}
	case r.Number == rec.Rotation && rec.Next == "":
		return nil
	}
	rec.Rotation, rec.Next = r.Number, r.Token
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

// settleLimit bounds the question to an adopted guest which token it takes.
const settleLimit = 5 * time.Second

// settleRotation ends a rotation that an earlier process did not see the end
// of, if the guest has taken the next token. If it has not, or does not answer
// now, the present one is presented; the rotation will be asked for again.
func (i *instance) settleRotation(ctx context.Context, rec guestRecord) {
	if rec.Next == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
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
