package compose

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Verdict is what happens with something dangerous in a file.
type Verdict string

// Verdicts.
const (
	Refuse Verdict = "refuse"
	Warn   Verdict = "warn"
	Allow  Verdict = "allow"
)

// Danger is something by which a service reaches beyond its containers.
type Danger string

// Dangers.
const (
	DangerPrivileged Danger = "privileged"   // privileged, added capabilities, security options, devices
	DangerHostMount  Danger = "host_mount"   // a path of the host from outside the project
	DangerHostSpaces Danger = "host_spaces"  // the host's network, processes, IPC or users
	DangerExternal   Danger = "external"     // volumes and networks that the project does not own
	DangerProxy      Danger = "proxy_labels" // labels by which a proxy could be led to any name
)

// Dangers lists all of them.
func Dangers() []Danger {
	return []Danger{DangerPrivileged, DangerHostMount, DangerHostSpaces, DangerExternal, DangerProxy}
}

// Policy says what a marquee allows; a danger that it does not name is
// refused.
type Policy map[Danger]Verdict

func (p Policy) of(d Danger) Verdict {
	if v, ok := p[d]; ok {
		return v
	}
	return Refuse
}

// Validate refuses names that mean nothing.
func (p Policy) Validate() error {
	for d, v := range p {
		if !slices.Contains(Dangers(), d) {
			return fmt.Errorf("danger %q is not known; there are %v", d, Dangers())
		}
		if v != Refuse && v != Warn && v != Allow {
			return fmt.Errorf("%s is %q; want refuse, warn or allow", d, v)
		}
	}
	return nil
}

// finding is one danger in a file.
type finding struct {
	danger Danger
	path   string
	what   string
}

// dangers finds them, in the order of the services' names.
func (d *document) dangers() []finding {
	var out []finding
	services := d.section("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		out = append(out, serviceDangers("services."+name, name, s)...)
		out = append(out, d.nested(name, s)...)
	}
	for _, kind := range []string{"volumes", "networks"} {
		all := d.section(kind)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			v, _ := all[name].(map[string]any)
			at := kind + "." + name
			if external(v) {
				out = append(out, finding{DangerExternal, at, at + " belongs to somebody else"})
			}
			out = append(out, drivers(kind, at, v)...)
			opts, _ := v["driver_opts"].(map[string]any)
			if device := fmt.Sprint(opts["device"]); kind == "volumes" && opts["device"] != nil {
				out = append(out, finding{DangerHostMount, at + ".driver_opts", at + " mounts " + device + " of the host"})
			}
		}
	}
	return append(out, d.proxied...)
}

func serviceDangers(at, name string, s map[string]any) []finding {
	var out []finding
	add := func(danger Danger, key, format string, args ...any) {
		out = append(out, finding{danger, at + "." + key, "service " + name + " " + fmt.Sprintf(format, args...)})
	}
	if s["privileged"] == true || fmt.Sprint(s["privileged"]) == "true" {
		add(DangerPrivileged, "privileged", "is privileged")
	}
	for _, key := range []string{"cap_add", "devices", "device_cgroup_rules", "security_opt"} {
		if list, ok := s[key].([]any); ok && len(list) > 0 && !(key == "security_opt" && harmless(list)) {
			add(DangerPrivileged, key, "sets %s", key)
		}
	}
	for _, key := range []string{"network_mode", "pid", "ipc", "uts", "userns_mode", "cgroup"} {
		if v := fmt.Sprint(s[key]); v == "host" || strings.HasPrefix(v, "container:") {
			add(DangerHostSpaces, key, "uses %s %s", key, v)
		}
	}
	for i, source := range mounts(s) {
		if !inside(source) {
			add(DangerHostMount, fmt.Sprintf("volumes.%d", i), "mounts %s of the host", source)
		}
	}
	return append(out, reaches(at, name, s)...)
}

// harmless options only take rights away.
func harmless(options []any) bool {
	for _, o := range options {
		if s := fmt.Sprint(o); s != "no-new-privileges" && s != "no-new-privileges:true" {
			return false
		}
	}
	return true
}

// mounts lists the host paths that a service mounts, by their place in its
// volumes.
func mounts(s map[string]any) map[int]string {
	out := map[int]string{}
	list, _ := s["volumes"].([]any)
	for i, v := range list {
		switch v := v.(type) {
		case string:
			source, _, has := strings.Cut(v, ":")
			if has && source != "" && strings.ContainsAny(source[:1], "./~") {
				out[i] = source
			}
		case map[string]any:
			if source := fmt.Sprint(v["source"]); v["type"] == "bind" || v["source"] != nil && v["type"] != "tmpfs" && strings.HasPrefix(strings.TrimLeft(source, ".~"), "/") {
				out[i] = fmt.Sprint(v["source"])
			}
		}
	}
	return out
}

// inside reports whether a path stays beside the compose file.
func inside(p string) bool {
	c := path.Clean(p)
	return !path.IsAbs(c) && !strings.HasPrefix(c, "~") && c != ".." && !strings.HasPrefix(c, "../")
}
