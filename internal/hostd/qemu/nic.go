package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/vmm/nic"
)

// makeNIC gives the VM its network; it has the same address either way.
func (d *Driver) makeNIC(ctx context.Context, vm driver.VM) (nic.NIC, error) {
	if d.slots == nil {
		return nic.User()
	}
	slot, err := d.slots.Create(ctx, vm.Slot)
	if err != nil {
		return nic.NIC{}, err
	}
	tap, err := slot.Tap()
	if err != nil {
		return nic.NIC{}, err
	}
	return nic.Slot(slot, tap), nil
}

// slotNIC takes a tap of the VM's own slot.
func (b *boot) slotNIC(tap *os.File) error {
	slot, err := b.d.slots.Slot(b.vm.Slot)
	if err != nil {
		return errors.Join(err, tap.Close())
	}
	b.nic = nic.Slot(slot, tap)
	return nil
}

// reuseNIC is makeNetwork for a VM that had its slot before; a reboot of the
// host has taken it.
func (b *boot) reuseNIC(ctx context.Context) error {
	if b.d.slots == nil {
		return b.makeNetwork(ctx)
	}
	slot, err := b.d.slots.Slot(b.vm.Slot)
	if errors.Is(err, network.ErrNoSlot) {
		err = b.makeNetwork(ctx)
		b.d.slots.Republish(ctx, b.vm)
		return err
	}
	if err != nil {
		return err
	}
	tap, err := slot.Tap()
	if err != nil {
		return err
	}
	b.nic = nic.Slot(slot, tap)
	return nil
}

// findDialer reaches the guest of a VM that an earlier process started.
func (d *Driver) findDialer(vm driver.VM, rec guestRecord) (nic.Dialer, error) {
	if rec.Port != 0 {
		return nic.UserDialer(rec.Port), nil
	}
	if d.slots == nil {
		return nil, fmt.Errorf("the VM has a network slot, which this process cannot use: %w", d.noSlots)
	}
	slot, err := d.slots.Slot(vm.Slot)
	if err != nil {
		return nil, err
	}
	return nic.SlotDialer(slot), nil
}
