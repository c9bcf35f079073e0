package reach

import (
	"context"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
)

// Inventory lists the installations that have a place on the marquee, and the
// projects that this one's sweep has set aside.
func (h *Host) Inventory(ctx context.Context) ([]model.InstallationID, []runner.Swept, error) {
	c, r, err := h.both(ctx)
	if err != nil {
		return nil, nil, err
	}
	return r.Inventory(ctx, c)
}
