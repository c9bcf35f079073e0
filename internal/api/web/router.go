package web

import (
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
)

// Access says who may use a route.
type Access int

// The kinds of access.
const (
	ByToken  Access = iota // the default: address and token
	ByAnyone               // neither is asked
	ByLocal                // neither is asked under a loopback name, both otherwise
	ByNobody               // address only; the handler itself deals with the token
)

// Limits of bodies, in bytes. Creates and commands carry files, secrets and
// input.
const (
	LoginLimit = 4 << 10
	BodyLimit  = 64 << 10
	LargeLimit = 1 << 20
)

// Route is one method of one path. Bodies are read, and bounded, before the
// handler runs; a zero limit means that there is none to read.
type Route struct {
	Method, Pattern string
	Access          Access
	BodyLimit       int
	// Slow handlers may work longer than the server's write timeout, which
	// then counts from the first byte of the answer.
	Slow   bool
	Handle Handler
}

// Handler answers a request by writing to w or by returning an error, never
// both.
type Handler func(w http.ResponseWriter, r *Request) error

// Request is a matched request.
type Request struct {
	*http.Request
	Route   *Route
	ID      string // of the request
	Param   string // the path's {id}
	Item    string // what follows it in the path, as a process's id
	Payload []byte // the whole body
	Log     *slog.Logger
}

// Principal is who makes the request.
func (r *Request) Principal() auth.Principal {
	p, _ := auth.From(r.Context())
	return p
}

// Action is one value of ?action=, with the limit of its body.
type Action struct {
	BodyLimit int
	Handle    Handler
}

// Dispatch answers with the action that the query names.
func Dispatch(actions map[string]Action, w http.ResponseWriter, r *Request) error {
	name := r.URL.Query().Get("action")
	a, ok := actions[name]
	if !ok {
		return fleet.Errorf(fleet.CodeInvalidArgument, "action %.40q is not known", name).
			With(fleet.DetailScope, "action").With(fleet.DetailLimit, strings.Join(slices.Sorted(maps.Keys(actions)), ", "))
	}
	if len(r.Payload) > a.BodyLimit {
		return tooLarge(a.BodyLimit)
	}
	return a.Handle(w, r)
}

// Router finds the route of a path. It works on escaped segments, so an id may
// hold a slash, and cleans nothing, so a path means what it says.
type Router struct {
	paths map[int][]*Path // by number of segments
}

// Path is one pattern with its methods.
type Path struct {
	Pattern  string
	segments []string // those in braces match anything but nothing
	Methods  map[string]*Route
	Allow    string // for the header
}

// NewRouter makes a Router of routes.
func NewRouter(routes []Route) *Router {
	rt := &Router{paths: map[int][]*Path{}}
	for i := range routes {
		r := &routes[i]
		p := rt.find(r.Pattern)
		if p == nil {
			segs := strings.Split(r.Pattern, "/")
			p = &Path{Pattern: r.Pattern, segments: segs, Methods: map[string]*Route{}}
			rt.paths[len(segs)] = append(rt.paths[len(segs)], p)
		}
		p.Methods[r.Method] = r
		if r.Method == http.MethodGet {
			p.Methods[http.MethodHead] = r
		}
		var allow []string
		for m := range p.Methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		p.Allow = strings.Join(allow, ", ")
	}
	return rt
}

func (rt *Router) find(pattern string) *Path {
	for _, p := range rt.paths[strings.Count(pattern, "/")+1] {
		if p.Pattern == pattern {
			return p
		}
	}
	return nil
}

// Match returns the path of a URL and its {id}, or nil.
func (rt *Router) Match(u *url.URL) (*Path, string) {
	escaped := u.EscapedPath()
	for _, p := range rt.paths[strings.Count(escaped, "/")+1] {
		if param, ok := p.match(escaped); ok {
			return p, param
		}
	}
	return nil, ""
}

func (p *Path) match(escaped string) (param string, ok bool) {
	params, ok := p.params(escaped)
	if !ok || len(params) == 0 {
		return "", ok
	}
	return params[0], true
}

// Item returns the second parameter of a URL that the path matches.
func (p *Path) Item(u *url.URL) string {
	if params, ok := p.params(u.EscapedPath()); ok && len(params) > 1 {
		return params[1]
	}
	return ""
}

func (p *Path) params(escaped string) (params []string, ok bool) {
	for _, want := range p.segments {
		var seg string
		seg, escaped, _ = strings.Cut(escaped, "/")
		if !strings.HasPrefix(want, "{") {
			if seg != want {
				return nil, false
			}
			continue
		}
		param, err := url.PathUnescape(seg)
		if err != nil || param == "" {
			return nil, false
		}
		params = append(params, param)
	}
	return params, true
}
