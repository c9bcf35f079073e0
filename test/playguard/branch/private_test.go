package branch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
)

// runs waits until a playground is at work with what was asked for last, and
// returns its containers.
func (s *site) runs(name string) string {
	s.t.Helper()
	testkit.Eventually(s.t, patience, name+" runs", func() bool {
		g := s.get(name)
		return g.State == "running" && g.Desired == g.Applied && g.Step == ""
	})
	out, err := s.docker.Docker("ps", "-q", "--no-trunc", "--filter", "label=com.docker.compose.project="+s.get(name).Project)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// stays is an up that has to fail and leave what runs as it is.
func (s *site) stays(dir, running, why string) {
	s.t.Helper()
	before := s.get("shop").LastRollout.At
	out, err := s.run("", "playground", "up", dir, "--name", "shop", "--pull", "missing", "--yes")
	g := s.get("shop")
	testkit.Eventually(s.t, patience, "the rollout fails", func() bool {
		g = s.get("shop")
		return g.LastRollout.At.After(before) && g.State == "running"
	})
	text := g.LastRollout.Failure.Category + ": " + g.LastRollout.Failure.Text
	if g.LastRollout.Result != "failed" || !strings.Contains(strings.ToLower(text), why) {
		s.t.Errorf("%+v, want %q\n%s%v", g.LastRollout, why, out, err)
	}
	if now := s.runs("shop"); now != running {
		s.t.Errorf("a pull that failed left %q, and %q ran", now, running)
	}
}

func (s *site) app(image string) string {
	dir := "app-" + strings.NewReplacer("/", "-", ":", "-").Replace(image)
	s.write(dir+"/compose.yaml", "services:\n  web:\n    image: "+image+"\n    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 100000 & wait']\n    network_mode: none\n")
	return filepath.Join(s.dir, dir)
}

// box is an image with a shell, and something that tells it from others.
func box(t *testing.T, mark string, more ...v1.Layer) v1.Image {
	t.Helper()
	raw, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	layers := append([]v1.Layer{ocitest.Layer(t, ocitest.Program("bin/busybox", raw), ocitest.Program("bin/sh", raw), ocitest.Program("bin/sleep", raw), ocitest.Text("mark", mark))}, more...)
	return ocitest.Image(t, "amd64", v1.Config{}, layers...)
}

// Images of a registry that wants a password, on a host with little room: a login
// that is missing, revoked or replaced, and a disk that is full, never touch what
// runs, and heal.
func TestPrivateRegistry(t *testing.T) {
	s := newSiteOn(t, dockertest.StartSmall(t, 96<<20))
	const first, second = "tok-41c8d0aa-first", "tok-9b02e7f3-second"
	ctx, stop := context.WithCancel(t.Context())
	y := &spy{secrets: []string{first, second}, found: map[string]bool{}}
	var watching sync.WaitGroup
	watching.Go(func() { y.watch(ctx) })
	defer func() { stop(); watching.Wait() }()

	r := ocitest.New(t)
	s.docker.Reach(t, r.Host)
	one, two, three := r.Push(t, "shop:1", box(t, "1")), r.Push(t, "shop:2", box(t, "2")), r.Push(t, "shop:3", box(t, "3"))
	big := r.Push(t, "shop:big", box(t, "big", ocitest.Zeros(t, "zeros", 200<<20)))
	r.Set(ocitest.Faults{Login: "me:" + first})

	s.fuse(first+"\n", "marquee", "registry", "login", r.Host, "--username", "me")
	s.fuse("", "playground", "up", s.app(one), "--name", "shop", "--pull", "missing", "--yes")
	running := s.runs("shop")
	config := filepath.Join(s.root, "playgrounds", s.get("shop").Project, "docker-config", "config.json")
	was, err := os.ReadFile(config)
	if info, serr := os.Stat(config); err != nil || serr != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the login on the host: %v %v", err, serr)
	}

	// The token is revoked, and then replaced.
	r.Set(ocitest.Faults{Login: "me:" + second})
	s.stays(s.app(two), running, "")
	s.fuse(second+"\n", "marquee", "registry", "login", r.Host, "--username", "me")
	testkit.Eventually(t, patience, "the login on the host is replaced", func() bool {
		s.run("", "marquee", "check", "box")
		now, err := os.ReadFile(config)
		return err == nil && string(now) != string(was)
	})
	s.fuse("", "playground", "up", s.app(two), "--name", "shop", "--pull", "missing", "--yes")
	next := s.runs("shop")
	if next == running {
		t.Error("the version that could be pulled by now does not run")
	}

	// The disk is full in the middle of a pull.
	s.stays(s.app(big), next, "disk_full")
	s.fuse("", "playground", "up", s.app(three), "--name", "shop", "--pull", "missing", "--yes")
	if last := s.runs("shop"); last == next {
		t.Error("the disk has room again, and the next version does not run")
	}

	stop()
	watching.Wait()
	for f := range y.found {
		t.Errorf("a token was seen in %s", f)
	}
	s.nowhere(first, second)
	s.fuse("", "playground", "destroy", "shop", "--yes")
	testkit.Eventually(t, patience, "the login goes with the playground", func() bool {
		_, err := os.Stat(config)
		return os.IsNotExist(err)
	})
}

// A repository behind SSH, with a deploy key, becomes a preview for each branch; a
// push that is told by its https address is heard.
func TestPreviewOverSSH(t *testing.T) {
	s := newSite(t)
	repo := s.git.Repo("shop", map[string]string{"compose.yaml": compose(""), "site/index.html": "main"})
	repo.Commit("feature/a", map[string]string{"site/index.html": "a"})
	server := sshdtest.Start(t, sshdtest.Options{})
	host, port, _ := strings.Cut(server.Address, ":")
	address := "ssh://" + server.User + "@" + server.Address + repo.Bare
	s.write("deploy_key", string(server.Key))
	s.write("known", fmt.Sprintf("[%s]:%s %s\n", host, port, server.HostKey))
	known, err := os.ReadFile(filepath.Join(s.dir, "known"))
	if err != nil {
		t.Fatal(err)
	}
	s.fuse("", "playground", "secret", "set", "key", "--kind", "ssh_key", "--file", filepath.Join(s.dir, "deploy_key"))
	s.write("template.yaml", "name: shop\nrepository: "+address+"\nsecret: key\nknown_hosts: '"+strings.TrimSpace(string(known))+"'\nvariables:\n- {name: COLOUR, default: red}\n")
	s.fuse("", "playground", "template", "set", filepath.Join(s.dir, "template.yaml"))
	s.fuse("", "playground", "preview", "set", "pr", "-t", "shop", "-b", "feature/*")
	made := func(branch string) (name string) {
		var list gen.PlaygroundList
		if err := json.Unmarshal([]byte(s.fuse("", "playground", "ls", "--json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, g := range list.Playgrounds {
			if g.Branch.Preview == "pr" && g.Branch.Branch == branch {
				name = g.Name
			}
		}
		return name
	}
	testkit.Eventually(t, patience, "the branch has a playground", func() bool { return made("feature/a") != "" })
	s.shows(made("feature/a"), "a")

	var hook gen.GitHook
	if err := json.Unmarshal([]byte(s.fuse("", "playground", "git-hook", "add", "https://"+host+repo.Bare, "--json")), &hook); err != nil {
		t.Fatal(err)
	}
	repo.Commit("feature/b", map[string]string{"site/index.html": "b"})
	if code, text := s.push(hook, "feature/b", repo.Head("feature/b"), "d1", signer(hook.Secret)); code != http.StatusAccepted {
		t.Errorf("%d %s", code, text)
	}
	// Long before the preview's turn would come, which is every five minutes.
	testkit.Eventually(t, patience, "the new branch has a playground", func() bool { return made("feature/b") != "" })
	if left, err := filepath.Glob(filepath.Join(s.root, "playgrounds", ".new-*")); err != nil || len(left) > 1 { // one may be at work
		t.Errorf("left: %v %v", left, err)
	}
}
