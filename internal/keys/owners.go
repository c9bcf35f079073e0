package keys

import (
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Acting tells for which owners somebody can still act: a key of theirs is good and
// has that role or a stronger one. For what the server's own token made somebody
// always can. It is asked by what goes on by itself in an owner's name.
func Acting(tx state.Reader) func(owner string, least fleet.Role) bool {
	best, now := map[string]int{}, time.Now()
	for _, k := range Documents.All(tx) {
		rank := slices.Index(fleet.KeyRoles, k.Role)
		if _, good := k.Usable(now); !good || rank < 0 {
			continue
		}
		if have, ok := best[k.Owner]; !ok || rank < have {
			best[k.Owner] = rank
		}
	}
	return func(owner string, least fleet.Role) bool {
		rank, ok := best[owner]
		return owner == fleet.OwnerMaster || ok && rank <= slices.Index(fleet.KeyRoles, least)
	}
}
