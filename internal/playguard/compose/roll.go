package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// A service says "x-fuse: {zero_downtime: true}" to be replaced without a gap:
// the new container runs beside the old one until it has proven itself.
const (
	extension = "x-fuse"
	zeroKey   = "zero_downtime"
)

// rollHead begins the lines at the head of a rendered file that name such
// services and the digests of their definitions. The runner reads them there:
// so they go with the file they are about. Elsewhere in a file that is rendered
// no line begins like this, since only a comment does.
const rollHead = "# fuse.roll "

// marks takes the marks out of the services, so that a mark is no change of
// them, and refuses those on services that cannot run twice.
func (d *document) marks() error {
	d.rolled = map[string]bool{}
	services := d.section("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		at := "services." + name
		has, err := marked(d, at, s)
		if err != nil {
			return err
		}
		if !has {
			continue
		}
		delete(s, extension)
		if key, what, remedy := inTheWay(s); key != "" {
			return unable(d, at+"."+key, name, what, remedy)
		}
		for other, o := range services {
			if key := leansOn(o, name); key != "" {
				return unable(d, "services."+other+"."+key, name, "service "+other+" has "+key+" of its container", "give service "+other+" its own")
			}
		}
		d.rolled[name] = true
	}
	return nil
}

func unable(d *document, path, name, what, remedy string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%sservice %s is marked %s and cannot run twice: %s", d.at(path), name, zeroKey, what).
		With(fleet.DetailScope, path).With(fleet.DetailRemedy, remedy+", or take the mark away")
}

// marked reads the extension of a service. One that says false is dropped too.
func marked(d *document, at string, s map[string]any) (bool, error) {
	e, has := s[extension]
	if !has {
		return false, nil
	}
	at += "." + extension
	m, ok := e.(map[string]any)
	if !ok {
		return false, d.fail(at, "%s is a mapping, such as {%s: true}", extension, zeroKey)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k != zeroKey {
			return false, d.fail(at+"."+k, "%s is not a key of %s; there are %s and %s", k, extension, jobKey, zeroKey)
		}
	}
	switch fmt.Sprint(m[zeroKey]) { // a variable gives text
	case "true":
		return true, nil
	case "false":
		delete(s, extension)
		return false, nil
	}
	return false, d.fail(at+"."+zeroKey, "%s is true or false", zeroKey)
}

// inTheWay names what keeps two containers of a service from running beside
// each other; key is empty if nothing does.
func inTheWay(s map[string]any) (key, what, remedy string) {
	list := func(k string) []any {
		l, _ := s[k].([]any)
		return l
	}
	if len(list("ports")) > 0 {
		return "ports", "it publishes ports of the host, which one container can hold", "let a service that seldom changes, such as a proxy, publish them and reach this one by its name"
	}
	if mode := fmt.Sprint(s["network_mode"]); mode == "host" || strings.Contains(mode, ":") {
		return "network_mode", "network_mode " + mode + " gives both the same ports", "use networks of the project"
	}
	for i, v := range list("volumes") {
		if where := writable(v); where != "" {
			return fmt.Sprintf("volumes.%d", i), "both would write " + where, "mount it read-only, or as tmpfs, or keep the data in another service"
		}
	}
	if len(list("volumes_from")) > 0 {
		return "volumes_from", "both would write the volumes of another container", "mount what it needs read-only"
	}
	if n, ok := s["scale"]; ok && fmt.Sprint(n) != "1" {
		return "scale", fmt.Sprintf("scale is %v, and only a single container is replaced like this", n), "set it to 1"
	}
	deploy, _ := s["deploy"].(map[string]any)
	if n, ok := deploy["replicas"]; ok && fmt.Sprint(n) != "1" {
		return "deploy.replicas", fmt.Sprintf("replicas is %v, and only a single container is replaced like this", n), "set it to 1"
	}
	if mode, ok := deploy["mode"]; ok && mode != "replicated" {
		return "deploy.mode", fmt.Sprintf("mode is %v, and only a single container is replaced like this", mode), "leave it out"
	}
	if s["mac_address"] != nil {
		return "mac_address", "both would have the same mac_address", "leave it out"
	}
	networks, _ := s["networks"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		n, _ := networks[name].(map[string]any)
		for _, k := range []string{"ipv4_address", "ipv6_address", "mac_address"} {
			if n[k] != nil {
				return "networks." + name + "." + k, "both would have the same " + k, "leave it out; services find each other by name"
			}
		}
	}
	return "", "", ""
}

// writable is the place in the container of a mount that outlives it and can be
// written; empty if it is none.
func writable(v any) string {
	switch v := v.(type) {
	case string:
		parts := strings.Split(v, ":")
		if len(parts) == 1 {
			return parts[0]
		}
		if len(parts) > 2 && slices.Contains(strings.Split(parts[len(parts)-1], ","), "ro") {
			return ""
		}
		return parts[1]
	case map[string]any:
		if v["type"] == "tmpfs" || fmt.Sprint(v["read_only"]) == "true" {
			return ""
		}
		return fmt.Sprint(v["target"])
	}
	return fmt.Sprint(v)
}

// leansOn names the key by which a service uses the container of another.
func leansOn(other any, name string) string {
	o, _ := other.(map[string]any)
	for _, k := range []string{"network_mode", "pid", "ipc"} {
		if o[k] == "service:"+name {
			return k
		}
	}
	from, _ := o["volumes_from"].([]any)
	for _, e := range from {
		if e, _, _ := strings.Cut(fmt.Sprint(e), ":"); e == name {
			return "volumes_from"
		}
	}
	return ""
}

// head is what tells the runner of the marks.
func head(services []model.Service) []byte {
	var b strings.Builder
	for _, s := range services {
		if s.Rolled {
			b.WriteString(rollHead + s.Name + " " + s.Digest + "\n")
		}
	}
	return []byte(b.String())
}

// Rolled lists the services that a rendered file marks.
func Rolled(file []byte) (names []string) {
	for line := range strings.Lines(string(file)) {
		rest, ok := strings.CutPrefix(line, rollHead)
		if !ok {
			break
		}
		name, _, _ := strings.Cut(rest, " ")
		names = append(names, name)
	}
	return names
}
