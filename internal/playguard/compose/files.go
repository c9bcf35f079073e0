package compose

import (
	"fmt"
	"hash"
	"maps"
	"path"
	"slices"
	"strings"
)

// needs lists the files beside the compose file that it uses.
func (d *document) needs() []string {
	found := map[string]bool{}
	for _, v := range d.section("services") {
		s, _ := v.(map[string]any)
		for _, p := range d.needsOf(s) {
			found[p] = true
		}
	}
	for _, kind := range []string{"configs", "secrets"} {
		for name := range d.section(kind) {
			if p := d.source(kind, name); p != "" {
				found[p] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// needsOf lists what one service uses.
func (d *document) needsOf(s map[string]any) []string {
	found := map[string]bool{}
	for _, source := range mounts(s) {
		if inside(source) && !d.in.Checkout.holds(source) {
			found[path.Clean(source)] = true
		}
	}
	for _, p := range envFiles(s) {
		found[p] = true
	}
	for _, kind := range []string{"configs", "secrets"} {
		list, _ := s[kind].([]any)
		for _, e := range list {
			if m, ok := e.(map[string]any); ok {
				e = m["source"]
			}
			if p := d.source(kind, fmt.Sprint(e)); p != "" {
				found[p] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// envFiles lists the files of variables of a service.
func envFiles(s map[string]any) (out []string) {
	switch e := s["env_file"].(type) {
	case string:
		out = append(out, path.Clean(e))
	case []any:
		for _, f := range e {
			if m, ok := f.(map[string]any); ok {
				f = m["path"]
			}
			out = append(out, path.Clean(fmt.Sprint(f)))
		}
	}
	return out
}

// optional settles the files of variables that need not be there, by what is
// given, and writes those that are as a path: Compose v1 knows no other form.
func (d *document) optional() error {
	for _, v := range d.section("services") {
		s, _ := v.(map[string]any)
		list, _ := s["env_file"].([]any)
		if d.in.Files == nil || len(list) == 0 {
			continue
		}
		var left []any
		for _, e := range list {
			if m, ok := e.(map[string]any); ok {
				p := path.Clean(fmt.Sprint(m["path"]))
				if fmt.Sprint(m["required"]) == "false" && inside(p) && len(d.uses([]string{p})) == 0 {
					continue
				}
				if m["format"] == nil {
					e = m["path"]
				}
			}
			left = append(left, e)
		}
		s["env_file"] = left
		if len(left) == 0 {
			delete(s, "env_file")
		}
	}
	return nil
}

// source is the file behind a config or secret; empty if there is none.
func (d *document) source(kind, name string) string {
	m, _ := d.section(kind)[name].(map[string]any)
	if m == nil || m["file"] == nil {
		return ""
	}
	return path.Clean(fmt.Sprint(m["file"]))
}

// uses lists the given files that are needed, or lie in a directory that is.
func (d *document) uses(needs []string) (out []string) {
	for _, f := range slices.Sorted(maps.Keys(d.in.Files)) {
		if slices.ContainsFunc(needs, func(n string) bool { return n == "." || f == n || strings.HasPrefix(f, n+"/") }) {
			out = append(out, f)
		}
	}
	return out
}

// hashFiles takes what a service uses into its digest.
func (d *document) hashFiles(h hash.Hash, s map[string]any) {
	for _, f := range d.uses(d.needsOf(s)) {
		fmt.Fprintf(h, "\x00%s\x00%d\x00", f, len(d.in.Files[f]))
		h.Write(d.in.Files[f])
	}
	d.in.Checkout.hash(h, s)
}

// present refuses a file that Compose would not start without, and warns of a
// mount that the host would make an empty directory of. Without any files given
// it says nothing.
func (d *document) present(r *Rendered) error {
	if d.in.Files == nil {
		return nil
	}
	has := func(p string) bool { return len(d.uses([]string{p})) > 0 }
	services := d.section("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		at := "services." + name
		for _, p := range envFiles(s) {
			switch {
			case !inside(p):
				return d.fail(at+".env_file", "env_file %s lies outside of the directory", p)
			case !has(p):
				return d.fail(at+".env_file", "env_file %s is not among the files", p)
			}
		}
		list := mounts(s)
		for _, i := range slices.Sorted(maps.Keys(list)) {
			if source := list[i]; inside(source) && !d.in.Checkout.holds(source) && !has(path.Clean(source)) {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%sservice %s mounts %s, which is not among the files; the host makes an empty directory of it",
					d.at(fmt.Sprintf("%s.volumes.%d", at, i)), name, source))
			}
		}
	}
	for _, kind := range []string{"configs", "secrets"} {
		for _, name := range slices.Sorted(maps.Keys(d.section(kind))) {
			p := d.source(kind, name)
			switch at := kind + "." + name + ".file"; {
			case p == "":
			case !inside(p):
				return d.fail(at, "%s of %s lies outside of the directory", p, name)
			case !has(p):
				return d.fail(at, "%s of %s is not among the files", p, name)
			}
		}
	}
	return nil
}
