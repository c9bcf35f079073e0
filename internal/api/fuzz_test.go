package api

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
)

// Whatever a body holds, it is decoded or refused with a code, what is decoded
// can be encoded, and a warning is fit for a header.
func FuzzBodies(f *testing.F) {
	for _, s := range []string{
		`{"task_id":"a","spec":{"cpus":1,"labels":{"a":"b"}},"x":1}`, `{"cmd":["a"],"timeout_ms":1}`, `{"id":"h","url":"u","capacity":{"cpus":1,"y":{}}}`,
		`{"expose":[{"port":1,"q":[]}],"healthcheck":{"http":{"port":1,"z":1}}}`, `{`, `[]`, `{"a":1}{`, "{\"\r\n\":1}", `{"spec":{"max_runtime_seconds":9223372036854775807}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, into := range []any{&gen.CreateEnvironment{}, &gen.ExecRequest{}, &gen.RegisterHost{}, &gen.Login{}} {
			unknown, err := web.DecodeJSON(body, into)
			if err != nil {
				if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
					t.Fatalf("code %q", fleet.CodeOf(err))
				}
				continue
			}
			if len(unknown) > web.MaxNamedFields+1 || strings.ContainsFunc(strings.Join(unknown, " "), func(r rune) bool { return r < ' ' || r > '~' || r == '"' }) {
				t.Fatalf("unknown fields %q", unknown)
			}
			if _, err := json.Marshal(into); err != nil {
				t.Fatal(err)
			}
			if c, ok := into.(*gen.CreateEnvironment); ok {
				spec, boot, err := toCreate(c)
				if err == nil && (spec.CPUs != int(c.Spec.CPUs) || len(boot.Files) != len(c.Files)) {
					t.Fatalf("%+v became %+v", c, spec)
				}
			}
		}
	})
}

// A cursor that is accepted names an id, and encodes to one that does too.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "e30", web.EncodeCursor("fuse-a"), web.EncodeCursor("ü\x00\xff"), "====", "AAAA"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := web.DecodeCursor(text)
		if err != nil {
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
				t.Fatal(err)
			}
			return
		}
		if text == "" {
			return
		}
		if again, err := web.DecodeCursor(web.EncodeCursor(id)); (err != nil || again != id) && len(web.EncodeCursor(id)) <= web.MaxCursor {
			t.Fatalf("%q became %q: %v", id, again, err)
		}
	})
}

// A path matches at most the routes of its own shape, and an id comes out as
// it went in.
func FuzzPaths(f *testing.F) {
	for _, s := range []string{"fuse-a", "a/b", "..", "%2f", "", "ü", "a%", "\x00"} {
		f.Add(s)
	}
	rt := web.NewRouter((&Server{}).routes())
	f.Fuzz(func(t *testing.T, id string) {
		u, err := url.Parse("http://h/v1/environments/" + url.PathEscape(id) + "/logs")
		if err != nil {
			t.Fatal(err)
		}
		p, param := rt.Match(u)
		if id == "" {
			if p != nil {
				t.Fatalf("no id matches %s", p.Pattern)
			}
			return
		}
		if p == nil || p.Pattern != "/v1/environments/{id}/logs" || param != id {
			t.Fatalf("%q: %v %q", id, p, param)
		}
		if raw, err := url.ParseRequestURI("/" + id); err == nil {
			if p, _ := rt.Match(raw); p != nil && !slices.Contains([]int{1, 2, 3, 4, 5, 6}, strings.Count(p.Pattern, "/")) {
				t.Fatalf("%q matches %s", id, p.Pattern)
			}
		}
	})
}
