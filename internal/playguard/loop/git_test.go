package loop_test

import (
	"context"
	"crypto/sha1" // as git names things
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// repositories are git servers: branches and what their commits hold.
type repositories struct {
	mu    sync.Mutex
	heads map[string]string // by url and branch
	files map[string][]byte // compose file by commit
}

func newRepositories() *repositories {
	return &repositories{heads: map[string]string{}, files: map[string][]byte{}}
}

// push puts a compose file on top of a branch.
func (g *repositories) push(url, branch string, file []byte) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	sum := sha1.Sum(append([]byte(url+branch+g.heads[url+" "+branch]), file...)) // a name
	commit := hex.EncodeToString(sum[:])
	g.heads[url+" "+branch], g.files[commit] = commit, file
	return commit
}

func (g *repositories) head(url, branch string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heads[url+" "+branch]
}

// forward is what the runner does about a branch.
func (g *repositories) forward(p *project, given map[string][]byte) (int, string) {
	p.marker = given[".fuse/owner.json"]
	head := g.head(string(given["branch/url"]), string(given["branch/ref"]))
	switch {
	case p.work != nil && p.work.dirty:
		return runner.StatusWork, "runner: the checkout holds work"
	case head == "":
		return runner.StatusGone, "runner: the branch is gone"
	case p.work == nil:
		p.work = &checkout{name: string(given["branch/name"])}
	}
	p.work.commit = head
	return 0, ""
}

// Remote, Tree and Blobs make a simulated host one that knows of repositories.
func (s *sim) Remote(ctx context.Context, payload []byte) (string, error) {
	if err := s.reach(ctx, s.look); err != nil {
		return "", err
	}
	given := unpack(payload)
	s.mu.Lock()
	dead := s.deadGit[string(given["branch/url"])]
	s.mu.Unlock()
	if dead {
		ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
		defer cancel()
		<-ctx.Done()
		return "", &sshx.Error{Ending: observe.EndedDeadline, Op: "run", Err: ctx.Err()}
	}
	return s.git.head(string(given["branch/url"]), string(given["branch/ref"])), nil
}

func (s *sim) Tree(ctx context.Context, name model.Project, _ string, paths ...string) (string, []runner.Entry, error) {
	if err := s.reach(ctx, s.look); err != nil {
		return "", nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	p := s.projects[name.String()]
	if p == nil || p.work == nil {
		return "", nil, errors.New("there is no checkout")
	}
	if s.closed[p.id] {
		return "", nil, errors.New("the checkout cannot be read")
	}
	if !slices.Contains(paths, "compose.yaml") {
		return p.work.commit, nil, nil
	}
	return p.work.commit, []runner.Entry{{Path: "compose.yaml", Mode: "100644", ID: p.work.commit, Size: 200}}, nil
}

func (s *sim) Blobs(ctx context.Context, _ model.Project, _ string, files []runner.Entry) (out [][]byte, err error) {
	if err := s.reach(ctx, s.look); err != nil {
		return nil, err
	}
	s.git.mu.Lock()
	defer s.git.mu.Unlock()
	for _, f := range files {
		out = append(out, s.git.files[f.ID])
	}
	return out, nil
}

// composeOf is a compose file of two services, of which web is of that version.
func composeOf(version string) []byte {
	return fmt.Appendf(nil, "services:\n  web: {image: 'shop:%s'}\n  db: {image: 'db:1'}\nvolumes: {data: {}}\n", version)
}

// rendered reads the services of a file that Render made.
func rendered(file []byte) (out []model.Service) {
	var doc struct {
		Services map[string]struct {
			Labels map[string]string `yaml:"labels"`
		} `yaml:"services"`
	}
	if err := yaml.Unmarshal(file, &doc); err != nil {
		panic(err)
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Services)) {
		out = append(out, model.Service{Name: name, Digest: doc.Services[name].Labels[model.LabelDigest]})
	}
	return out
}

// parts are what a look shows of a checkout.
func (c *checkout) parts(project string) []observe.Part {
	if c == nil {
		return []observe.Part{{Name: "checkouts:" + project}}
	}
	changed := 0
	if c.dirty {
		changed = 1
	}
	return []observe.Part{
		{Name: "checkouts:" + project, Out: []byte(c.name + "\n")},
		{Name: "git:" + project + ":" + c.name, Out: fmt.Appendf(nil, "repository=yes\nhead=yes\nbusy=\nchanged=%d\nunpushed=0\nstashes=0\n", changed)},
	}
}

// failing reports whether a rendered file is of a version whose program fails.
func failing(file []byte) bool { return strings.Contains(string(file), "shop:bad") }

// Branches lists what a repository has.
func (s *sim) Branches(ctx context.Context, payload []byte) (out []string, err error) {
	if err := s.reach(ctx, s.look); err != nil {
		return nil, err
	}
	s.git.mu.Lock()
	defer s.git.mu.Unlock()
	url := string(unpack(payload)["branch/url"])
	for at := range s.git.heads {
		if name, ours := strings.CutPrefix(at, url+" "); ours {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}
