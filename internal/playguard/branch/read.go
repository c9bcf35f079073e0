package branch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"

	"github.com/compose-spec/compose-go/v2/dotenv"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
)

// composeNames are tried in this order.
var composeNames = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// definition is what a commit says that a playground is to be.
type definition struct {
	commit  string
	version records.Version
}

// refusedError marks what is wrong with a branch itself: reading it again does not
// help.
type refusedError struct{ error }

func refuse(err error) error { return refusedError{err} }

func refusef(format string, args ...any) error {
	return refusedError{fleet.Errorf(fleet.CodeInvalidArgument, format, args...)}
}

// refusal is why a branch's definition is not one; nil: it is not known whether.
func refusal(err error) error {
	var r refusedError
	if errors.As(err, &r) {
		return r.error
	}
	return nil
}

// reading reads one commit of one checkout.
type reading struct {
	git    Git
	p      records.Playground
	commit string
	base   string // directory of the compose file
}

// read makes the definition out of the commit that is checked out: what lies in
// the working copy beside it counts for nothing.
func (f *Follower) read(ctx context.Context, p records.Playground) (d definition, err error) {
	var marquee records.Marquee
	var variables map[string]string
	if err := f.Store.View(func(tx *state.ReadTx) error {
		m, ok := records.Marquees.Get(tx, string(p.Marquee))
		if !ok {
			return records.ErrMoved
		}
		marquee = *m
		return nil
	}); err != nil {
		return d, err
	}
	r := &reading{git: f.Host(marquee), p: p, base: path.Dir(cmp.Or(p.Source.Path, "x"))}
	name, file, env, err := r.compose(ctx)
	d.commit = r.commit
	if err != nil {
		return d, err
	}
	if err := f.Store.View(func(tx *state.ReadTx) (err error) {
		variables, err = f.variables(tx, &p)
		return err
	}); err != nil {
		return d, err
	}
	if env != nil {
		found, err := dotenv.ParseWithLookup(bytes.NewReader(env), func(name string) (string, bool) {
			v, ok := variables[name]
			return v, ok
		})
		if err != nil { // its text may quote a value
			return d, refusef(".env of the branch cannot be read")
		}
		maps.Copy(found, variables)
		variables = found
	}
	for name, value := range map[string]string{"FUSE_BRANCH": p.Source.Branch, "FUSE_COMMIT": r.commit, "FUSE_NAME": p.Name} {
		if _, given := variables[name]; !given {
			variables[name] = value
		}
	}
	in := compose.Input{
		Name: name, File: file, Variables: variables, Installation: marquee.Known(f.Installation), Playground: p.ID, Project: p.Project,
		Policy:   service.Strictest(marquee.Policy, p.Source.Policy),
		Checkout: &compose.Checkout{Dir: "props/" + p.Source.Checkout, Base: r.base},
	}
	first, err := compose.Render(in)
	if err != nil {
		return d, refuse(err)
	}
	if in.Checkout.Trees, in.Files, err = r.beside(ctx, in.Checkout.Mounts(first.File), first.Needs); err != nil {
		return d, err
	}
	out, err := compose.Render(in)
	if err != nil {
		return d, refuse(err)
	}
	if p.Pull == model.PullDigest {
		if err := compose.Pinned(out.File); err != nil {
			return d, refuse(err)
		}
	}
	d.version = records.Version{Digest: out.Digest, Compose: out.File, Services: out.Services, Volumes: out.Volumes}
	for _, use := range out.Uses {
		d.version.Files = append(d.version.Files, records.File{Path: use, Mode: 0o644, Data: in.Files[use]})
	}
	return d, nil
}

// compose finds the compose file and a file .env beside it.
func (r *reading) compose(ctx context.Context) (name string, file, env []byte, err error) {
	names := composeNames
	if r.p.Source.Path != "" {
		names = []string{r.p.Source.Path}
	}
	dotenv := path.Join(r.base, ".env")
	commit, list, err := r.git.Tree(ctx, r.p.Project, r.p.Source.Checkout, append(append([]string{}, names...), dotenv)...)
	if err != nil {
		return "", nil, nil, err
	}
	r.commit = commit
	at := map[string]runner.Entry{}
	for _, e := range list {
		at[e.Path] = e
	}
	var want []runner.Entry
	for _, n := range names {
		if e, ok := at[n]; ok {
			want = append(want, e)
			break
		}
	}
	if len(want) == 0 {
		return "", nil, nil, refusef("the branch has no compose file %s", names[0])
	}
	if e, ok := at[dotenv]; ok {
		want = append(want, e)
	}
	for _, e := range want {
		if !e.File() || e.Size > compose.MaxFile {
			return "", nil, nil, refusef("%s of the branch is no ordinary file, or has more than %d bytes", e.Path, compose.MaxFile)
		}
	}
	texts, err := r.git.Blobs(ctx, r.p.Project, r.p.Source.Checkout, want)
	if err != nil {
		return "", nil, nil, err
	}
	if len(texts) > 1 {
		env = texts[1]
	}
	return want[0].Path, texts[0], env, nil
}

// beside reads what the compose file mounts and uses, as the commit has it.
func (r *reading) beside(ctx context.Context, mounts, needs []string) (trees map[string]string, files map[string][]byte, err error) {
	trees, files = map[string]string{}, map[string][]byte{}
	ask := map[string]bool{}
	for _, m := range mounts {
		ask[m] = true
	}
	rel := map[string]string{}
	for _, n := range needs {
		at := path.Join(r.base, n)
		rel[at] = n
		ask[at] = true
	}
	if ask["."] {
		trees["."] = r.commit
		delete(ask, ".")
	}
	var paths []string
	for p := range ask {
		paths = append(paths, p)
	}
	if len(paths) == 0 {
		return trees, files, nil
	}
	commit, list, err := r.git.Tree(ctx, r.p.Project, r.p.Source.Checkout, paths...)
	if err != nil {
		return nil, nil, err
	}
	if commit != r.commit {
		return nil, nil, fleet.Errorf(fleet.CodeUnavailable, "the checkout moved while it was read")
	}
	var want []runner.Entry
	total := 0
	for _, e := range list {
		if e.Mode == "120000" || e.Mode == "160000" {
			return nil, nil, refusef("%s of the branch is a link or a submodule, and cannot be used as a file", e.Path)
		}
		trees[e.Path] = e.ID
		if _, needed := rel[e.Path]; !needed {
			continue
		}
		if total += e.Size; !e.File() || e.Size > service.MaxFileBytes || total > service.MaxBytes {
			return nil, nil, refusef("%s of the branch is no ordinary file, or the files that it uses are too large; a file may have %d bytes, all %d", e.Path, service.MaxFileBytes, service.MaxBytes)
		}
		want = append(want, e)
	}
	if len(want) > service.MaxFiles {
		return nil, nil, refusef("the compose file uses more than %d files", service.MaxFiles)
	}
	texts, err := r.git.Blobs(ctx, r.p.Project, r.p.Source.Checkout, want)
	if err != nil {
		return nil, nil, fmt.Errorf("files of the branch: %w", err)
	}
	for i, e := range want {
		files[rel[e.Path]] = texts[i]
	}
	return trees, files, nil
}
