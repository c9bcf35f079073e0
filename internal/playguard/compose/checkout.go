package compose

import (
	"cmp"
	"fmt"
	"hash"
	"maps"
	"path"
	"slices"
	"strings"
)

// Checkout is where a compose file out of a branch finds what it mounts: in the
// working copy, which lies below the project's directory.
type Checkout struct {
	Dir  string // of the working copy, such as props/app
	Base string // of the compose file in it; "." at its top
	// Trees are the paths of the commit that may be mounted, with what git calls
	// their content. Nil: nothing is known of them yet, and all pass.
	Trees map[string]string
}

// holds reports whether a mount, as it is once relocated, is of the checkout.
func (c *Checkout) holds(source string) bool {
	p := path.Clean(source)
	return c != nil && (p == c.Dir || strings.HasPrefix(p, c.Dir+"/"))
}

// rel is a mount of the checkout as the commit names it.
func (c *Checkout) rel(source string) string {
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(path.Clean(source), c.Dir), "/"), ".")
}

// hash takes what a service mounts of the checkout into its digest: it is made
// anew when that changes.
func (c *Checkout) hash(h hash.Hash, s map[string]any) {
	if c == nil {
		return
	}
	list := mounts(s)
	for _, i := range slices.Sorted(maps.Keys(list)) {
		if c.holds(list[i]) {
			fmt.Fprintf(h, "\x00%s\x00%s\x00", list[i], c.Trees[c.rel(list[i])])
		}
	}
}

// Mounts lists what the services of a rendered file mount of a checkout, as its
// commit names it.
func (c *Checkout) Mounts(file []byte) (out []string) {
	for line := range strings.Lines(string(file)) {
		p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "# fuse.mount ")
		if ok && c.holds(p) {
			out = append(out, c.rel(p))
		}
		if !strings.HasPrefix(line, "# ") {
			break
		}
	}
	return out
}

// relocate has mounts lead into the checkout, and lets nobody write there: it
// holds what people commit, and Playguard moves it forward. Where an operator
// lets mounts reach the host they stay as they are.
func relocate(d *document) error {
	c := d.in.Checkout
	if c == nil {
		return nil
	}
	writable := d.in.Policy.of(DangerHostMount) == Allow
	services := d.section("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		volumes, _ := s["volumes"].([]any)
		list := mounts(s)
		for _, i := range slices.Sorted(maps.Keys(list)) {
			at := fmt.Sprintf("services.%s.volumes.%d", name, i)
			p := path.Join(c.Base, list[i])
			if path.IsAbs(list[i]) || strings.HasPrefix(list[i], "~") || !inside(p) {
				continue // the policy has its word on it
			}
			if first, _, _ := strings.Cut(p, "/"); first == ".git" {
				return d.fail(at, "service %s mounts %s, which is git's own", name, list[i])
			}
			if _, known := c.Trees[p]; c.Trees != nil && !known {
				return d.fail(at, "service %s mounts %s, which is not in the branch; use a volume for what is made at run time", name, list[i])
			}
			if !readOnly(volumes[i]) && !writable {
				d.notes = append(d.notes, d.at(at)+fmt.Sprintf("service %s mounts %s of the branch read-only", name, list[i]))
			}
			volumes[i] = moved(volumes[i], "./"+path.Join(c.Dir, p), !writable)
		}
	}
	return nil
}

// moved is an entry of volumes with another source.
func moved(v any, source string, readOnly bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := maps.Clone(v)
		out["source"] = source
		if readOnly {
			out["read_only"] = true
		}
		return out
	case string:
		parts := strings.SplitN(v, ":", 3)
		var modes []string
		if len(parts) == 3 {
			modes = strings.Split(parts[2], ",")
		}
		if readOnly {
			modes = append(slices.DeleteFunc(modes, func(m string) bool { return m == "rw" || m == "ro" }), "ro")
		}
		out := source + ":" + parts[1]
		if len(modes) > 0 {
			out += ":" + strings.Join(modes, ",")
		}
		return out
	}
	return v
}
