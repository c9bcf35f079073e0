package hostd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
)

// One agent at a time holds a data directory; the second names the first.
func TestSecondAgentNamesTheFirst(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		for range 2 { // the name is there after a restart, too
			cfg := r.cfg
			cfg.Driver = r.drv
			_, err := hostd.New(cfg)
			wantCode(t, "a second agent", err, fleet.CodeConflict)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by another host agent, pid %d", os.Getpid())) {
				t.Errorf("the second agent says %v", err)
			}
			r.restart(sim.Options{})
		}
	})
}
