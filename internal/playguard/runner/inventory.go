package runner

import (
	"context"
	"strings"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// Inventory lists the installations that have playgrounds on the host, this one in
// any case, and the projects that this one's sweep has set aside.
func (h Host) Inventory(ctx context.Context, sh Shell) (all []model.InstallationID, aside []model.Project, err error) {
	res, err := h.call(ctx, sh, nil, "inventory", h.Layout.Root(), string(h.Installation))
	if err := outcome("list what is on the host", res, err); err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(res.Stdout)) {
		what, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch id := model.InstallationID(name); what {
		case "installation":
			if id.Valid() {
				all = append(all, id)
			}
		case "swept":
			if p, err := model.ParseProject(name); err == nil {
				aside = append(aside, p)
			}
		}
	}
	return all, aside, nil
}
