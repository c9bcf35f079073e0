package compose

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
)

// escaped doubles every dollar sign in values. Compose on the host fills
// variables in once more, from its own environment: what is filled in already
// must come out as it is, and nothing may appear that no policy has seen.
func escaped(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "$", "$$")
	case map[string]string:
		out := make(map[string]string, len(v))
		for k, e := range v {
			out[k] = strings.ReplaceAll(e, "$", "$$")
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = escaped(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = escaped(e)
		}
		return out
	}
	return v
}

// inherit gives variables that a service names without a value the request's,
// and drops those that it has none for: Compose would take the host's.
func (d *document) inherit() {
	for _, v := range d.section("services") {
		s, _ := v.(map[string]any)
		switch env := s["environment"].(type) {
		case map[string]any:
			for name, value := range env {
				if value != nil {
					continue
				}
				if given, ok := d.in.Variables[name]; ok {
					env[name] = given
				} else {
					delete(env, name)
				}
			}
		case []any:
			s["environment"] = slices.DeleteFunc(slices.Clone(env), func(e any) bool {
				name := fmt.Sprint(e)
				_, given := d.in.Variables[name]
				return !strings.Contains(name, "=") && !given
			})
			for i, e := range s["environment"].([]any) {
				if name := fmt.Sprint(e); !strings.Contains(name, "=") {
					s["environment"].([]any)[i] = name + "=" + d.in.Variables[name]
				}
			}
		}
	}
}

// reserved labels say whose something is, to us and to Compose.
func reserved(label string) bool {
	return strings.HasPrefix(label, "fuse.playguard.") || strings.HasPrefix(label, "com.docker.compose.")
}

// elsewhere refuses what Compose would take from the host's files, environment
// or programs instead of from what was given.
func (d *document) elsewhere(at string, s map[string]any) error {
	for key, why := range map[string]string{
		"label_file":      "reads labels from a file; write them out",
		"credential_spec": "reads a file of the host",
		"provider":        "runs a program of the host",
		"models":          "runs a program of the host",
		"pre_start":       "makes containers that are not services; use a service that the others depend on",
	} {
		if s[key] != nil {
			return d.fail(at+"."+key, "%s %s", key, why)
		}
	}
	return nil
}

// elsewhereAll is elsewhere for what is not in a service.
func (d *document) elsewhereAll() error {
	for _, key := range []string{"jobs", "models"} {
		if d.root[key] != nil {
			return d.fail(key, "%s are not for a playground", key)
		}
	}
	for _, kind := range []string{"configs", "secrets"} {
		for _, name := range slices.Sorted(maps.Keys(d.section(kind))) {
			if m, _ := d.section(kind)[name].(map[string]any); m["environment"] != nil {
				return d.fail(kind+"."+name+".environment", "it would be read from the host's environment; use a file")
			}
		}
	}
	return nil
}

// ownNames are Playguard's beside the compose file.
var ownNames = []string{"compose.yml", ".fuse", "docker-config", "props"}

// own reports whether a path, or one below it, is Playguard's own.
func own(p string) bool {
	p = path.Clean(p)
	first, _, _ := strings.Cut(p, "/")
	return p == "." || slices.Contains(ownNames, first)
}

// readOnly reports whether an entry of volumes cannot be written through.
func readOnly(v any) bool {
	switch v := v.(type) {
	case string:
		parts := strings.Split(v, ":")
		return len(parts) > 2 && slices.Contains(strings.Split(parts[len(parts)-1], ","), "ro")
	case map[string]any:
		return fmt.Sprint(v["read_only"]) == "true"
	}
	return false
}

// reaches finds further ways by which a service reaches beyond its containers.
func reaches(at, name string, s map[string]any) []finding {
	var out []finding
	add := func(danger Danger, key, format string, args ...any) {
		out = append(out, finding{danger, at + "." + key, "service " + name + " " + fmt.Sprintf(format, args...)})
	}
	for _, key := range []string{"gpus", "runtime", "use_api_socket"} {
		if v := s[key]; v != nil && fmt.Sprint(v) != "false" {
			add(DangerPrivileged, key, "sets %s", key)
		}
	}
	for _, key := range []string{"post_start", "pre_stop"} {
		hooks, _ := s[key].([]any)
		for i, h := range hooks {
			if m, _ := h.(map[string]any); fmt.Sprint(m["privileged"]) == "true" {
				add(DangerPrivileged, fmt.Sprintf("%s.%d", key, i), "runs a privileged command")
			}
		}
	}
	deploy, _ := s["deploy"].(map[string]any)
	resources, _ := deploy["resources"].(map[string]any)
	reservations, _ := resources["reservations"].(map[string]any)
	if list, _ := reservations["devices"].([]any); len(list) > 0 {
		add(DangerPrivileged, "deploy.resources.reservations.devices", "asks for devices")
	}
	if s["cgroup_parent"] != nil {
		add(DangerHostSpaces, "cgroup_parent", "sets cgroup_parent")
	}
	if logging, _ := s["logging"].(map[string]any); logging["driver"] != nil &&
		!slices.Contains([]string{"json-file", "local", "journald", "none"}, fmt.Sprint(logging["driver"])) {
		add(DangerHostSpaces, "logging.driver", "has the host send its output by %v", logging["driver"])
	}
	if mode := fmt.Sprint(s["network_mode"]); s["network_mode"] != nil && mode != "none" && mode != "bridge" && mode != "host" && !strings.Contains(mode, ":") {
		add(DangerExternal, "network_mode", "joins network %s, which is not the project's", mode)
	}
	for _, key := range []string{"volumes_from", "external_links"} {
		list, _ := s[key].([]any)
		for i, e := range list {
			if key == "external_links" || strings.HasPrefix(fmt.Sprint(e), "container:") {
				add(DangerExternal, fmt.Sprintf("%s.%d", key, i), "uses container %s, which is not the project's", strings.TrimPrefix(fmt.Sprint(e), "container:"))
			}
		}
	}
	volumes, _ := s["volumes"].([]any)
	for i, source := range mounts(s) {
		if strings.ContainsFunc(source, unicode.IsControl) {
			add(DangerHostMount, fmt.Sprintf("volumes.%d", i), "mounts a path with characters that cannot be seen")
		}
		if inside(source) && own(source) && !readOnly(volumes[i]) {
			add(DangerHostMount, fmt.Sprintf("volumes.%d", i), "could write through %s what Playguard itself keeps there; mount a directory below, or read-only", source)
		}
	}
	return out
}

// drivers finds volumes and networks that are made by more than Docker's own
// drivers, or on the host's network.
func drivers(kind, at string, v map[string]any) []finding {
	driver, _ := v["driver"].(string)
	switch {
	case driver == "" || driver == "default":
	case kind == "volumes" && driver != "local":
		return []finding{{DangerHostMount, at + ".driver", at + " is made by driver " + driver}}
	case kind == "networks" && driver != "bridge" && driver != "overlay" && driver != "none":
		return []finding{{DangerHostSpaces, at + ".driver", at + " is made by driver " + driver}}
	}
	return nil
}

// nested finds mounts below what a container can write: it could put a link
// there, which the host's daemon would follow.
func (d *document) nested(name string, s map[string]any) []finding {
	var out []finding
	for i, source := range mounts(s) {
		p := path.Clean(source)
		if !inside(source) {
			continue
		}
		for _, other := range d.written() {
			if strings.HasPrefix(p, other+"/") {
				out = append(out, finding{DangerHostMount, fmt.Sprintf("services.%s.volumes.%d", name, i),
					fmt.Sprintf("service %s mounts %s, below %s, where a container could make it a link to anything of the host", name, source, other)})
				break
			}
		}
	}
	return out
}

// written lists the paths of the directory that containers can write.
func (d *document) written() (out []string) {
	for _, v := range d.section("services") {
		s, _ := v.(map[string]any)
		volumes, _ := s["volumes"].([]any)
		for i, source := range mounts(s) {
			if inside(source) && !readOnly(volumes[i]) {
				out = append(out, path.Clean(source))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// mountHead names, in comments at the head of the file, what services mount of
// the directory: the runner looks for links there before each up.
func mountHead(d *document) []byte {
	var paths []string
	for _, v := range d.section("services") {
		s, _ := v.(map[string]any)
		for _, source := range mounts(s) {
			if inside(source) && !strings.ContainsFunc(source, unicode.IsControl) {
				paths = append(paths, path.Clean(source))
			}
		}
	}
	slices.Sort(paths)
	var out []byte
	for _, p := range slices.Compact(paths) {
		out = fmt.Appendf(out, "# fuse.mount %s\n", p)
	}
	return out
}
