package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
)

func routed(t *testing.T, file string, policy compose.Policy) (compose.Rendered, error) {
	t.Helper()
	project, err := model.NewProject("My Shop", "p1")
	if err != nil {
		t.Fatal(err)
	}
	return compose.Render(compose.Input{File: []byte(file), Installation: "inst1", Playground: "p1", Project: project, Policy: policy, Variables: map[string]string{"PORT": "8080"}})
}

// labelLines are the labels of a rendered file that are not Fuse's own.
func labelLines(r compose.Rendered) (out []string) {
	for line := range strings.Lines(string(r.File)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "traefik") || strings.HasPrefix(line, "caddy") {
			out = append(out, line)
		}
	}
	return out
}

func TestRoutes(t *testing.T) {
	external := compose.Policy{compose.DangerExternal: compose.Allow}
	for name, c := range map[string]struct {
		file   string
		labels []string
		routes []model.Route
	}{
		"traefik": {
			"services:\n  web:\n    image: a\n    x-fuse: {route: {port: '${PORT}', host: '{name}.preview.example.org'}}\n",
			[]string{
				"traefik.enable: \"true\"", "traefik.http.routers.p1-web.rule: Host(`my-shop.preview.example.org`)", "traefik.http.routers.p1-web.service: p1-web",
				"traefik.http.services.p1-web.loadbalancer.server.port: \"8080\"",
			},
			[]model.Route{{Host: "my-shop.preview.example.org", Service: "web", Port: 8080, Proxy: "traefik"}},
		},
		"caddy, of the whole file": {
			"services:\n  web_1: {image: a}\nx-fuse: {route: {service: web_1, port: 80, host: '{service}-{id}.Example.org', proxy: caddy, network: edge}}\n",
			[]string{"caddy: web-1-p1.example.org", "caddy.reverse_proxy: \"{{upstreams 80}}\"", "caddy_ingress_network: edge"},
			[]model.Route{{Host: "web-1-p1.example.org", Service: "web_1", Port: 80, Proxy: "caddy"}},
		},
	} {
		r, err := routed(t, c.file, external)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.labels, labelLines(r)); diff != "" {
			t.Errorf("%s: %s\n%s", name, diff, r.File)
		}
		if diff := cmp.Diff(c.routes, r.Routes); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.routes, compose.Routed(r.File)); diff != "" {
			t.Errorf("%s, read back: %s", name, diff)
		}
		if name != "traefik" && !strings.Contains(string(r.File), "default:\n    labels:") {
			t.Errorf("%s: its own network has no labels:\n%s", name, r.File)
		}
		if again, err := routed(t, c.file, external); err != nil || again.Digest != r.Digest || strings.Contains(string(r.File), "x-fuse") {
			t.Errorf("%s: it is rendered differently, or keeps the mark: %v\n%s", name, err, r.File)
		}
	}
}

// Labels say what Docker calls a network, whatever the file calls it: a proxy that
// does not find it takes any of the container's.
func TestARouteNamesTheNetworkAsDockerDoes(t *testing.T) {
	for networks, want := range map[string]string{
		"{}":                       "edge",
		"{edge: {external: true}}": "edge",
		"{edge: {external: true, name: edge-proxy}}": "edge-proxy",
		"{edge: {external: {name: old-proxy}}}":      "old-proxy",
		"{edge: {}}":                                 "my-shop--p1_edge",
		"{edge: }":                                   "my-shop--p1_edge",
	} {
		for _, proxy := range []string{"traefik.docker.network", "caddy_ingress_network"} {
			kind, _, _ := strings.Cut(strings.ReplaceAll(proxy, "_", "."), ".")
			r, err := routed(t, "services:\n  web:\n    image: a\n    x-fuse: {route: {port: 80, host: a, network: edge, proxy: "+kind+"}}\nnetworks: "+networks+"\n",
				compose.Policy{compose.DangerExternal: compose.Allow})
			if err != nil {
				t.Errorf("%s: %v", networks, err)
				continue
			}
			if lines := labelLines(r); !slices.Contains(lines, proxy+": "+want) {
				t.Errorf("%s: %v, want %s", networks, lines, want)
			}
		}
	}
	r, err := routed(t, "services:\n  web: {image: a, x-fuse: {route: {port: 80, host: a, network: default}}}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if lines := labelLines(r); !slices.Contains(lines, "traefik.docker.network: my-shop--p1_default") || strings.Contains(string(r.File), "external") {
		t.Errorf("the project's own network: %v\n%s", lines, r.File)
	}
}

// A route is part of the definition of its service and of no other.
func TestARouteReplacesItsServiceAlone(t *testing.T) {
	file := func(host string) string {
		return "services:\n  db: {image: a}\n  web:\n    image: a\n    x-fuse: {zero_downtime: true, route: {port: 80, host: " + host + "}}\n"
	}
	a, err := routed(t, file("a.example.org"), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := routed(t, file("b.example.org"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Services[0] != b.Services[0] || a.Services[1].Digest == b.Services[1].Digest || !a.Services[1].Rolled {
		t.Errorf("%+v\n%+v", a.Services, b.Services)
	}
}

// Labels that lead a proxy could take any name, and are for the policy to allow.
func TestNamesAreNotTakenByLabels(t *testing.T) {
	for _, labels := range []string{
		"{traefik.http.routers.x.rule: 'Host(`shop.example.org`)'}", "['traefik.enable=true']", "{Traefik.Http.Routers.X.Rule: a}",
		"{TRAEFIK.enable: 'true'}", "{caddy: shop.example.org}", "{caddy_1: shop.example.org}", "{caddy.reverse_proxy: a}", "['caddy_0.import=x']",
	} {
		file := "services:\n  web: {image: a, labels: " + labels + "}\n"
		others := compose.Policy{compose.DangerExternal: compose.Allow, compose.DangerPrivileged: compose.Allow}
		if _, err := routed(t, file, others); err == nil || !strings.Contains(err.Error(), "use x-fuse.route") {
			t.Errorf("%s: %v", labels, err)
		}
		if _, err := routed(t, file, compose.Policy{compose.DangerProxy: compose.Allow}); err != nil {
			t.Errorf("%s is not for the policy to allow: %v", labels, err)
		}
	}
	if _, err := routed(t, "services:\n  web: {image: a, labels: {caddyshack: a, mytraefik.enable: b, org.example: c}, x-fuse: {route: {port: 80, host: a}}}\n", nil); err != nil {
		t.Error(err)
	}
}

func TestBadRoutes(t *testing.T) {
	web := func(route string) string {
		return "services:\n  web:\n    image: a\n    x-fuse: {route: " + route + "}\n"
	}
	for file, says := range map[string]string{
		web("x"):                                                "is a mapping",
		web("{port: 80}"):                                       "is no host name",
		web("{host: a.example.org}"):                            "has no port",
		web("{port: 0, host: a}"):                               "1 to 65535",
		web("{port: 99999, host: a}"):                           "1 to 65535",
		web("{port: 80, host: 'a b'}"):                          "is no host name",
		web("{port: 80, host: 'a`) || x'}"):                     "is no host name",
		web("{port: 80, host: '{who}.a'}"):                      "{who} is not known",
		web("{port: 80, host: '{name.a'}"):                      "is not known",
		web("{port: 80, host: -a.b}"):                           "is no host name",
		web("{port: 80, host: a, proxy: nginx}"):                "traefik or caddy",
		web("{port: 80, host: a, proxy: caddy, entrypoint: x}"): "only traefik has them",
		web("{port: 80, host: a, network: 'a b'}"):              "no network of Docker",
		web("{port: 80, host: a, colour: red}"):                 "colour is not a key",
		web("{port: 80, host: a, service: db}"):                 "the route of service web",
		"services:\n  web: {image: a, network_mode: none, x-fuse: {route: {port: 80, host: a}}}\n":                                     "no proxy reaches it",
		"services:\n  web: {image: a, labels: {traefik.enable: 'false'}, x-fuse: {route: {port: 80, host: a}}}\n":                      "is what its route writes",
		"services:\n  web: {image: a}\nx-fuse: {route: {service: db, port: 80, host: a}}\n":                                            "is not in the file",
		"services:\n  web: {image: a, x-fuse: {route: {port: 80, host: a}}}\n  db: {image: a, x-fuse: {route: {port: 80, host: A}}}\n": "leads to a service already",
		"services:\n  web: {image: a, x-fuse: {route: {port: 80, host: a}}}\nx-fuse: {route: {service: web, port: 1, host: b}}\n":      "has a route already",
		web("{port: 80, host: a, network: edge}"): "the policy of this marquee refuses",
	} {
		if _, err := routed(t, file, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", file, err, says)
		}
	}
}
