package disk

import (
	"fmt"

	"github.com/fusevm/fuse/internal/diskspace"
	"github.com/fusevm/fuse/internal/fleet"
)

// CheckRoom refuses what would leave the disk that dir is on fewer than least
// bytes. Disks are made as their guests write, so there is no other limit.
func CheckRoom(dir string, least int64) error {
	free, total, err := diskspace.Free(dir)
	if err != nil {
		return err
	}
	if free >= least {
		return nil
	}
	const mib = 1 << 20
	return fleet.Errorf(fleet.CodeUnavailable, "%w: the host's disk is nearly full", fleet.ErrNoCapacity).
		With(fleet.DetailScope, "disk").
		With(fleet.DetailLimit, fmt.Sprintf("%d MiB must stay free", least/mib)).
		With(fleet.DetailUsage, fmt.Sprintf("%d MiB of %d MiB are free", free/mib, total/mib)).
		With(fleet.DetailRemedy, "free space below "+dir+", or destroy environments")
}
