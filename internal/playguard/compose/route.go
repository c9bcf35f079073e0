package compose

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// A service says "x-fuse: {route: {port: 80, host: '{name}.example.org'}}" to be
// reached by that name through a proxy on the marquee; the whole file says
// "x-fuse: {route: {service: web, port: 80, host: …}}". The proxy is the
// operator's, and so are its certificates: only labels for it are written.
const routeKey = "route"

// Proxies whose labels are known.
const (
	ProxyTraefik = "traefik"
	ProxyCaddy   = "caddy" // with caddy-docker-proxy
)

var (
	hostPattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	wordPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	openPattern = regexp.MustCompile(`\{[^}]*\}?`)
	notOfNames  = regexp.MustCompile(`[^a-z0-9-]+`)
)

// routeMark begins the lines at the head of a rendered file that name its routes.
const routeMark = "# fuse.route "

func routeHead(routes []model.Route) (out []byte) {
	for _, r := range routes {
		out = fmt.Appendf(out, "%s%s %s %d %s\n", routeMark, r.Host, r.Service, r.Port, r.Proxy)
	}
	return out
}

// Routed lists the routes of a rendered file.
func Routed(file []byte) (out []model.Route) {
	for line := range strings.Lines(string(file)) {
		if !strings.HasPrefix(line, "# ") {
			break
		}
		var r model.Route
		if rest, ok := strings.CutPrefix(line, routeMark); ok {
			if n, err := fmt.Sscan(rest, &r.Host, &r.Service, &r.Port, &r.Proxy); n == 4 && err == nil {
				out = append(out, r)
			}
		}
	}
	return out
}

// proxyLabels finds labels of people that proxies read: with them a service could
// take any name, that of somebody else's playground too.
func proxyLabels(d *document) error {
	services := d.section("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		at := "services." + name + ".labels"
		labels, err := labelsOf(s["labels"])
		if err != nil {
			return d.fail(at, "%s", err)
		}
		for _, k := range slices.Sorted(maps.Keys(labels)) {
			if proxyLabel(k) {
				d.proxied = append(d.proxied, finding{DangerProxy, at, "service " + name + " sets label " + k + ", by which a proxy is led; use x-fuse.route"})
			}
		}
	}
	return nil
}

// proxyLabel reports whether a proxy that is known reads a label, in whatever
// case it is written.
func proxyLabel(key string) bool {
	key = strings.ToLower(key)
	for _, p := range []string{ProxyTraefik, ProxyCaddy} {
		if rest, ok := strings.CutPrefix(key, p); ok && (rest == "" || rest[0] == '.' || rest[0] == '_') {
			return true
		}
	}
	return false
}

// wish is a route as a file asks for it.
type wish struct {
	at, service         string
	host, proxy         string
	network, entrypoint string
	port                int
}

// route takes the routes out of a file and writes the labels that lead a proxy
// to its services.
func route(d *document) error {
	wishes, err := wished(d)
	if err != nil {
		return err
	}
	var out []model.Route
	taken := map[string]bool{}
	for _, w := range wishes {
		switch {
		case taken[w.host]:
			return d.fail(w.at+".host", "%s leads to a service already", w.host)
		case slices.ContainsFunc(out, func(r model.Route) bool { return r.Service == w.service }):
			return d.fail(w.at, "service %s has a route already", w.service)
		}
		taken[w.host] = true
		if err := apply(d, w); err != nil {
			return err
		}
		out = append(out, model.Route{Host: w.host, Service: w.service, Port: w.port, Proxy: w.proxy})
	}
	slices.SortFunc(out, func(a, b model.Route) int { return strings.Compare(a.Host, b.Host) })
	d.routes = out
	return nil
}

// wished reads the routes, those of services first, and removes them.
func wished(d *document) (out []wish, err error) {
	services := d.section("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		if v, has := taken(s); has {
			w, err := readWish(d, "services."+name+"."+extension+"."+routeKey, name, v)
			if err != nil {
				return nil, err
			}
			out = append(out, w)
		}
	}
	if v, has := taken(d.root); has {
		w, err := readWish(d, extension+"."+routeKey, "", v)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

// taken takes a route out of what may have one.
func taken(of map[string]any) (route any, has bool) {
	m, ok := of[extension].(map[string]any)
	if !ok {
		return nil, false
	}
	route, has = m[routeKey]
	if delete(m, routeKey); len(m) == 0 && has {
		delete(of, extension)
	}
	return route, has
}

func readWish(d *document, at, service string, v any) (wish, error) {
	w := wish{at: at, service: service, proxy: ProxyTraefik}
	m, ok := v.(map[string]any)
	if !ok {
		return w, d.fail(at, "%s is a mapping, such as {port: 80, host: '{name}.example.org'}", routeKey)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		text := fmt.Sprint(m[k])
		switch k {
		case "service":
			if service != "" && text != service {
				return w, d.fail(at+".service", "this is the route of service %s", service)
			}
			w.service = text
		case "port":
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return w, d.fail(at+".port", "port is 1 to 65535, of the container")
			}
			w.port = int(n)
		case "host":
			w.host = text
		case "proxy":
			w.proxy = text
		case "network":
			w.network = text
		case "entrypoint":
			w.entrypoint = text
		default:
			return w, d.fail(at+"."+k, "%s is not a key of %s; there are service, port, host, proxy, network and entrypoint", k, routeKey)
		}
	}
	return w, finish(d, &w)
}

// finish checks a route and fills its host in.
func finish(d *document, w *wish) error {
	if _, ok := d.section("services")[w.service].(map[string]any); !ok {
		return d.fail(w.at, "service %q of the route is not in the file", w.service)
	}
	slug, _, _ := strings.Cut(d.in.Project.String(), "--")
	host := strings.NewReplacer("{name}", slug, "{id}", string(d.in.Playground), "{service}", label(w.service)).Replace(strings.ToLower(w.host))
	if open := openPattern.FindString(host); open != "" {
		return d.fail(w.at+".host", "%s is not known in a host; there are {name}, {id} and {service}", open)
	}
	switch {
	case w.port == 0:
		return d.fail(w.at, "the route of service %s has no port", w.service)
	case len(host) > 253 || !hostPattern.MatchString(host):
		return d.fail(w.at+".host", "%.80q is no host name", host)
	case w.proxy != ProxyTraefik && w.proxy != ProxyCaddy:
		return d.fail(w.at+".proxy", "proxy is %s or %s", ProxyTraefik, ProxyCaddy)
	case w.network != "" && !wordPattern.MatchString(w.network):
		return d.fail(w.at+".network", "%.80q is no network of Docker", w.network)
	case w.entrypoint != "" && (w.proxy != ProxyTraefik || !wordPattern.MatchString(w.entrypoint)):
		return d.fail(w.at+".entrypoint", "entrypoint is a word, and only %s has them", ProxyTraefik)
	}
	w.host = host
	return nil
}

// label makes a part of a host name of a service's name.
func label(service string) string {
	return strings.Trim(notOfNames.ReplaceAllString(strings.ToLower(service), "-"), "-")
}

// apply writes the labels of a route, and the network that the proxy is on.
func apply(d *document, w wish) error {
	s, _ := d.section("services")[w.service].(map[string]any)
	at := "services." + w.service
	if mode, has := s["network_mode"]; has {
		return d.fail(at+".network_mode", "service %s has a route, and with network_mode %v no proxy reaches it", w.service, mode)
	}
	labels, err := labelsOf(s["labels"])
	if err != nil {
		return d.fail(at+".labels", "%s", err)
	}
	add := map[string]string{}
	switch w.proxy {
	case ProxyTraefik:
		name := string(d.in.Playground) + "-" + label(w.service)
		router, service := "traefik.http.routers."+name, "traefik.http.services."+name
		add["traefik.enable"] = "true"
		add[router+".rule"] = "Host(`" + w.host + "`)"
		add[router+".service"] = name
		add[service+".loadbalancer.server.port"] = strconv.Itoa(w.port)
		if w.entrypoint != "" {
			add[router+".entrypoints"] = w.entrypoint
		}
		if w.network != "" {
			add["traefik.docker.network"] = networkName(d, w.network)
		}
	case ProxyCaddy:
		add["caddy"] = w.host
		add["caddy.reverse_proxy"] = "{{upstreams " + strconv.Itoa(w.port) + "}}"
		if w.network != "" {
			add["caddy_ingress_network"] = networkName(d, w.network)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(add)) {
		if _, has := labels[k]; has {
			return fleet.Errorf(fleet.CodeInvalidArgument, "%slabel %s of service %s is what its route writes", d.at(at+".labels"), k, w.service).
				With(fleet.DetailScope, at+".labels").With(fleet.DetailRemedy, "leave out the label or the route")
		}
		labels[k] = add[k]
	}
	all := make(map[string]any, len(labels))
	for k, v := range labels {
		all[k] = v
	}
	s["labels"] = all
	if w.network != "" {
		join(d, s, w.network)
	}
	return nil
}

// networkName is what Docker calls a network that a route names: proxies know
// nothing of the names that a file has for them.
func networkName(d *document, network string) string {
	v, there := d.section("networks")[network]
	m, _ := v.(map[string]any)
	e, _ := m["external"].(map[string]any) // as files of long ago have it
	switch {
	case there && !external(m), !there && network == "default":
		return d.in.Project.String() + "_" + network
	case m["name"] != nil:
		return fmt.Sprint(m["name"])
	case e["name"] != nil:
		return fmt.Sprint(e["name"])
	}
	return network
}

// join puts a service on a network that is not the project's, beside its own.
// Whether it may be is for the policy to say.
func join(d *document, s map[string]any, network string) {
	all := d.section("networks")
	if all == nil {
		all = map[string]any{}
		d.root["networks"] = all
	}
	if _, there := all[network]; !there && network != "default" {
		all[network] = map[string]any{"external": true}
	}
	switch on := s["networks"].(type) {
	case []any:
		if !slices.Contains(on, any(network)) {
			s["networks"] = append(slices.Clone(on), network)
		}
	case map[string]any:
		if _, has := on[network]; !has {
			on[network] = nil
		}
	default:
		if s["networks"] = []any{"default", network}; network == "default" {
			s["networks"] = []any{network}
		}
		if all["default"] == nil {
			all["default"] = map[string]any{} // gets its labels with the others
		}
	}
}
