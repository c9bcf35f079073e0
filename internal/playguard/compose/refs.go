package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// reference is a name that a service uses, and where it does.
type reference struct {
	kind, name, at string
}

// references refuses names that the file does not define, and services that
// wait for each other: on the host that would end an up half-way.
func references(d *document) error {
	services := d.section("services")
	waits := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		refs := append(leanings(name, s), belongings(name, s)...)
		for _, r := range refs {
			if _, ok := d.section(r.kind)[r.name]; !ok && (r.kind != "networks" || r.name != "default") {
				return d.fail(r.at, "service %s uses %s, which is not among the %s of the file", name, r.name, r.kind)
			}
			if r.kind == "services" {
				waits[name] = append(waits[name], r.name)
			}
		}
	}
	if c := cycle(waits); len(c) > 0 {
		return d.fail("services."+c[0], "services wait for each other: %s", strings.Join(c, " -> "))
	}
	return nil
}

// leanings are the services that a service cannot start without.
func leanings(name string, s map[string]any) (out []reference) {
	at := "services." + name + "."
	add := func(key, service string) { out = append(out, reference{"services", service, at + key}) }
	switch v := s["depends_on"].(type) {
	case []any:
		for i, e := range v {
			add(fmt.Sprintf("depends_on.%d", i), fmt.Sprint(e))
		}
	case map[string]any:
		for _, other := range slices.Sorted(maps.Keys(v)) {
			m, _ := v[other].(map[string]any)
			if fmt.Sprint(m["required"]) != "false" {
				add("depends_on."+other, other)
			}
		}
	}
	for _, key := range []string{"network_mode", "pid", "ipc"} {
		if other, ok := strings.CutPrefix(fmt.Sprint(s[key]), "service:"); ok {
			add(key, other)
		}
	}
	for _, key := range []string{"links", "volumes_from"} {
		list, _ := s[key].([]any)
		for i, e := range list {
			if other, _, _ := strings.Cut(fmt.Sprint(e), ":"); key == "links" || other != "container" {
				add(fmt.Sprintf("%s.%d", key, i), other)
			}
		}
	}
	return out
}

// belongings are the volumes, networks, configs and secrets of a service.
func belongings(name string, s map[string]any) (out []reference) {
	at := "services." + name + "."
	add := func(kind string, key any, v any) {
		out = append(out, reference{kind, fmt.Sprint(v), fmt.Sprintf("%s%s.%v", at, kind, key)})
	}
	host := mounts(s)
	list, _ := s["volumes"].([]any)
	for i, v := range list {
		if _, bind := host[i]; bind {
			continue
		}
		if m, ok := v.(map[string]any); ok {
			if m["type"] == "volume" && m["source"] != nil {
				add("volumes", i, m["source"])
			}
		} else if source, _, has := strings.Cut(fmt.Sprint(v), ":"); has {
			add("volumes", i, source)
		}
	}
	for _, kind := range []string{"networks", "configs", "secrets"} {
		switch v := s[kind].(type) {
		case []any:
			for i, e := range v {
				if m, ok := e.(map[string]any); ok {
					e = m["source"]
				}
				add(kind, i, e)
			}
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				add(kind, k, k)
			}
		}
	}
	return out
}

// cycle finds services that wait for themselves by way of others; nil if there
// are none. The first of them is named again at its end.
func cycle(waits map[string][]string) []string {
	done := map[string]bool{}
	var trail []string
	var walk func(string) []string
	walk = func(name string) []string {
		if i := slices.Index(trail, name); i >= 0 {
			return append(slices.Clone(trail[i:]), name)
		}
		if done[name] {
			return nil
		}
		trail = append(trail, name)
		for _, other := range waits[name] {
			if c := walk(other); c != nil {
				return c
			}
		}
		trail, done[name] = trail[:len(trail)-1], true
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(waits)) {
		if c := walk(name); c != nil {
			return c
		}
	}
	return nil
}
