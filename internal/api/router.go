package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// access says who may use a route.
type access int

const (
	byToken  access = iota // the default: address and token
	byAnyone               // neither is asked
	byLocal                // neither is asked under a loopback name, both otherwise
	byNobody               // address only; the handler itself deals with the token
)

// route is one method of one path. Bodies are read, and bounded, before the
// handler runs; a zero limit means that there is none to read.
type route struct {
	method, pattern string
	access          access
	bodyLimit       int
	// slow handlers may work longer than the server's write timeout, which
	// then counts from the first byte of the answer.
	slow   bool
	handle handler
}

// handler answers a request by writing to w or by returning an error, never
// both.
type handler func(w http.ResponseWriter, r *request) error

// request is a matched request.
type request struct {
	*http.Request
	route *route
	id    string // of the request
	param string // the path's {id}
	body  []byte
}

// router finds the route of a path. It works on escaped segments, so an id may
// hold a slash, and cleans nothing, so a path means what it says.
type router struct {
	paths map[int][]*path // by number of segments
}

type path struct {
	pattern  string
	segments []string // "{id}" matches anything but nothing
	methods  map[string]*route
	allow    string
}

func newRouter(routes []route) *router {
	rt := &router{paths: map[int][]*path{}}
	for i := range routes {
		r := &routes[i]
		p := rt.find(r.pattern)
		if p == nil {
			segs := strings.Split(r.pattern, "/")
			p = &path{pattern: r.pattern, segments: segs, methods: map[string]*route{}}
			rt.paths[len(segs)] = append(rt.paths[len(segs)], p)
		}
		p.methods[r.method] = r
		if r.method == http.MethodGet {
			p.methods[http.MethodHead] = r
		}
		var allow []string
		for m := range p.methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		p.allow = strings.Join(allow, ", ")
	}
	return rt
}

func (rt *router) find(pattern string) *path {
	for _, p := range rt.paths[strings.Count(pattern, "/")+1] {
		if p.pattern == pattern {
			return p
		}
	}
	return nil
}

// match returns the path of a URL and its {id}, or nil.
func (rt *router) match(u *url.URL) (*path, string) {
	escaped := u.EscapedPath()
	for _, p := range rt.paths[strings.Count(escaped, "/")+1] {
		if param, ok := p.match(escaped); ok {
			return p, param
		}
	}
	return nil, ""
}

func (p *path) match(escaped string) (param string, ok bool) {
	for _, want := range p.segments {
		var seg string
		seg, escaped, _ = strings.Cut(escaped, "/")
		if want != "{id}" {
			if seg != want {
				return "", false
			}
			continue
		}
		var err error
		if param, err = url.PathUnescape(seg); err != nil || param == "" {
			return "", false
		}
	}
	return param, true
}
