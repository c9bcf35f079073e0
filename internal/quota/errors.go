package quota

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxLimit is above what any fleet has and far below an overflow.
const maxLimit = 1 << 40

func exceeded(s Scope, d *Dimension, used, ask, limit int64) error {
	code, what := fleet.CodeQuotaExceeded, fmt.Sprintf("%s holds %d of %d %s and asks for %d more", s.people(), used, limit, d.Unit, ask)
	remedy := "remove an environment, or have an admin raise the limit: fuse quota set " + s.String() + " " + d.Name + "=" + strconv.FormatInt(used+ask, 10)
	switch {
	case ask > limit:
		code, what = fleet.CodeForbidden, fmt.Sprintf("%s may hold %d %s, and this asks for %d", s.people(), limit, d.Unit, ask)
		remedy = "ask for at most " + strconv.FormatInt(limit, 10) + ", or have an admin raise the limit: fuse quota set " + s.String() + " " + d.Name + "=" + strconv.FormatInt(used+ask, 10)
	case d.Name == Creates:
		remedy = "wait until a create has ended"
	}
	return fleet.Wrap(code, fleet.ErrQuotaExceeded, what).
		With(fleet.DetailScope, s.people()).
		With(fleet.DetailLimit, fmt.Sprintf("%d %s", limit, d.Unit)).
		With(fleet.DetailUsage, fmt.Sprintf("%d %s", used, d.Unit)).
		With(fleet.DetailReason, "quota "+d.Name).
		With(fleet.DetailRemedy, remedy)
}

func (b *Book) checkChange(change map[string]*int64) error {
	names := make([]string, len(b.dimensions))
	for i, d := range b.dimensions {
		names[i] = d.Name
	}
	if len(change) == 0 {
		return fleet.Invalid("limits", strings.Join(names, ", "), "name what to limit", "is empty")
	}
	for name, n := range change {
		if _, ok := b.dimension(name); !ok {
			return fleet.Invalid("limits", strings.Join(names, ", "), "name one of them", "has %.40q, which is not known", name)
		}
		if n != nil && (*n < fleet.NoLimit || *n > maxLimit) {
			return fleet.Invalid("limits."+name, fmt.Sprintf("0 to %d, -1 for no limit, null for the server's default", int64(maxLimit)), "give one of them", "is %d", *n)
		}
	}
	return nil
}

func notFound(s Scope) error {
	return fleet.Errorf(fleet.CodeNotFound, "%s has no limits here", s.people()).
		With(fleet.DetailScope, s.String()).With(fleet.DetailRemedy, "`fuse quota ls` and `fuse key ls` show the owners and keys there are")
}

func event(typ string, s Scope, actor string, limits Amounts) fleet.Event {
	e := fleet.Event{EntityType: fleet.EntityQuota, EntityID: s.String(), Type: typ, Reason: &fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}}
	if limits != nil {
		// Numbers by name always encode.
		e.Payload, _ = json.Marshal(map[string]any{"limits": limits})
	}
	return e
}

// compare puts owners before their keys, each by name.
func compare(a, b Scope) int {
	return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}
