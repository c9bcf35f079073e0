package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fusevm/fuse/internal/api/gen"
)

// What a follower is sent over several connections, and what it asks for each
// time: it resumes from the last id that it knows, also when that came alone.
func TestFollow(t *testing.T) {
	event := func(id string) string {
		return fmt.Sprintf("id: %s\nevent: vm.running\ndata: {\"id\":%q,\"type\":\"vm.running\"}\n\n", id, id)
	}
	answers := []string{
		": connected\n\n" + event("1") + event("2") + "id: 7\n\n: keepalive\n\n",
		"id: 9\nevent: resync\ndata: {\"reason\":\"they are gone\",\"after\":\"7\",\"next\":\"9\"}\n\n" + event("10") + "id: 11\nda",
		event("11"),
	}
	var mu sync.Mutex
	var asked []string
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n := len(asked)
		asked = append(asked, r.URL.Query().Get("after")+" "+r.Header.Get("Accept")+" "+r.URL.Query().Get("type"))
		w.Header().Set("Content-Type", "text/event-stream")
		if n == 1 {
			w.WriteHeader(http.StatusBadGateway) // it is tried again
			return
		}
		if n > 1 {
			n--
		}
		fmt.Fprint(w, answers[n])
	}))
	defer ts.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	var notices []string
	api, err := New(ts.URL, Options{Notice: func(text string) { notices = append(notices, text) }})
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	var got []string
	err = NewFeed(api).Follow(t.Context(), gen.ListEventsParams{Type: &[]string{"vm.*"}}, func(e gen.Event) error {
		if got = append(got, e.ID); e.ID == "11" {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !slices.Equal(got, []string{"1", "2", "10", "11"}) {
		t.Errorf("got %v (%v)", got, err)
	}
	const rest = " text/event-stream vm.*"
	if want := []string{rest, "7" + rest, "7" + rest, "10" + rest}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if !slices.ContainsFunc(notices, func(s string) bool { return strings.Contains(s, "after 7 are missing: they are gone") }) {
		t.Errorf("notices %q", notices)
	}
}

// A stream that never began is an error, and so is one that is none.
func TestFollowThatNeverBegins(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"refused":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"not ready": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"a page":    func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "application/json") },
		"not JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\n\n")
		},
	} {
		ts := httptest.NewServer(handler)
		api, err := New(ts.URL, Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = NewFeed(api).Follow(t.Context(), gen.ListEventsParams{}, func(gen.Event) error { return nil })
		if err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		ts.Close()
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
