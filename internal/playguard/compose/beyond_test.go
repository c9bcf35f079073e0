package compose_test

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/playguard/compose"
)

// Compose on the host fills variables in a second time: it must find none.
func TestNothingIsLeftToFillIn(t *testing.T) {
	in := input(t, `
services:
  web:
    image: a
    command: ["sh", "-c", "echo $${HOME} $$1"]
    environment: {PW: "${PW}", GIVEN: , MISSING: }
    volumes: ["$${HOME:-/}:/host"]
    labels: {price: "5$$"}
  list:
    image: a
    environment: [GIVEN, MISSING, "A=b"]
volumes:
  "$${HOME:-/}":
`)
	in.Variables = map[string]string{"PW": "a$b${HOME}", "GIVEN": "given"}
	if _, err := compose.Render(in); err == nil {
		t.Error("a volume with the name of a variable was taken")
	}
	in.File = []byte(strings.Replace(strings.Replace(string(in.File), `volumes: ["$${HOME:-/}:/host"]`, "", 1), "volumes:\n  \"$${HOME:-/}\":\n", "", 1))
	r, err := compose.Render(in)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Services map[string]struct {
			Command     []string
			Environment any
			Labels      map[string]string
		}
	}
	if err := yaml.Unmarshal(r.File, &out); err != nil {
		t.Fatal(err)
	}
	web := out.Services["web"]
	env, _ := web.Environment.(map[string]any)
	if web.Command[2] != "echo $${HOME} $$1" || env["PW"] != "a$$b$${HOME}" || web.Labels["price"] != "5$$" {
		t.Errorf("%s", r.File)
	}
	if _, has := env["MISSING"]; has || env["GIVEN"] != "given" {
		t.Errorf("environment %v", env)
	}
	if list, _ := out.Services["list"].Environment.([]any); len(list) != 2 || list[0] != "GIVEN=given" || list[1] != "A=b" {
		t.Errorf("environment %v", out.Services["list"].Environment)
	}
}

// Every way to the host, or to what others have there, is refused unless a
// policy says otherwise.
func TestWaysToTheHost(t *testing.T) {
	service := func(lines string) string { return "services:\n  web:\n    image: a\n    " + lines + "\n" }
	for name, file := range map[string]string{
		"no source":           service("volumes: [':/x']"),
		"whole directory":     service("volumes: ['.:/x']"),
		"compose file":        service("volumes: ['./compose.yml:/x']"),
		"marker":              service("volumes: ['./a/../.fuse:/x']"),
		"checkouts":           service("volumes: [{type: bind, source: ./props, target: /x}]"),
		"path as volume":      service("volumes: [{type: volume, source: /etc, target: /x}]"),
		"below another":       service("volumes: ['./data:/x', './data/y:/y:ro']"),
		"forged line":         service("volumes: [\"./a\\n# fuse.roll web x:/x\"]"),
		"variable as path":    service("volumes: ['$${HOME:-/}:/x']"),
		"other's volumes":     service("volumes_from: ['container:other']"),
		"other's container":   service("external_links: [other]"),
		"other's network":     service("network_mode: other_default"),
		"socket of docker":    service("use_api_socket: true"),
		"program of the host": service("provider: {type: bash}"),
		"file of labels":      service("label_file: /etc/shadow"),
		"privileged hook":     service("post_start: [{command: id, privileged: true}]"),
		"hook container":      service("pre_start: [{image: a, privileged: true}]"),
		"gpus":                service("gpus: all"),
		"runtime":             service("runtime: other"),
		"log driver":          service("logging: {driver: fluentd, options: {fluentd-address: 'unix:///run/docker.sock'}}"),
		"labels of compose":   service("labels: {com.docker.compose.project: other}"),
		"witness":             service("volumes: ['v:/v']") + "volumes:\n  v:\n    labels: {fuse.playguard.witness: inst1}\n",
		"volume driver":       service("volumes: ['v:/v']") + "volumes:\n  v: {driver: other}\n",
		"network driver":      service("networks: [n]") + "networks:\n  n: {driver: macvlan}\n",
		"host's environment":  service("secrets: [s]") + "secrets:\n  s: {environment: HOME}\n",
		"jobs":                service("command: a") + "jobs:\n  j: {image: a, privileged: true}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := compose.Render(input(t, file)); err == nil {
				t.Errorf("taken as\n%s", r.File)
			} else {
				t.Log(err)
			}
		})
	}
	for name, file := range map[string]string{
		"read-only directory": service("volumes: ['.:/x:ro']"),
		"directory below":     service("volumes: ['./data:/x']"),
		"plain drivers":       service("networks: [n]") + "networks:\n  n: {driver: bridge}\n",
	} {
		r, err := compose.Render(input(t, file))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == "directory below" && !strings.HasPrefix(string(r.File), "# fuse.mount data\n") {
			t.Errorf("the runner is not told of the mount:\n%s", r.File)
		}
	}
}
