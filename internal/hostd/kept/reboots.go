package kept

import (
	"context"

	"github.com/fusevm/fuse/internal/fleet"
)

// Reboots are the last reboots of the guest of a VM's directory, oldest first.
func Reboots(dir string) ([]fleet.Reboot, error) {
	r, err := keeper{dir: dir}.load()
	var out []fleet.Reboot
	for _, b := range r.Boots {
		out = append(out, fleet.Reboot{At: b.At, Cause: b.Cause})
	}
	return out, err
}

// Metered adds them to what a machine has taken.
func Metered(ctx context.Context, dir string, usage func(context.Context) (fleet.Usage, error)) (fleet.Usage, error) {
	u, err := usage(ctx)
	if err == nil {
		u.Reboots, err = Reboots(dir)
	}
	return u, err
}
