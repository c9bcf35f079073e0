package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/compose"
)

func TestJob(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		watch string
		fails string
	}{
		"the only service": {"services:\n  one:\n    image: a\n    restart: always\n", "one", ""},
		"the marked one":   {"services:\n  db:\n    image: a\n    restart: always\n  one:\n    image: a\n    x-fuse: {job: true}\n", "one", ""},
		"two of them":      {"services:\n  b:\n    image: a\n    x-fuse: {job: true}\n  a:\n    image: a\n    x-fuse: {job: true}\n", "a b", ""},
		"none of two":      {"services:\n  b:\n    image: a\n  a:\n    image: a\n    x-fuse: {job: false}\n", "", "none of its 2 services is marked"},
		"no truth":         {"services:\n  b:\n    image: a\n    x-fuse: {job: maybe}\n", "", "job is true or false"},
		"scaled":           {"services:\n  b:\n    image: a\n    scale: 2\n", "", "has one container there"},
		"replicas":         {"services:\n  b:\n    image: a\n    deploy: {replicas: 3}\n", "", "has one container there"},
		"global":           {"services:\n  b:\n    image: a\n    deploy: {mode: global}\n", "", "has one container there"},
		"rolled":           {"services:\n  b:\n    image: a\n    x-fuse: {zero_downtime: true}\n", "", "replaces nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, c.file)
			in.Job = true
			r, err := compose.Render(in)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("%v, want %s", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.Watch, strings.Fields(c.watch)) {
				t.Errorf("watches %v, want %s", r.Watch, c.watch)
			}
			if text := string(r.File); strings.Contains(text, "x-fuse") || strings.Contains(text, "always") || strings.Count(text, "restart: ") != len(r.Services) {
				t.Errorf("services are started again:\n%s", text)
			}
		})
	}
}

// A mark says nothing outside of a trick, and changes no digest.
func TestJobMarkOutsideOfTricks(t *testing.T) {
	plain, err := compose.Render(input(t, "services:\n  a:\n    image: a\n    restart: always\n"))
	if err != nil {
		t.Fatal(err)
	}
	marked, err := compose.Render(input(t, "services:\n  a:\n    image: a\n    restart: always\n    x-fuse: {job: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if plain.Digest != marked.Digest || len(marked.Watch) > 0 {
		t.Errorf("the mark changes what is rendered: %v", marked.Watch)
	}
}
