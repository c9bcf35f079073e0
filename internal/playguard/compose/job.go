package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// A service of a trick says "x-fuse: {job: true}" if its end decides. Without a
// mark the only service does.
const jobKey = "job"

// onceHead is a line at the head of a trick's file: the runner starts no service
// of it again that has ended well.
const onceHead = "# fuse.once\n"

// jobs takes the marks of jobs out of the services, and makes services of a
// trick run once.
func jobs(d *document) error {
	services := d.section("services")
	var marked []string
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		at := "services." + name
		is, err := isJob(d, at, s)
		if err != nil {
			return err
		}
		if is {
			marked = append(marked, name)
		}
		if d.in.Job && s != nil {
			if err := once(d, at, name, s); err != nil {
				return err
			}
		}
	}
	if !d.in.Job {
		return nil
	}
	if len(marked) == 0 {
		if marked = slices.Sorted(maps.Keys(services)); len(marked) > 1 {
			return fleet.Errorf(fleet.CodeInvalidArgument, "%snone of its %d services is marked as the job of the trick: %s", d.at("services"), len(marked), strings.Join(marked, ", ")).
				With(fleet.DetailScope, "services").With(fleet.DetailRemedy, "say x-fuse: {job: true} on the service whose exit code is the trick's")
		}
	}
	d.watch = marked
	return nil
}

// isJob reads and removes the mark of a service.
func isJob(d *document, at string, s map[string]any) (bool, error) {
	m, ok := s[extension].(map[string]any)
	if !ok {
		return false, nil
	}
	v, has := m[jobKey]
	if !has {
		return false, nil
	}
	if delete(m, jobKey); len(m) == 0 {
		delete(s, extension)
	}
	switch fmt.Sprint(v) { // a variable gives text
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, d.fail(at+"."+extension+"."+jobKey, "%s is true or false", jobKey)
}

// once makes a service of a trick run a single time: nothing starts it again,
// and there is one container of it.
func once(d *document, at, name string, s map[string]any) error {
	if m, ok := s[extension].(map[string]any); ok && fmt.Sprint(m[zeroKey]) == "true" {
		return d.fail(at+"."+extension+"."+zeroKey, "service %s is part of a trick, which replaces nothing", name)
	}
	if n, ok := s["scale"]; ok && fmt.Sprint(n) != "1" {
		return d.fail(at+".scale", "service %s is part of a trick, and has one container there; scale is %v", name, n)
	}
	deploy, _ := s["deploy"].(map[string]any)
	if n, ok := deploy["replicas"]; ok && fmt.Sprint(n) != "1" {
		return d.fail(at+".deploy.replicas", "service %s is part of a trick, and has one container there; replicas is %v", name, n)
	}
	if mode, ok := deploy["mode"]; ok && mode != "replicated" {
		return d.fail(at+".deploy.mode", "service %s is part of a trick, and has one container there; mode is %v", name, mode)
	}
	delete(deploy, "restart_policy")
	s["restart"] = "no"
	return nil
}
