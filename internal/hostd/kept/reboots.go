package kept

import "github.com/fusevm/fuse/internal/fleet"

// Reboots are the last reboots of the guest of a VM's directory, oldest first.
func Reboots(dir string) ([]fleet.Reboot, error) {
	r, err := keeper{dir: dir}.load()
	var out []fleet.Reboot
	for _, b := range r.Boots {
		out = append(out, fleet.Reboot{At: b.At, Cause: b.Cause})
	}
	return out, err
}
