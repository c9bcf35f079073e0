package compose_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
)

func input(t testing.TB, file string) compose.Input {
	t.Helper()
	project, err := model.NewProject("shop", "p1")
	if err != nil {
		t.Fatal(err)
	}
	return compose.Input{File: []byte(file), Installation: "inst1", Playground: "p1", Project: project}
}

const shop = `
name: ignored
services:
  web:
    image: nginx:${TAG:-1.27}
    ports: ["8080:80"]
    depends_on: [db]
    labels: ["team=a", "empty"]
    volumes:
      - ./html:/usr/share/nginx/html:ro
      - cache:/cache
  db:
    image: postgres:16
    env_file: db.env
    environment: {POSTGRES_PASSWORD: "${PW}"}
    labels: {team: b}
volumes:
  cache:
networks:
  back: {driver: bridge}
`

func TestRender(t *testing.T) {
	in := input(t, shop)
	in.Variables = map[string]string{"PW": "a$$b #c"}
	r, err := compose.Render(in)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Name     any
		Services map[string]struct {
			Image       string
			Labels      map[string]string
			Environment map[string]string
		}
		Volumes, Networks map[string]struct{ Labels map[string]string }
	}
	if err := yaml.Unmarshal(r.File, &out); err != nil {
		t.Fatalf("%v\n%s", err, r.File)
	}
	if out.Name != nil || out.Services["web"].Image != "nginx:1.27" || out.Services["db"].Environment["POSTGRES_PASSWORD"] != "a$$$$b #c" {
		t.Errorf("%s", r.File)
	}
	for name, s := range out.Services {
		if s.Labels[model.LabelInstallation] != "inst1" || s.Labels[model.LabelPlayground] != "p1" || s.Labels["team"] == "" {
			t.Errorf("labels of %s: %v", name, s.Labels)
		}
		i := slices.IndexFunc(r.Services, func(k model.Service) bool { return k.Name == name })
		if i < 0 || r.Services[i].Digest != s.Labels[model.LabelDigest] || len(r.Services[i].Digest) != 64 {
			t.Errorf("digest of %s: %+v", name, r.Services)
		}
	}
	for _, labels := range []map[string]string{out.Volumes["cache"].Labels, out.Networks["back"].Labels, out.Networks["default"].Labels} {
		if labels[model.LabelInstallation] != "inst1" || labels[model.LabelPlayground] != "p1" {
			t.Errorf("labels %v in\n%s", labels, r.File)
		}
	}
	if !slices.Equal(r.Volumes, []string{"shop--p1_cache"}) || !slices.Equal(r.Needs, []string{"db.env", "html"}) || len(r.Warnings) != 0 {
		t.Errorf("%+v", r)
	}
	again, err := compose.Render(in)
	if err != nil || again.Digest != r.Digest || string(again.File) != string(r.File) {
		t.Errorf("the same input gives another file: %v", err)
	}
	// A change of one service is no change of the other.
	in.File = []byte(strings.Replace(shop, "postgres:16", "postgres:17", 1))
	other, err := compose.Render(in)
	if err != nil || other.Digest == r.Digest || other.Services[1] != r.Services[1] || other.Services[0] == r.Services[0] {
		t.Errorf("%+v\n%+v, %v", r.Services, other.Services, err)
	}
}

// What is wrong with a file is said with its place.
func TestErrors(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"not yaml":       {"services:\n  web: [", ":2:"},
		"no document":    {"", "want"},
		"two documents":  {"services: {}\n---\nservices: {}\n", "one YAML document"},
		"a list":         {"- a\n- b\n", "mapping"},
		"no services":    {"services: {}\n", "no services"},
		"unknown key":    {"services:\n  web:\n    image: a\n    imagee: b\n", "compose.yml:4:5: services.web.imagee is not a key that Compose knows there"},
		"wrong type":     {"services:\n  web:\n    image: a\n    ports: 80\n", "compose.yml:4:5: "},
		"no image":       {"services:\n  web:\n    command: a\n", "compose.yml:2:3: service web has no image"},
		"build":          {"services:\n  web:\n    build: .\n", "compose.yml:3:5: "},
		"container name": {"services:\n  web:\n    image: a\n    container_name: b\n", "compose.yml:4:5: "},
		"extends":        {"services:\n  web:\n    image: a\n    extends: {file: x, service: y}\n", "compose.yml:4:5: "},
		"our labels":     {"services:\n  web:\n    image: a\n    labels: {fuse.playguard.installation: x}\n", "not for people"},
		"named volume":   {"services:\n  web:\n    image: a\nvolumes:\n  data:\n    name: shared\n", "compose.yml:6:5: "},
		"gap":            {"services:\n  web:\n    image: a:${TAG}\n    command: $B\n", "compose.yml:4:14: variables without a value: B, TAG"},
		"required":       {"services:\n  web:\n    image: a:${TAG:?say which}\n", "say which"},
		"privileged":     {"services:\n  web:\n    image: a\n    privileged: true\n", "compose.yml:4:5: service web is privileged"},
		"capability":     {"services:\n  web:\n    image: a\n    cap_add: [SYS_ADMIN]\n", "sets cap_add"},
		"host network":   {"services:\n  web:\n    image: a\n    network_mode: host\n", "uses network_mode host"},
		"socket":         {"services:\n  web:\n    image: a\n    volumes: ['/var/run/docker.sock:/s']\n", "compose.yml:4:15: service web mounts /var/run/docker.sock of the host"},
		"up and out":     {"services:\n  web:\n    image: a\n    volumes: ['./a/../../b:/s']\n", "mounts ./a/../../b"},
		"home":           {"services:\n  web:\n    image: a\n    volumes: ['~/.ssh:/s']\n", "mounts ~/.ssh"},
		"bind by volume": {"services:\n  web:\n    image: a\nvolumes:\n  v:\n    driver_opts: {type: none, o: bind, device: /etc}\n", "mounts /etc of the host"},
		"external":       {"services:\n  web:\n    image: a\nvolumes:\n  v:\n    external: true\n", "belongs to somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := compose.Render(input(t, test.file))
			if err == nil || fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestPolicy(t *testing.T) {
	in := input(t, "services:\n  web:\n    image: a\n    privileged: true\n    network_mode: host\n    volumes: ['/srv:/srv']\n")
	in.Policy = compose.Policy{compose.DangerPrivileged: compose.Warn, compose.DangerHostSpaces: compose.Allow, compose.DangerHostMount: compose.Warn}
	r, err := compose.Render(in)
	if err != nil || len(r.Warnings) != 2 {
		t.Errorf("%q, %v", r.Warnings, err)
	}
	if err := in.Policy.Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []compose.Policy{{"rubbish": compose.Warn}, {compose.DangerPrivileged: "perhaps"}} {
		if bad.Validate() == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

// Aliases that double with each line must not fill the memory.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("x-0: &x0 [lol, lol]\n")
	for i := range 40 {
		fmt.Fprintf(&b, "x-%d: &x%d [*x%d, *x%d]\n", i+1, i+1, i, i)
	}
	b.WriteString("services: {web: {image: a}}\n")
	if _, err := compose.Render(input(t, b.String())); err == nil {
		t.Error("taken")
	}
}

// What is rendered is what Compose v1 takes, as hosts still have it.
func TestComposeTakesIt(t *testing.T) {
	in := input(t, strings.Replace(shop, "env_file: db.env", "restart: always", 1))
	in.Variables = map[string]string{"PW": "x"}
	r, err := compose.Render(in)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "compose.yml")
	if err := os.WriteFile(file, r.File, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(context.Background(), "docker-compose", "-p", in.Project.String(), "-f", file, "config", "-q").CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s\n%s", err, out, r.File)
	}
}

// Whatever a file holds, it is refused with a code or rendered the same twice.
func FuzzRender(f *testing.F) {
	for _, s := range []string{shop, "services: {web: {image: a}}", "a: &a [*a]", "services:\n  web: null\n", "? [a]\n: b", "services: {web: {image: '${A:-${B}}'}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, file string) {
		in := input(t, file)
		r, err := compose.Render(in)
		if err != nil {
			if code := fleet.CodeOf(err); code != fleet.CodeInvalidArgument && code != fleet.CodePayloadTooLarge {
				t.Errorf("%q: %v", code, err)
			}
			return
		}
		if again, err := compose.Render(in); err != nil || again.Digest != r.Digest {
			t.Errorf("another result: %v", err)
		}
	})
}

// A service's files are part of its definition, and no file that Compose asks
// for may be missing.
func TestFilesBeside(t *testing.T) {
	file := "services:\n  web:\n    image: a\n    env_file: web.env\n    volumes: ['./conf:/etc/conf', './data:/data']\n  db:\n    image: b\n"
	digests := func(files map[string][]byte) (out map[string]string, r compose.Rendered) {
		t.Helper()
		project, err := model.NewProject("shop", "pg1")
		if err != nil {
			t.Fatal(err)
		}
		r, err = compose.Render(compose.Input{File: []byte(file), Files: files, Installation: "i", Playground: "pg1", Project: project})
		if err != nil {
			t.Fatal(err)
		}
		out = map[string]string{}
		for _, s := range r.Services {
			out[s.Name] = s.Digest
		}
		return out, r
	}
	given := map[string][]byte{"web.env": []byte("A=1"), "conf/a": []byte("one"), "README": nil}
	one, r := digests(given)
	if want := []string{"conf/a", "web.env"}; !slices.Equal(r.Uses, want) {
		t.Errorf("uses %v, want %v", r.Uses, want)
	}
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "./data") {
		t.Errorf("warnings %q", r.Warnings)
	}
	given["conf/a"] = []byte("two")
	two, r2 := digests(given)
	if one["web"] == two["web"] || one["db"] != two["db"] || r.Digest == r2.Digest {
		t.Errorf("after a change of a file of web: %v, %v", one, two)
	}
	delete(given, "web.env")
	project, _ := model.NewProject("shop", "pg1")
	_, err := compose.Render(compose.Input{File: []byte(file), Files: given, Installation: "i", Playground: "pg1", Project: project})
	if err == nil || !strings.Contains(err.Error(), "compose.yml:4:") {
		t.Errorf("a missing env_file: %v", err)
	}
}
