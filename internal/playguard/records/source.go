package records

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/state"
)

// SealKindVariables is what a source fills in.
const SealKindVariables = "playground_variables"

// Problem is why a playground does not follow its branch.
type Problem string

// Problems. None of them takes anything down.
const (
	ProblemGone      Problem = "branch_gone"       // it is not at the server
	ProblemForced    Problem = "branch_rewritten"  // what is there does not follow what is here
	ProblemWork      Problem = "work"              // the checkout holds work of its own
	ProblemElsewhere Problem = "on_another_branch" // somebody switched the checkout
	ProblemRefused   Problem = "refused"           // the definition in it is not one
	ProblemAsk       Problem = "cannot_ask"        // the server does not answer, or does not let us in
	ProblemFetch     Problem = "cannot_fetch"
)

// Source is the branch of a git repository that a playground is made from; the
// zero Source is none. Secret names a secret of the owner.
type Source struct {
	Repository      string         `json:"repository,omitempty"`
	Branch          string         `json:"branch,omitempty"`
	Path            string         `json:"path,omitempty"` // of the compose file in it; empty: one of the usual names at its top
	Checkout        string         `json:"checkout,omitempty"`
	Secret          string         `json:"secret,omitempty"`
	KnownHosts      string         `json:"known_hosts,omitempty"` // of an SSH repository, in the form of ssh-keyscan
	Depth           int            `json:"depth,omitempty"`
	Submodules      bool           `json:"submodules,omitempty"`
	VariablesSealed []byte         `json:"variables_sealed,omitempty"`
	Names           []string       `json:"variable_names,omitempty"` // of those
	Lost            []string       `json:"lost,omitempty"`           // variables of which only a marker is left: nothing is made without them
	Policy          compose.Policy `json:"policy,omitempty"`         // stricter than the marquee's
	Preview         string         `json:"preview,omitempty"`
	Ended           bool           `json:"ended,omitempty"` // its preview set its end, for its branch was gone

	Head      string    `json:"head,omitempty"`    // commit of the checkout
	Commit    string    `json:"commit,omitempty"`  // that the definition was made from
	Refused   string    `json:"refused,omitempty"` // commit whose definition was refused
	Remote    string    `json:"remote,omitempty"`  // where the branch was when a problem with it was noted
	Force     bool      `json:"force,omitempty"`   // a person lets the checkout follow a rewritten branch
	Problem   Problem   `json:"problem,omitempty"`
	Why       string    `json:"why,omitempty"`
	ProblemAt time.Time `json:"problem_at,omitzero"`
	ChangedAt time.Time `json:"changed_at,omitzero"` // when it last went forward
}

// IsZero reports whether there is none.
func (s Source) IsZero() bool { return s.Repository == "" }

// Place tells a repository from others by whichever address it is named: server and
// path, without the way there. Two ports of one server are one place.
func Place(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	host := strings.ToLower(u.Hostname())
	for _, way := range []string{"ssh.", "altssh."} { // names by which SSH is let through firewalls
		host = strings.TrimPrefix(host, way)
	}
	return host + "/" + strings.TrimSuffix(strings.Trim(strings.ToLower(u.Path), "/"), ".git")
}

// Marked is what the owner marker says of a source; nil if there is none.
func (s Source) Marked() *model.MarkerBranch {
	if s.IsZero() {
		return nil
	}
	return &model.MarkerBranch{
		Repository: s.Repository, Branch: s.Branch, Path: s.Path, Checkout: s.Checkout, Secret: s.Secret, Depth: s.Depth, Submodules: s.Submodules, Commit: s.Commit,
		Variables: some(s.Names),
	}
}

// maxNames is the room that a marker has for names of variables, and moreRoom what
// of it is kept for how many more there are.
const (
	maxNames = 400
	moreRoom = 30
)

// some are the first of them, and how many there are besides: it is told of what
// was lost.
func some(names []string) []string {
	fit, took := 0, 0
	for _, name := range names {
		if took += len(name) + 8; took <= maxNames-moreRoom {
			fit++
		}
	}
	if took <= maxNames {
		return names
	}
	return append(slices.Clone(names[:fit]), fmt.Sprintf("(and %d more)", len(names)-fit))
}

// SourceOf brings back what a marker says.
func SourceOf(m *model.MarkerBranch) Source {
	if m == nil {
		return Source{}
	}
	return Source{
		Repository: m.Repository, Branch: m.Branch, Path: m.Path, Checkout: m.Checkout, Secret: m.Secret, Depth: m.Depth, Submodules: m.Submodules, Head: m.Commit, Commit: m.Commit,
		Names: m.Variables, Lost: m.Variables,
	}
}

// Made is a version that is about to be one of a playground's.
type Made struct {
	Version
	key   string
	entry Entry
}

// Make seals a version for a playground.
func Make(s Sealer, p *Playground, v Version) (Made, error) {
	key, entry, err := SealVersion(s, p.ID, v)
	return Made{v, key, entry}, err
}

// Want writes that a playground is to be what was made. The caller puts its record.
func (m Made) Want(tx *state.Tx, p *Playground) error {
	p.Desired, p.Services, p.Volumes, p.Registries = m.Digest, m.Services, m.Volumes, compose.Registries(m.Compose)
	if err := Route(tx, p, m.Compose); err != nil {
		return err
	}
	return Entries.Put(tx, m.key, &m.entry)
}

// Size is how many bytes it takes.
func (m Made) Size() int { return len(m.entry.VersionSealed) }
