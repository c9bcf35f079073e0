package qemu

import (
	"context"
	"errors"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

var _ driver.Shaper = (*Driver)(nil)

// Shape implements driver.Shaper. Disks of services are in the machine's memory
// as devices, and pages of 2 MiB cannot be captured.
func (d *Driver) Shape(ctx context.Context, vm driver.VM) (s driver.Shape, storageGB int, ok bool, err error) {
	if vm.HugePages || len(vm.ServiceImages) > 0 || d.slots == nil {
		return s, 0, false, nil
	}
	img, err := d.cfg.Images.Get(vm.Image)
	if err != nil {
		return s, 0, false, err
	}
	if vm.Digest != "" && vm.Digest != img.Digest {
		return s, 0, false, nil
	}
	if s.Machine, err = d.machineFacts(ctx, vm); err != nil {
		return s, 0, false, err
	}
	if s.Machine.Kernel == "" || s.Machine.Fused == "" || s.Machine.Arch == "" {
		return s, 0, false, fleet.Wrap(fleet.CodeInternal, errors.New("kernel or guest agent has no digest"), "the machine's shape is not known")
	}
	s.Image = img.Digest
	for _, arg := range strings.Fields(d.machine.KernelArgs(s.Machine.Accelerator)) {
		// A guest that goes on knows the frequency of the host's counter already.
		if !strings.HasPrefix(arg, "tsc_early_khz=") {
			s.CommandLine += arg + " "
		}
	}
	return s, max(1, int((img.Size+1<<30-1)>>30)), true, nil
}
