// Package template keeps what playgrounds are made from again and again: a branch
// and the variables that each of them fills in, and previews, which make one of
// each branch that matches.
package template

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Limits of templates.
const (
	MaxPerOwner  = 200
	MaxVariables = 100
	maxValue     = 32 << 10
	maxText      = 1000
)

// Type is what values a variable takes.
type Type string

// Types; the empty one is a string.
const (
	TypeString  Type = "string"
	TypeInteger Type = "integer"
	TypeBoolean Type = "boolean"
	TypeChoice  Type = "choice"
)

// Variable is one variable of a template.
type Variable struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Type        Type     `json:"type,omitempty"`
	Choices     []string `json:"choices,omitempty"`
	Pattern     string   `json:"pattern,omitempty"`
	Default     string   `json:"default,omitempty"`
	Required    bool     `json:"required,omitempty"`
	Sensitive   bool     `json:"sensitive,omitempty"` // given by the name of a secret
}

// Template is a template's document.
type Template struct {
	ID          string     `json:"id"`
	Owner       string     `json:"owner"`
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Marquee     string     `json:"marquee,omitempty"`
	Repository  string     `json:"repository"`
	Branch      string     `json:"branch,omitempty"`
	Path        string     `json:"path,omitempty"`
	Secret      string     `json:"secret,omitempty"`
	KnownHosts  string     `json:"known_hosts,omitempty"`
	Submodules  bool       `json:"submodules,omitempty"`
	Pull        model.Pull `json:"pull,omitempty"`
	Expires     string     `json:"expires,omitempty"`
	Variables   []Variable `json:"variables,omitempty"`
	UpdatedAt   time.Time  `json:"updated_at"`
}

// Templates is the collection.
var Templates = state.NewCollection[Template]("playground_templates")

var (
	namePattern     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)
	variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`)
)

// Check refuses what cannot be a template.
func (t Template) Check() error {
	if !namePattern.MatchString(t.Name) {
		return fleet.Invalid("name", "1 to 40 lower-case letters, digits and dashes", "give another name", "%.80q is not one", t.Name)
	}
	if len(t.Description) > maxText || len(t.Variables) > MaxVariables {
		return fleet.Invalid("variables", fmt.Sprint(MaxVariables), "", "has %d of them, or a description of more than %d bytes", len(t.Variables), maxText)
	}
	seen := map[string]bool{}
	for _, v := range t.Variables {
		if err := v.check(); err != nil {
			return err
		}
		if seen[v.Name] {
			return fleet.Invalid("variables", "each name once", "", "%s comes twice", v.Name)
		}
		seen[v.Name] = true
	}
	return nil
}

func (v Variable) check() error {
	invalid := func(format string, args ...any) error {
		return fleet.Invalid("variables", "", "correct the template", "%.80q "+format, append([]any{v.Name}, args...)...)
	}
	switch {
	case !variablePattern.MatchString(v.Name):
		return invalid("is no name of a variable")
	case len(v.Description) > maxText:
		return invalid("has a description of more than %d bytes", maxText)
	case v.Type != "" && v.Type != TypeString && v.Type != TypeInteger && v.Type != TypeBoolean && v.Type != TypeChoice:
		return invalid("is of type %.20q; there are string, integer, boolean and choice", v.Type)
	case (v.Type == TypeChoice) != (len(v.Choices) > 0):
		return invalid("has choices without being one, or is one without any")
	case v.Sensitive && v.Default != "":
		return invalid("is sensitive, and a default would be no secret")
	case v.Sensitive && v.Type != "" && v.Type != TypeString:
		return invalid("is sensitive, and such a one is a string")
	case v.Required && v.Default != "":
		return invalid("is required and has a default")
	}
	if v.Pattern != "" {
		if _, err := v.pattern(); err != nil || len(v.Pattern) > maxText {
			return invalid("has a pattern that is none")
		}
	}
	if v.Default != "" {
		return v.Takes(v.Default)
	}
	return nil
}

func (v Variable) pattern() (*regexp.Regexp, error) { return regexp.Compile(`^(?:` + v.Pattern + `)$`) }

// Takes refuses a value that the variable cannot have. What is sensitive is not
// quoted.
func (v Variable) Takes(value string) error {
	bad := ""
	switch v.Type {
	case TypeInteger:
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			bad = "an integer"
		}
	case TypeBoolean:
		if value != "true" && value != "false" {
			bad = "true or false"
		}
	case TypeChoice:
		if !slices.Contains(v.Choices, value) {
			bad = "one of " + strings.Join(v.Choices, ", ")
		}
	default:
		if p, err := v.pattern(); v.Pattern != "" && (err != nil || !p.MatchString(value)) {
			bad = "text that matches " + v.Pattern
		}
	}
	if len(value) > maxValue {
		bad = fmt.Sprintf("at most %d bytes", maxValue)
	}
	if bad == "" {
		return nil
	}
	return fleet.Invalid("variables", bad, "", "%s is not %s", v.Name, bad)
}

// remedy says how the variable is given.
func (v Variable) remedy() string {
	how := "--var " + v.Name + "=VALUE, or --secret-var " + v.Name + "=SECRET with the name of a secret"
	if v.Sensitive {
		how = "--secret-var " + v.Name + "=SECRET with the name of a secret, see fuse playground secret set"
	}
	if v.Description != "" {
		how += "; it is " + v.Description
	}
	return how
}

// Fill puts values and secrets into the variables of a template.
func (t Template) Fill(values, secrets map[string]string) (map[string]branch.Variable, error) {
	out := map[string]branch.Variable{}
	known := map[string]Variable{}
	for _, v := range t.Variables {
		known[v.Name] = v
	}
	for _, name := range append(slices.Sorted(maps.Keys(values)), slices.Sorted(maps.Keys(secrets))...) {
		if _, ok := known[name]; !ok {
			return nil, fleet.Invalid("variables", "those of the template", "", "%.80q is not one of template %s", name, t.Name)
		}
	}
	for _, v := range t.Variables {
		value, given := values[v.Name]
		secret, hidden := secrets[v.Name]
		switch {
		case given && hidden:
			return nil, fleet.Invalid("variables", "a value or a secret", "", "%s has both", v.Name)
		case given && v.Sensitive:
			return nil, fleet.Invalid("variables", "the name of a secret", "fuse playground secret set NAME, and then give its name", "%s is sensitive, and no value is taken for it", v.Name)
		case hidden:
			out[v.Name] = branch.Variable{Secret: secret}
		case given:
			if err := v.Takes(value); err != nil {
				return nil, err
			}
			out[v.Name] = branch.Variable{Value: value}
		case v.Required:
			return nil, fleet.Invalid("variables", "a value", v.remedy(), "%s is missing, and required", v.Name)
		case !v.Sensitive:
			out[v.Name] = branch.Variable{Value: v.Default}
		}
	}
	return out, nil
}

// Service keeps templates and previews.
type Service struct {
	Store  records.Store
	Branch *branch.Follower
	Kick   func(marquee model.MarqueeID)
	// Acting tells for which owners somebody can still act, with that role or more;
	// nil: for all.
	Acting func(tx state.Reader) func(owner string, least fleet.Role) bool

	seeker
}

// find returns a template of an owner by name.
func find(tx state.Reader, owner, name string) (*Template, error) {
	for _, t := range Templates.All(tx) {
		if t.Owner == owner && t.Name == name {
			return t, nil
		}
	}
	return nil, fleet.Errorf(fleet.CodeNotFound, "there is no template %.80q", name).With(fleet.DetailScope, "template")
}

// Set makes or replaces a template.
func (s *Service) Set(ctx context.Context, owner string, t Template) (Template, error) {
	if err := t.Check(); err != nil {
		return t, err
	}
	var err error
	if t.Repository, err = branch.Address(t.Repository); err != nil {
		return t, err
	}
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		t.ID, t.Owner, t.UpdatedAt = strings.ToLower(uid.New()), owner, tx.Now()
		n := 0
		for _, o := range Templates.All(tx) {
			if o.Owner != owner {
				continue
			}
			n++
			if o.Name == t.Name {
				t.ID = o.ID
				n--
			}
		}
		if n >= MaxPerOwner {
			return fleet.Errorf(fleet.CodeConflict, "%s has %d templates", owner, n).With(fleet.DetailLimit, fmt.Sprint(MaxPerOwner)).
				With(fleet.DetailRemedy, "remove one: fuse playground template rm NAME")
		}
		return Templates.Put(tx, t.ID, &t)
	})
	return t, err
}

// List lists the templates that sees lets through, by name.
func (s *Service) List(sees func(owner string) bool) (out []Template, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		for _, t := range Templates.All(tx) {
			if sees(t.Owner) {
				out = append(out, *t)
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b Template) int { return strings.Compare(a.Owner+"\x00"+a.Name, b.Owner+"\x00"+b.Name) })
	return out, err
}

// Remove forgets a template that no preview is made of.
func (s *Service) Remove(ctx context.Context, owner, name string) error {
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		t, err := find(tx, owner, name)
		if err != nil {
			return err
		}
		for _, p := range Previews.All(tx) {
			if p.Owner == owner && p.Template == name {
				return fleet.Errorf(fleet.CodeConflict, "preview %s is made of template %s", p.Name, name).
					With(fleet.DetailReason, "in_use").With(fleet.DetailRemedy, "forget the preview first")
			}
		}
		return Templates.Delete(tx, t.ID)
	})
	return err
}

// Launch is what a playground of a template is asked for with.
type Launch struct {
	Name, Branch, Marquee string
	Values, Secrets       map[string]string
	Expires               string
	Preview, Owner        string
}

// Launch makes a playground of a template.
func (s *Service) Launch(ctx context.Context, owner, name string, l Launch) (service.Playground, error) {
	var t Template
	if err := s.Store.View(func(tx *state.ReadTx) error {
		row, err := find(tx, owner, name)
		if err == nil {
			t = *row
		}
		return err
	}); err != nil {
		return service.Playground{}, err
	}
	return s.launch(ctx, t, l)
}

func (s *Service) launch(ctx context.Context, t Template, l Launch) (service.Playground, error) {
	variables, err := t.Fill(l.Values, l.Secrets)
	if err != nil {
		return service.Playground{}, err
	}
	return s.Branch.Declare(ctx, branch.Request{
		Name: l.Name, Marquee: first(l.Marquee, t.Marquee), Repository: t.Repository, Branch: first(l.Branch, t.Branch), Path: t.Path, Secret: t.Secret,
		KnownHosts: t.KnownHosts, Submodules: t.Submodules, Variables: variables, Pull: t.Pull, Expires: first(l.Expires, t.Expires),
		Preview: l.Preview, Owner: l.Owner,
	})
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
