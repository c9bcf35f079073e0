package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxKnown bounds the names that an error lists.
const maxKnown = 10

// known adds the names there are to the error of a name that there is not: most
// are typing errors.
func known(err *fleet.Error, names []string) *fleet.Error {
	if len(names) == 0 {
		return err
	}
	if more := len(names) - maxKnown; more > 0 {
		names = append(slices.Clone(names[:maxKnown]), fmt.Sprintf("and %d more", more))
	}
	return err.With(fleet.DetailLimit, "known: "+strings.Join(names, ", "))
}

func distinct(names map[string]bool) []string {
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

func knownRegions(reached []Refusal) []string {
	names := map[string]bool{}
	for _, r := range reached {
		names[r.Have] = true
	}
	return distinct(names)
}

func knownArchs(reached []Refusal) []string { return knownRegions(reached) }

// knownLabels lists the values of the labels that were asked for, on the hosts
// that got as far; where none has such a key, the keys there are.
func knownLabels(in Input, reached []Refusal) []string {
	at := map[string]bool{}
	for _, r := range reached {
		at[r.HostID] = true
	}
	pairs, keys := map[string]bool{}, map[string]bool{}
	for _, h := range in.Hosts {
		if !at[h.ID] {
			continue
		}
		for k, v := range h.Labels {
			keys[k] = true
			if _, asked := in.Spec.Labels[k]; asked {
				pairs[k+"="+v] = true
			}
		}
	}
	if len(pairs) > 0 {
		return distinct(pairs)
	}
	return distinct(keys)
}
