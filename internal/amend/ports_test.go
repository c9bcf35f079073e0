package amend

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// host publishes what it is asked to, at 20000 and the guest's number.
type host struct {
	t     *testing.T
	store *state.Store
	fails error
	has   []fleet.ExposeSpec
	then  func() // happens once after the next answer
}

func (h *host) Provider(string) (provider.Provider, error) { return guestHost{host: h}, nil }

type guestHost struct {
	provider.Provider
	*host
}

func (h guestHost) Open(ref provider.Ref) provider.Environment {
	if ref.UID != "u" {
		h.t.Errorf("another life is meant: %+v", ref)
	}
	return environment{host: h.host}
}

type environment struct {
	provider.Environment
	*host
}

func (e environment) Dial(context.Context, int) (provider.PortConn, error) { return nil, nil }

func (e environment) Publish(_ context.Context, expose []fleet.ExposeSpec) ([]fleet.Endpoint, error) {
	// While the host is at work the row tells of nothing that may be gone.
	for _, ep := range endpoints(e.t, e.store) {
		if !slices.ContainsFunc(expose, func(x fleet.ExposeSpec) bool { return same(ep, x) }) {
			e.t.Errorf("the row tells of %v, which is being withdrawn", ep)
		}
	}
	if f := e.then; f != nil {
		e.then = nil
		defer f()
	}
	if e.fails != nil {
		return nil, e.fails
	}
	e.has = expose
	var out []fleet.Endpoint
	for _, x := range expose {
		out = append(out, fleet.Endpoint{As: x.As, Port: x.Port, Protocol: x.Protocol, URL: net.JoinHostPort("h", strconv.Itoa(20000+x.Port))})
	}
	return out, nil
}

func endpoints(t *testing.T, store *state.Store) (list []fleet.Endpoint) {
	t.Helper()
	if err := store.View(func(tx *state.ReadTx) error {
		vm, _ := tx.VMs().Get("fuse-a")
		list = vm.Endpoints
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

func url(t *testing.T, store *state.Store) (url string) {
	t.Helper()
	if err := store.View(func(tx *state.ReadTx) error {
		vm, _ := tx.VMs().Get("fuse-a")
		url = vm.URL
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return url
}

func TestPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateRunning)
		h := &host{t: t, store: store}
		s.WithHosts(store, h)
		want := func(eps ...fleet.Endpoint) {
			t.Helper()
			if diff := cmp.Diff(eps, endpoints(t, store), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		}
		amend := func(code fleet.Code, r Request) {
			t.Helper()
			if err := s.Amend(t.Context(), "fuse-a", "user:ann", r); err == nil && code != "" || err != nil && fleet.CodeOf(err) != code {
				t.Errorf("%+v: %v, want %q", r, err, code)
			}
		}
		web := fleet.Endpoint{As: "web", Port: 80, Protocol: "tcp", URL: "h:20080"}
		dns := fleet.Endpoint{Port: 53, Protocol: "udp", URL: "h:20053"}
		amend("", Request{Expose: []fleet.ExposeSpec{{Port: 80, As: "web"}}, Tags: map[string]*string{"run": nil}})
		want(web)
		amend("", Request{Expose: []fleet.ExposeSpec{{Port: 53, Protocol: "udp"}, {Port: 80, As: "web"}}})
		want(dns, web)
		amend("", Request{Expose: []fleet.ExposeSpec{{Port: 53, Protocol: "udp"}}})
		want(dns)

		// With the guest agent's port the environment has a URL, and no longer
		// than that.
		for _, try := range []struct {
			expose []fleet.ExposeSpec
			url    string
		}{
			{[]fleet.ExposeSpec{{Port: 53, Protocol: "udp"}, {Port: fleet.AgentPort}}, "h:29550"},
			{[]fleet.ExposeSpec{{Port: 53, Protocol: "udp"}, {Port: fleet.AgentPort, Protocol: "udp"}}, ""},
			{[]fleet.ExposeSpec{{Port: fleet.AgentPort, As: "agent"}}, "h:29550"},
			{[]fleet.ExposeSpec{{Port: 53, Protocol: "udp"}}, ""},
		} {
			amend("", Request{Expose: try.expose})
			if got := url(t, store); got != try.url {
				t.Errorf("publishing %v the url is %q, want %q", try.expose, got, try.url)
			}
		}

		// A refusal leaves all as it was; without an answer what was to go is told
		// of no more.
		h.fails = fleet.Errorf(fleet.CodeConflict, "taken")
		amend(fleet.CodeConflict, Request{Expose: []fleet.ExposeSpec{{Port: 80, HostPort: 20080}}})
		want(dns)
		h.fails = fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "the host did not answer")
		amend(fleet.CodeUnavailable, Request{Expose: []fleet.ExposeSpec{}})
		want()
		h.fails = nil
		amend("", Request{Expose: []fleet.ExposeSpec{{Port: 80, As: "web"}}})
		amend("", Request{Expose: []fleet.ExposeSpec{}})
		if want(); len(h.has) != 0 {
			t.Errorf("the host still publishes %v", h.has)
		}

		// What is wrong never gets as far as the host.
		h.fails = errors.New("the host was asked")
		amend(fleet.CodeInvalidArgument, Request{Expose: []fleet.ExposeSpec{{Port: 70000}}})
		amend(fleet.CodeInvalidArgument, Request{Expose: []fleet.ExposeSpec{{Port: 1}}, Tags: map[string]*string{"a b": new("c")}})
		bob := auth.With(t.Context(), auth.Principal{Name: "bob", Role: fleet.RoleUser})
		if err := s.Amend(bob, "fuse-a", "user:bob", Request{Expose: []fleet.ExposeSpec{{Port: 1}}}); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("another's: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateDestroying)
		s.WithHosts(store, &host{t: t, store: store, fails: errors.New("the host was asked")})
		if err := s.Amend(t.Context(), "fuse-a", "user:ann", Request{Expose: []fleet.ExposeSpec{{Port: 1}}}); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("one that is being destroyed: %v", err)
		}
	})
}

// The last step is the record's. If it fails, the host publishes again what the
// record tells, at the same ports. If the host refuses, the record tells again what
// the host publishes, also when nobody waits for the answer any more.
func TestPortsArePutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateRunning)
		h := &host{t: t, store: store}
		s.WithHosts(store, h)
		tags := func(change map[string]string) {
			t.Helper()
			if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
				row, _ := tx.VMs().Get("fuse-a")
				vm := *row
				vm.Spec.Tags = change
				return tx.PutVM(vm)
			}); err != nil {
				t.Fatal(err)
			}
		}
		web, dns := fleet.ExposeSpec{Port: 80, As: "web", Protocol: "tcp"}, fleet.ExposeSpec{Port: 53, Protocol: "udp"}
		if err := s.Amend(t.Context(), "fuse-a", "me", Request{Expose: []fleet.ExposeSpec{web, dns}}); err != nil {
			t.Fatal(err)
		}
		before := endpoints(t, store)
		many := map[string]string{}
		for i := range fleet.MaxTags {
			many["t"+strconv.Itoa(i)] = "x"
		}
		h.then = func() { tags(many) } // so that one more is one too many
		err := s.Amend(t.Context(), "fuse-a", "me", Request{Expose: []fleet.ExposeSpec{web, {Port: 443}}, Tags: map[string]*string{"more": new("y")}})
		if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Fatalf("one tag too many: %v", err)
		}
		if diff := cmp.Diff(before, endpoints(t, store)); diff != "" {
			t.Errorf("the record: %s", diff)
		}
		ctx, leave := context.WithCancel(t.Context())
		h.then, h.fails = leave, fleet.Errorf(fleet.CodeConflict, "taken")
		err = s.Amend(ctx, "fuse-a", "me", Request{Expose: []fleet.ExposeSpec{{Port: 80, HostPort: 20081}}})
		if fleet.CodeOf(err) != fleet.CodeConflict {
			t.Fatalf("a number that is taken: %v", err)
		}
		if diff := cmp.Diff(before, endpoints(t, store)); diff != "" {
			t.Errorf("the record, after who asked had left: %s", diff)
		}
		web.HostPort, dns.HostPort = 20080, 20053
		if diff := cmp.Diff([]fleet.ExposeSpec{web, dns}, h.has); diff != "" {
			t.Errorf("the host: %s", diff)
		}
	})
}
