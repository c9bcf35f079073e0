package api

import (
	"slices"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// rowCache keeps the encoded form of environments. A row never changes within
// a revision, so life and revision make a safe key. What is no longer live
// goes when the cache has grown to twice the live rows.
type rowCache struct {
	mu   sync.RWMutex
	rows map[string]encodedRow // by environment id; guarded by mu
}

type encodedRow struct {
	uid      string
	revision uint64
	json     []byte
}

// slackRows keeps small fleets from sweeping all the time.
const slackRows = 256

func newRowCache() *rowCache { return &rowCache{rows: map[string]encodedRow{}} }

// encode returns the JSON of each row, in order; tx is the view they are of.
func (c *rowCache) encode(vms []*fleet.VM, tx *state.ReadTx) [][]byte {
	out := make([][]byte, len(vms))
	missing := 0
	c.mu.RLock()
	for i, vm := range vms {
		if row, ok := c.rows[vm.ID]; ok && row.uid == vm.UID && row.revision == vm.Revision {
			out[i] = row.json
		} else {
			missing++
		}
	}
	c.mu.RUnlock()
	if missing == 0 {
		return out
	}
	scratch := make([]byte, 0, 2048)
	for i, vm := range vms {
		if out[i] != nil {
			continue
		}
		env := environmentOf(vm)
		out[i] = slices.Clone(appendEnvironment(scratch[:0], &env))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, vm := range vms {
		if row, ok := c.rows[vm.ID]; !ok || row.revision < vm.Revision {
			c.rows[vm.ID] = encodedRow{vm.UID, vm.Revision, out[i]}
		}
	}
	if len(c.rows) > 2*tx.VMs().Len()+slackRows {
		for id := range c.rows {
			if _, live := tx.VMs().Get(id); !live {
				delete(c.rows, id)
			}
		}
	}
	return out
}
