package qemu

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

var _ driver.Rotator = (*instance)(nil)

// Rotate implements driver.Rotator. The record has the next token beside the
// present one before the guest is told, and the next alone after it answered.
func (i *instance) Rotate(ctx context.Context, r driver.Rotation) error {
	unlock, err := i.d.rotating.Take(ctx, i.vm.UID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := record.Read[guestRecord](i.vm.Dir, fileGuest)
	if err != nil {
		return fmt.Errorf("how to reach the guest is not recorded: %w", err)
	}
	later, err := r.After(rec.Rotation, cmp.Or(rec.Next, rec.Token))
	switch {
	case err != nil || !later && rec.Next == "":
		return err
	case later && rec.Next != "":
		// Whoever asked for the one before has forgotten it; the guest may not have.
		taken, err := i.guest.Takes(ctx, rec.Next)
		if err != nil {
			return err
		}
		if taken {
			i.guest.Present(rec.Next)
			rec.Token = rec.Next
		}
	}
	rec.Rotation, rec.Next, rec.Cert, rec.Key = r.Number, r.Token, string(r.CertPEM), string(r.KeyPEM)
	if err := record.Write(i.vm.Dir, fileGuest, rec); err != nil {
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
	return record.Write(i.vm.Dir, fileGuest, rec)
}

// settleRotation ends a rotation that an earlier process did not see the end
// of, if the guest has taken the next token. If it has not, or does not answer
// now, the present one is presented; the rotation will be asked for again.
func (i *instance) settleRotation(ctx context.Context, rec guestRecord) {
	defer i.guestReset() // it may have rebooted while nobody watched
	if rec.Next == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	taken, err := i.guest.Takes(ctx, rec.Next) // nobody else has the instance yet
	if err == nil && taken {
		i.guest.Present(rec.Next)
		rec.Token, rec.Next = rec.Next, ""
		err = record.Write(i.vm.Dir, fileGuest, rec)
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

// Limits of one call to a guest, and of the tries to reach one that boots.
const (
	settleLimit = 5 * time.Second
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
		for end := time.Now().Add(retellFor); time.Now().Before(end) && !(i.retold() && i.regiven()); {
			select {
			case <-time.After(retellEvery):
			case <-i.alive.Done():
			}
		}
	}
}

// regiven gives a guest that has rebooted its files again, and reports whether
// there is nothing to give any more.
func (i *instance) regiven() bool {
	ctx, cancel := context.WithTimeout(i.alive, settleLimit)
	defer cancel()
	cause, err := i.guest.Again(ctx, filepath.Join(i.vm.Dir, fileConsole))
	if cause != "" {
		i.d.log.Warn("guest rebooted", "vm_id", i.vm.ID, "uid", i.vm.UID, "cause", cause)
	}
	return err == nil || i.alive.Err() != nil
}

// retold reports whether there is nothing to tell any more.
func (i *instance) retold() bool {
	ctx, cancel := context.WithTimeout(i.alive, settleLimit)
	defer cancel()
	unlock, err := i.d.rotating.Take(ctx, i.vm.UID)
	if err != nil {
		return i.alive.Err() != nil
	}
	defer unlock()
	rec, err := record.Read[guestRecord](i.vm.Dir, fileGuest)
	if err != nil || rec.Rotation == 0 || rec.Next != "" || rec.Cert == "" {
		return true
	}
	return i.guest.Rotate(ctx, rec.Token, []byte(rec.Cert), []byte(rec.Key)) == nil || i.alive.Err() != nil
}
