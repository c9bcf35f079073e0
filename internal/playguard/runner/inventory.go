package runner

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// Swept is what a sweep set aside.
type Swept struct {
	Project model.Project
	Age     time.Duration // since then, by the host's clock
	Last    string        // operation that succeeded last before that
}

// Inventory lists the installations that have playgrounds on the host, this one in
// any case, and the projects that this one's sweep has set aside.
func (h Host) Inventory(ctx context.Context, sh Shell) (all []model.InstallationID, aside []Swept, err error) {
	res, err := h.call(ctx, sh, nil, "inventory", h.Layout.Root(), string(h.Installation))
	if err := outcome("list what is on the host", res, err); err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(res.Stdout)) {
		w := append(strings.Fields(line), "", "", "", "")
		switch id := model.InstallationID(w[1]); w[0] {
		case "installation":
			if id.Valid() {
				all = append(all, id)
			}
		case "swept":
			if p, err := model.ParseProject(w[1]); err == nil {
				age, _ := strconv.ParseInt(w[2], 10, 32) // what is no number is new
				aside = append(aside, Swept{p, time.Duration(age) * time.Second, w[3]})
			}
		}
	}
	return all, aside, nil
}
