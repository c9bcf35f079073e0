package branch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Request declares a playground by a branch. One of that name that follows the
// same branch gets the rest of it.
type Request struct {
	Name, Marquee      string
	Repository, Branch string // the empty branch is main
	Path               string
	Secret             string
	KnownHosts         string
	Depth              int // commits that are fetched at once; zero is 50
	Submodules         bool
	Variables          map[string]Variable
	Policy             compose.Policy
	KeepVolumes        bool
	Pull               model.Pull
	Expires            string
	Preview            string // the preview that it is of
	Owner              string // for previews; empty: the caller's
}

// Limits of a declaration.
const (
	maxURL       = 1000
	maxDepth     = 10_000
	defaultDepth = 50
)

var (
	scpPattern    = regexp.MustCompile(`^([A-Za-z0-9._-]+)@([A-Za-z0-9.-]+):([^/].*)$`)
	branchPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/+@#-]{0,199}$`)
	checkoutBad   = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

// Address is a repository's address as it is kept: https or ssh, without a
// password. What people copy from a server, git@HOST:PATH, is ssh.
func Address(text string) (string, error) {
	invalid := func(format string, args ...any) (string, error) {
		return "", fleet.Invalid("repository", "https://HOST/PATH or ssh://USER@HOST/PATH", "copy the address that the git server shows for cloning", format, args...)
	}
	if m := scpPattern.FindStringSubmatch(text); m != nil {
		text = "ssh://" + m[1] + "@" + m[2] + "/" + m[3]
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxURL || u.Host == "" || u.Path == "" || u.Path == "/" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\'' }):
		return invalid("is not an address")
	case u.Scheme == "http" && !credential.Loopback(u.Hostname()):
		return invalid("is http, by which anybody on the way could change what is fetched")
	case u.Scheme != "https" && u.Scheme != "ssh" && u.Scheme != "http":
		return invalid("has scheme %.20q", u.Scheme)
	case u.RawQuery != "" || u.Fragment != "":
		return invalid("must not have a query or a fragment")
	}
	if _, has := u.User.Password(); has || u.User != nil && u.Scheme != "ssh" {
		return invalid("must not carry a user or password; set a secret and name it")
	}
	return u.String(), nil
}

// checkoutName is the directory of a working copy: the repository's name and the
// branch, with dashes for slashes.
func checkoutName(repository, branch string) string {
	name := strings.TrimSuffix(path.Base(repository), ".git") + "-" + branch
	name = strings.Trim(checkoutBad.ReplaceAllString(name, "-"), "-.")
	return name[:min(len(name), 80)]
}

// source checks what a request says of a branch.
func (r *Request) source() (src records.Source, err error) {
	invalid := fleet.Invalid
	if r.Repository, err = Address(r.Repository); err != nil {
		return src, err
	}
	r.Branch = cmp.Or(r.Branch, "main")
	clean := path.Clean(r.Path)
	switch {
	case !branchPattern.MatchString(r.Branch) || strings.Contains(r.Branch, "..") || strings.HasSuffix(r.Branch, "/") || strings.HasSuffix(r.Branch, ".lock"):
		return src, invalid("branch", "the name of a branch", "", "%.80q is not one", r.Branch)
	case r.Path != "" && (len(r.Path) > 300 || clean != r.Path || path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsFunc(clean, func(c rune) bool { return c < ' ' || strings.ContainsRune(`*?[:\`, c) })):
		return src, invalid("path", "the path of the compose file in the repository", "", "%.120q is not one", r.Path)
	case r.Depth < 0 || r.Depth > maxDepth:
		return src, invalid("depth", fmt.Sprintf("1 to %d commits", maxDepth), "", "is %d", r.Depth)
	case r.Pull != "" && !slices.Contains(model.Pulls(), r.Pull):
		return src, invalid("pull", fmt.Sprint(model.Pulls()), "", "is %.20q", r.Pull)
	case len(r.Variables) > service.MaxVariables:
		return src, invalid("variables", fmt.Sprint(service.MaxVariables), "give fewer", "has %d of them", len(r.Variables))
	}
	for name, v := range r.Variables {
		if len(name) > 200 || len(v.Value) > 32<<10 || v.Value != "" && v.Secret != "" {
			return src, invalid("variables", "32 KiB each, a value or a secret", "", "%.80q is too long, or has both", name)
		}
	}
	if strings.HasPrefix(r.Repository, "ssh:") {
		if err := knownHosts(r.KnownHosts); err != nil {
			return src, err
		}
		if r.Secret == "" {
			return src, invalid("secret", "a secret of kind ssh_key", "set a deploy key: fuse playground secret set NAME --kind ssh_key", "is missing, and the repository is reached by ssh")
		}
	}
	if err := r.Policy.Validate(); err != nil {
		return src, fleet.Errorf(fleet.CodeInvalidArgument, "policy: %w", err).With(fleet.DetailScope, "policy")
	}
	return records.Source{
		Repository: r.Repository, Branch: r.Branch, Path: r.Path, Checkout: checkoutName(r.Repository, r.Branch), Secret: r.Secret,
		Names: slices.Sorted(maps.Keys(r.Variables)), KnownHosts: strings.TrimSpace(r.KnownHosts), Depth: cmp.Or(r.Depth, defaultDepth), Submodules: r.Submodules, Policy: r.Policy, Preview: r.Preview,
	}, nil
}

// knownHosts refuses what does not tell a server's key.
func knownHosts(text string) error {
	_, _, _, _, _, err := ssh.ParseKnownHosts([]byte(text))
	if err != nil || len(text) > 16<<10 {
		return fleet.Invalid("known_hosts", "lines as ssh-keyscan prints them", "compare ssh-keyscan HOST with what the server's owner publishes", "do not tell the key of the git server")
	}
	return nil
}

// Declare makes a playground that follows a branch, or changes how one does.
func (f *Follower) Declare(ctx context.Context, req Request) (service.Playground, error) {
	src, err := req.source()
	if err != nil {
		return service.Playground{}, err
	}
	if err := service.CheckName(req.Name); err != nil {
		return service.Playground{}, err
	}
	owner, by := service.Caller(ctx)
	if req.Owner != "" {
		owner = req.Owner
	}
	var out records.Playground
	changed := false
	_, err = f.Store.Update(ctx, func(tx *state.Tx) (err error) {
		if src.Secret != "" {
			if _, err := credential.Find(tx, owner, src.Secret, credential.KindToken, credential.KindSSHKey); err != nil {
				return err
			}
		}
		for _, v := range req.Variables {
			if v.Secret == "" {
				continue
			}
			if _, err := credential.Find(tx, owner, v.Secret); err != nil {
				return err
			}
		}
		var existing *records.Playground
		for _, p := range records.Playgrounds.All(tx) {
			if p.Owner == owner && p.Name == req.Name {
				existing = p
			}
		}
		if existing != nil {
			changed = true
			out, err = f.change(tx, existing, src, req)
			return err
		}
		m, err := f.marquee(tx, req.Marquee)
		if err != nil {
			return err
		}
		if err := service.Room(tx, owner, m); err != nil {
			return err
		}
		out, err = f.create(tx, m, owner, src, req, by)
		return err
	})
	if err != nil {
		return service.Playground{}, err
	}
	if changed {
		f.Check(out)
	} else {
		f.Begin(out.Marquee, out.ID)
	}
	return service.View(&out), nil
}

func (f *Follower) marquee(tx state.Reader, want string) (*records.Marquee, error) {
	if want == "" {
		switch n := records.Marquees.Len(tx); n {
		case 1:
			for id := range records.Marquees.All(tx) {
				want = id
			}
		case 0:
			return nil, fleet.Invalid("marquee", "an id or name", "register a Docker host first: fuse marquee add USER@HOST", "is missing, and there is none yet")
		default:
			return nil, fleet.Invalid("marquee", "an id or name", "say on which it is to be; fuse marquee ls lists them", "is missing, and there are %d", n)
		}
	}
	return service.FindMarquee(tx, want)
}

func (f *Follower) create(tx *state.Tx, m *records.Marquee, owner string, src records.Source, req Request, by fleet.Reason) (p records.Playground, err error) {
	id := model.PlaygroundID(strings.ToLower(uid.New()))
	project, err := model.NewProject(req.Name, id)
	if err != nil {
		return p, err
	}
	if src.VariablesSealed, err = SealVariables(f.Sealer, id, req.Variables); err != nil {
		return p, err
	}
	now := tx.Now()
	p = records.Playground{Name: req.Name, Owner: owner, Actor: by.Actor, CreatedAt: now, Source: src, Pull: req.Pull, Playground: model.Playground{
		ID: id, Marquee: m.ID, Project: project, Player: owner, KeepVolumes: req.KeepVolumes,
		Intent: model.IntentUp, IntentSince: now, State: model.StatePending, StateSince: now,
		Reason: "requested: " + string(model.ActionCreate), Owed: model.ActionCreate, Queued: model.Queued{At: now},
	}}
	if err := service.Ends(tx, &p, req.Expires); err != nil {
		return p, err
	}
	p.Revision = tx.Revision() + 1
	records.Tell(tx, &p, records.Note{
		Type: fleet.EventPlaygroundCreated, Reason: by,
		Payload: events.PlaygroundChange{Action: string(model.ActionCreate), To: string(p.State)},
	})
	return p, records.PutPlayground(tx, p)
}

// change gives an existing playground another way to follow the same branch.
func (f *Follower) change(tx *state.Tx, row *records.Playground, src records.Source, req Request) (p records.Playground, err error) {
	p = *row
	if p.Source.Repository != src.Repository || p.Source.Branch != src.Branch {
		return p, fleet.Errorf(fleet.CodeConflict, "there is a playground %s, and it is not made from that branch", p.Name).
			With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "take another name, or destroy it first")
	}
	old := p.Source
	if src.VariablesSealed, err = SealVariables(f.Sealer, p.ID, req.Variables); err != nil {
		return p, err
	}
	src.Checkout, src.Head, src.Problem, src.Why, src.ProblemAt, src.ChangedAt, src.Preview, src.Ended = old.Checkout, old.Head, old.Problem, old.Why, old.ProblemAt, old.ChangedAt, old.Preview, old.Ended
	p.Claimed = p.Claimed && req.Owner != "" // until its owner says so, and not a preview for him
	p.Source, p.Pull, p.KeepVolumes = src, req.Pull, p.KeepVolumes || req.KeepVolumes
	if req.Expires != "" {
		if err := service.Ends(tx, &p, req.Expires); err != nil {
			return p, err
		}
	}
	p.Revision = tx.Revision() + 1
	return p, records.PutPlayground(tx, p)
}

// Act asks something about a playground's branch: check has its server asked now,
// accept lets a clean checkout follow a branch that was rewritten.
func (f *Follower) Act(ctx context.Context, id, action string) (service.Playground, error) {
	var out records.Playground
	_, err := f.Store.Update(ctx, func(tx *state.Tx) error {
		p, err := service.Find(ctx, tx, id)
		if err != nil {
			return err
		}
		out = *p
		switch {
		case out.Source.IsZero():
			return fleet.Errorf(fleet.CodeConflict, "playground %s follows no branch", out.Name).With(fleet.DetailReason, "no_branch")
		case action == "check":
			out.Source.Refused = "" // it may be the marquee's policy that changed
		case action == "accept" && out.Source.Problem == records.ProblemForced:
			out.Source.Force = true
		case action == "accept":
			return fleet.Errorf(fleet.CodeConflict, "the branch of %s was not rewritten", out.Name).With(fleet.DetailReason, "state")
		default:
			return fleet.Invalid("action", "check or accept", "", "is %.20q", action)
		}
		out.Revision = tx.Revision() + 1
		return records.PutPlayground(tx, out)
	})
	if err != nil {
		return service.Playground{}, err
	}
	f.Check(out)
	return service.View(&out), nil
}
