package images

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// lookEvery is the pace at which a pull's progress is asked for.
const lookEvery = 2 * time.Second

// follow tells how far the pulls of an image are until ctx ends. What cannot be
// asked is not told.
func (a *app) follow(ctx context.Context, api client.Images, image string) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	told := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		list, err := api.UnderWay(ctx)
		if err != nil {
			return
		}
		for _, p := range list.Pulls {
			if line := progress(p); strings.HasPrefix(p.Image, image) && told[p.HostID] != line {
				told[p.HostID] = line
				a.Progress("%s: %s", a.Cell(p.HostID), a.Cell(line))
			}
		}
	}
}

func progress(p gen.ImagePull) string {
	line := p.Phase
	if p.TotalBytes > 0 {
		line += fmt.Sprintf(" %s of %s", kit.Bytes(float64(p.DoneBytes)), kit.Bytes(float64(p.TotalBytes)))
	}
	if p.BytesPerSecond > 0 {
		line += fmt.Sprintf(", %s/s", kit.Bytes(float64(p.BytesPerSecond)))
	}
	return line
}
