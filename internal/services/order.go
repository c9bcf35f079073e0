package services

import (
	"maps"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

func checkDependencies(s Service, all map[string]Service) error {
	for _, on := range slices.Sorted(maps.Keys(s.DependsOn)) {
		where, need := at(s.Name, "depends_on"), s.DependsOn[on]
		other, known := all[on]
		switch {
		case !known:
			return fleet.Invalid(Field, "names of services of this manifest", "add the service or correct the name", "%s names %.80q, which there is not", where, on)
		case need != Started && need != Healthy:
			return fleet.Invalid(Field, "started or healthy", "use one of these", "%s has the condition %.40q", where, need)
		case need == Healthy && other.Probe == nil:
			return fleet.Invalid(Field, "a service with a healthcheck", "give "+on+" a healthcheck, or wait for started", "%s waits for %s to be healthy", where, on)
		}
	}
	return nil
}

// order sorts services so that each comes after all that it depends on.
func order(all map[string]Service) ([]Service, error) {
	var out []Service
	done := map[string]bool{}
	for len(out) < len(all) {
		before := len(out)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			s := all[name]
			if !done[name] && !slices.ContainsFunc(slices.Collect(maps.Keys(s.DependsOn)), func(on string) bool { return !done[on] }) {
				done[name] = true
				out = append(out, s)
			}
		}
		if len(out) == before {
			return nil, cycle(all, done)
		}
	}
	return out, nil
}

// cycle names services that wait for each other.
func cycle(all map[string]Service, done map[string]bool) error {
	open := func(names map[string]bool) string {
		for _, n := range slices.Sorted(maps.Keys(names)) {
			if !done[n] {
				return n
			}
		}
		return ""
	}
	names := map[string]bool{}
	for n := range all {
		names[n] = true
	}
	var way []string
	for at := open(names); !slices.Contains(way, at); {
		way = append(way, at)
		next := map[string]bool{}
		for on := range all[at].DependsOn {
			next[on] = true
		}
		if at = open(next); slices.Contains(way, at) {
			way = append(way[slices.Index(way, at):], at)
			break
		}
	}
	return fleet.Invalid(Field, "dependencies without a cycle", "take one of these dependencies out",
		"%s goes round in a circle: %s", at(way[0], "depends_on"), strings.Join(way, " -> "))
}
