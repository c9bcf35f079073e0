package compose_test

import (
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/compose"
)

// What is not defined is refused here, with its place, and not by the host
// when an up is half done.
func TestReferences(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"depends_on":        {"services:\n  web:\n    image: a\n    depends_on: [db]\n", "compose.yml:4:18: service web uses db, which is not among the services"},
		"depends_on, long":  {"services:\n  web:\n    image: a\n    depends_on:\n      db: {condition: service_started}\n", "compose.yml:5:7: service web uses db"},
		"not required":      {"services:\n  web:\n    image: a\n    depends_on:\n      db: {condition: service_started, required: false}\n", ""},
		"itself":            {"services: {web: {image: a, depends_on: [web]}}\n", "wait for each other: web -> web"},
		"round":             {"services: {a: {image: a, depends_on: [b]}, b: {image: a, links: [c]}, c: {image: a, network_mode: 'service:a'}}\n", "a -> b -> c -> a"},
		"a diamond":         {"services: {a: {image: a, depends_on: [b, c]}, b: {image: a, depends_on: [d]}, c: {image: a, depends_on: [d]}, d: {image: a}}\n", ""},
		"links":             {"services: {web: {image: a, links: ['db:other']}}\n", "service web uses db"},
		"volumes_from":      {"services: {web: {image: a, volumes_from: ['db:ro']}}\n", "service web uses db"},
		"pid":               {"services: {web: {image: a, pid: 'service:db'}}\n", "service web uses db"},
		"volume":            {"services: {web: {image: a, volumes: ['data:/d']}}\n", "uses data, which is not among the volumes"},
		"volume, long":      {"services: {web: {image: a, volumes: [{type: volume, source: data, target: /d}]}}\n", "uses data, which is not among the volumes"},
		"volume, no name":   {"services: {web: {image: a, volumes: [':/d']}}\n", "which is not among the volumes"},
		"volume, anonymous": {"services: {web: {image: a, volumes: [/d]}}\n", ""},
		"volume, there":     {"services: {web: {image: a, volumes: ['data:/d']}}\nvolumes: {data: }\n", ""},
		"network":           {"services: {web: {image: a, networks: [back]}}\n", "uses back, which is not among the networks"},
		"network, long":     {"services: {web: {image: a, networks: {back: {}}}}\n", "uses back, which is not among the networks"},
		"network, default":  {"services: {web: {image: a, networks: [default]}}\n", ""},
		"secret":            {"services: {web: {image: a, secrets: [s]}}\n", "uses s, which is not among the secrets"},
		"config, long":      {"services: {web: {image: a, configs: [{source: c, target: /c}]}}\n", "uses c, which is not among the configs"},
	} {
		_, err := compose.Render(input(t, test.file))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
