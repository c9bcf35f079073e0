package compose_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/playguard/compose"
)

const branchFile = `
services:
  web:
    image: nginx:1
    volumes:
      - ./html:/usr/share/nginx/html
      - ../conf/site.conf:/etc/nginx/conf.d/site.conf:rw,z
      - {type: bind, source: ./html, target: /again}
      - cache:/cache
  db: {image: "postgres:16"}
volumes: {cache: }
`

func fromBranch(t *testing.T, trees map[string]string) compose.Input {
	t.Helper()
	in := input(t, branchFile)
	in.Files = map[string][]byte{}
	in.Checkout = &compose.Checkout{Dir: "props/app", Base: "deploy", Trees: trees}
	return in
}

// What a file out of a branch mounts is the working copy's, and nobody writes
// there unless mounts may reach the host.
func TestCheckoutMounts(t *testing.T) {
	in := fromBranch(t, map[string]string{"deploy/html": "t1", "conf/site.conf": "b1"})
	r, err := compose.Render(in)
	if err != nil {
		t.Fatal(err)
	}
	text := string(r.File)
	for _, want := range []string{
		"./props/app/deploy/html:/usr/share/nginx/html:ro", "./props/app/conf/site.conf:/etc/nginx/conf.d/site.conf:z,ro", "read_only: true",
		"# fuse.mount props/app/conf/site.conf\n# fuse.mount props/app/deploy/html\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if len(r.Needs) != 0 || len(r.Warnings) != 3 {
		t.Errorf("needs %q, warnings %q", r.Needs, r.Warnings)
	}
	if diff := cmp.Diff([]string{"conf/site.conf", "deploy/html"}, in.Checkout.Mounts(r.File)); diff != "" {
		t.Error(diff)
	}
	in.Policy = compose.Policy{compose.DangerHostMount: compose.Allow}
	if r, err = compose.Render(in); err != nil || strings.Contains(string(r.File), "html:ro") || len(r.Warnings) != 0 {
		t.Errorf("%v %q\n%s", err, r.Warnings, r.File)
	}
}

// A service is made anew when what it mounts changes, and no other is.
func TestCheckoutDigests(t *testing.T) {
	one, err := compose.Render(fromBranch(t, map[string]string{"deploy/html": "t1", "conf/site.conf": "b1"}))
	if err != nil {
		t.Fatal(err)
	}
	two, err := compose.Render(fromBranch(t, map[string]string{"deploy/html": "t2", "conf/site.conf": "b1"}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range one.Services {
		if same := one.Services[i].Digest == two.Services[i].Digest; same != (one.Services[i].Name == "db") {
			t.Errorf("%s: same %v", one.Services[i].Name, same)
		}
	}
}

func TestCheckoutRefuses(t *testing.T) {
	for name, c := range map[string]struct{ mount, want string }{
		"out of the repository":   {"../../etc:/etc", "refuses"},
		"of the host":             {"/etc:/etc:ro", "refuses"},
		"git's own":               {"../.git:/git:ro", "git's own"},
		"what the branch has not": {"./node_modules:/n", "not in the branch"},
		"another playground":      {"../../../other--p2/props/app:/x:ro", "refuses"},
	} {
		in := fromBranch(t, map[string]string{"deploy/html": "t1"})
		in.File = []byte("services:\n  web:\n    image: x\n    volumes: ['" + c.mount + "']\n")
		if _, err := compose.Render(in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImages(t *testing.T) {
	got := compose.Images([]byte("services:\n  a: {image: 'x:1'}\n  b: {image: 'y@sha256:aa'}\n  c: {image: 'x:1'}\n"))
	if diff := cmp.Diff([]string{"x:1", "y@sha256:aa"}, got); diff != "" {
		t.Error(diff)
	}
}
