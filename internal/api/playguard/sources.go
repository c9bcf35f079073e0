package playguard

import (
	"context"
	"net/http"
	"strings"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/githook"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/template"
	"github.com/fusevm/fuse/internal/uid"
)

// Sources are the services of what playgrounds are made from.
type Sources struct {
	Playguard *service.Service
	Branches  *branch.Follower
	Secrets   *credential.Service
	Hooks     *githook.Service
	Templates *template.Service
}

type sources struct {
	Sources
	keeper web.Keeper
}

// pushLimit bounds what a git server says in one message.
const pushLimit = 5 << 20

// SourceRoutes are the routes of branches, secrets, git hooks, templates and
// previews.
func SourceRoutes(s Sources, keeper web.Keeper) []web.Route {
	r := sources{s, keeper}
	return []web.Route{
		{Method: http.MethodPost, Pattern: "/v1/playground-branches", BodyLimit: web.LargeLimit, Slow: true, Handle: r.follow},
		{Method: http.MethodPost, Pattern: "/v1/playgrounds/{id}/branch", BodyLimit: web.BodyLimit, Handle: r.act},
		{Method: http.MethodGet, Pattern: "/v1/playground-secrets", Handle: r.secrets},
		{Method: http.MethodPut, Pattern: "/v1/playground-secrets", BodyLimit: web.LargeLimit, Handle: r.setSecret},
		{Method: http.MethodDelete, Pattern: "/v1/playground-secrets/{id}", Handle: r.removeSecret},
		{Method: http.MethodGet, Pattern: "/v1/git-hooks", Handle: r.hooks},
		{Method: http.MethodPost, Pattern: "/v1/git-hooks", BodyLimit: web.BodyLimit, Handle: r.addHook},
		{Method: http.MethodDelete, Pattern: "/v1/git-hooks/{id}", Handle: r.removeHook},
		{Method: http.MethodPost, Pattern: "/v1/git-hooks/{id}/push", Access: web.ByAnyone, BodyLimit: pushLimit, Handle: r.push},
		{Method: http.MethodGet, Pattern: "/v1/playground-templates", Handle: r.templates},
		{Method: http.MethodPut, Pattern: "/v1/playground-templates", BodyLimit: web.LargeLimit, Handle: r.setTemplate},
		{Method: http.MethodDelete, Pattern: "/v1/playground-templates/{id}", Handle: r.removeTemplate},
		{Method: http.MethodPost, Pattern: "/v1/playground-templates/{id}", BodyLimit: web.LargeLimit, Slow: true, Handle: r.launch},
		{Method: http.MethodGet, Pattern: "/v1/playground-previews", Handle: r.previews},
		{Method: http.MethodPut, Pattern: "/v1/playground-previews", BodyLimit: web.LargeLimit, Handle: r.setPreview},
		{Method: http.MethodDelete, Pattern: "/v1/playground-previews/{id}", Handle: r.removePreview},
	}
}

func ownerOf(ctx context.Context) string {
	owner, _ := service.Caller(ctx)
	return owner
}

// runsFleet refuses what reaches past the caller's own.
func runsFleet(r *web.Request, what string) error {
	if r.Principal().SeesAll() {
		return nil
	}
	return fleet.Errorf(fleet.CodeForbidden, "%s is for those who run the fleet", what).With(fleet.DetailScope, what)
}

func (s sources) follow(w http.ResponseWriter, r *web.Request) error {
	var body gen.FollowBranch
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	policy, err := policyOf(body.Policy)
	if err != nil {
		return err
	}
	req := branch.Request{
		Name: body.Name, Marquee: body.Marquee, Repository: body.Repository, Branch: body.Branch, Path: body.Path, Secret: body.Secret,
		KnownHosts: body.KnownHosts, Depth: body.Depth, Submodules: body.Submodules, Variables: map[string]branch.Variable{}, Policy: policy,
		KeepVolumes: body.KeepVolumes, Pull: model.Pull(body.Pull), Expires: body.Expires,
	}
	for name, v := range body.Variables {
		req.Variables[name] = branch.Variable{Value: v}
	}
	for name, secret := range body.SecretVariables {
		if _, both := req.Variables[name]; both {
			return fleet.Invalid("secret_variables", "a value or a secret", "", "%.80q has both", name)
		}
		req.Variables[name] = branch.Variable{Secret: secret}
	}
	return s.accepted(w, r, func(ctx context.Context) (service.Playground, error) { return s.Branches.Declare(ctx, req) })
}

// accepted answers with a playground that something was asked of.
func (s sources) accepted(w http.ResponseWriter, r *web.Request, do func(ctx context.Context) (service.Playground, error)) error {
	p, err := once(w, r, s.keeper, http.StatusAccepted,
		func(ctx context.Context) (service.Playground, string, error) { return playgroundID(do(ctx)) }, s.Playguard.Playground)
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("playgrounds", string(p.ID)))
	web.WriteJSON(w, http.StatusAccepted, playgroundOf(p))
	return nil
}

func (s sources) act(w http.ResponseWriter, r *web.Request) error {
	action := r.URL.Query().Get("action")
	return s.accepted(w, r, func(ctx context.Context) (service.Playground, error) { return s.Branches.Act(ctx, r.Param, action) })
}

// branchOf shows the branch of a playground; nothing if it has none.
func branchOf(src records.Source) gen.PlaygroundBranch {
	if src.IsZero() {
		return gen.PlaygroundBranch{}
	}
	return gen.PlaygroundBranch{
		Repository: src.Repository, Branch: src.Branch, Path: src.Path, Checkout: src.Checkout, Secret: src.Secret, Head: src.Head, Commit: src.Commit,
		Problem: string(src.Problem), Why: src.Why, ProblemAt: utc(src.ProblemAt), ChangedAt: utc(src.ChangedAt), Preview: src.Preview,
	}
}

func secretOf(s credential.Secret) gen.PlaygroundSecret {
	return gen.PlaygroundSecret{
		ID: s.ID, Name: s.Name, Owner: s.Owner, Kind: string(s.Kind), Username: s.Username, Marquee: string(s.Marquee), Source: s.Source.Shown(),
		ExpiresAt: utc(s.ExpiresAt), RefreshAt: utc(s.RefreshAt), Failure: s.Failure, UpdatedAt: utc(s.UpdatedAt),
	}
}

func (s sources) secrets(w http.ResponseWriter, r *web.Request) error {
	list, err := s.Secrets.List(auth.Visible(r.Context()))
	if err != nil {
		return err
	}
	out := gen.PlaygroundSecretList{Secrets: make([]gen.PlaygroundSecret, 0, len(list))}
	for _, v := range list {
		out.Secrets = append(out.Secrets, secretOf(v))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s sources) setSecret(w http.ResponseWriter, r *web.Request) error {
	var body gen.SetPlaygroundSecret
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	owner, by := service.Caller(r.Context())
	req := credential.Request{Value: []byte(body.Value), Authorization: body.SourceAuthorization, Secret: credential.Secret{
		Owner: owner, Name: body.Name, Kind: credential.Kind(body.Kind), Username: body.Username, ExpiresAt: body.ExpiresAt, Source: credential.Source{URL: body.Source},
	}}
	if body.Source != "" {
		if err := runsFleet(r, "a source of secrets"); err != nil {
			return err
		}
	}
	if body.Marquee != "" {
		if err := runsFleet(r, "a login for everybody on a marquee"); err != nil {
			return err
		}
		m, err := s.Playguard.Marquee(r.Context(), body.Marquee)
		if err != nil {
			return err
		}
		req.Marquee = m.ID
	}
	out, err := s.Secrets.Set(r.Context(), by, req, func() string { return strings.ToLower(uid.New()) })
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, secretOf(out))
	return nil
}

func (s sources) removeSecret(w http.ResponseWriter, r *web.Request) error {
	owner, by := service.Caller(r.Context())
	if err := s.Secrets.Remove(r.Context(), by, auth.Visible(r.Context()), owner, r.Param); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func hookOf(h githook.Hook) gen.GitHook {
	return gen.GitHook{
		ID: h.ID, Repository: h.Repository, Owner: h.Owner, Path: "/v1/git-hooks/" + h.ID + "/push", HeardAt: utc(h.HeardAt), CreatedAt: utc(h.CreatedAt),
	}
}

func (s sources) hooks(w http.ResponseWriter, r *web.Request) error {
	list, err := s.Hooks.List(auth.Visible(r.Context()))
	if err != nil {
		return err
	}
	out := gen.GitHookList{Hooks: make([]gen.GitHook, 0, len(list))}
	for _, h := range list {
		out.Hooks = append(out.Hooks, hookOf(h))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s sources) addHook(w http.ResponseWriter, r *web.Request) error {
	var body gen.AddGitHook
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	h, secret, err := s.Hooks.Add(r.Context(), ownerOf(r.Context()), body.Repository, body.Secret)
	if err != nil {
		return err
	}
	out := hookOf(h)
	out.Secret = secret
	web.WriteJSON(w, http.StatusCreated, out)
	return nil
}

func (s sources) removeHook(w http.ResponseWriter, r *web.Request) error {
	if err := s.Hooks.Remove(r.Context(), auth.Visible(r.Context()), r.Param); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s sources) push(w http.ResponseWriter, r *web.Request) error {
	p, n, err := s.Hooks.Hear(r.Context(), r.Param, r.Header, r.Payload)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusAccepted, gen.GitPushHeard{Heard: p.Kind, Playgrounds: n})
	return nil
}

func templateOf(t template.Template) gen.PlaygroundTemplate {
	out := gen.PlaygroundTemplate{
		Name: t.Name, Owner: t.Owner, Description: t.Description, Marquee: t.Marquee, Repository: t.Repository, Branch: t.Branch, Path: t.Path,
		Secret: t.Secret, KnownHosts: t.KnownHosts, Submodules: t.Submodules, Pull: string(t.Pull), Expires: t.Expires, UpdatedAt: utc(t.UpdatedAt),
	}
	for _, v := range t.Variables {
		out.Variables = append(out.Variables, gen.TemplateVariable{
			Name: v.Name, Description: v.Description, Type: string(v.Type), Choices: v.Choices, Pattern: v.Pattern, Default: v.Default, Required: v.Required, Sensitive: v.Sensitive,
		})
	}
	return out
}

func (s sources) templates(w http.ResponseWriter, r *web.Request) error {
	list, err := s.Templates.List(auth.Visible(r.Context()))
	if err != nil {
		return err
	}
	out := gen.PlaygroundTemplateList{Templates: make([]gen.PlaygroundTemplate, 0, len(list))}
	for _, t := range list {
		out.Templates = append(out.Templates, templateOf(t))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s sources) setTemplate(w http.ResponseWriter, r *web.Request) error {
	var body gen.PlaygroundTemplate
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	t := template.Template{
		Name: body.Name, Description: body.Description, Marquee: body.Marquee, Repository: body.Repository, Branch: body.Branch, Path: body.Path,
		Secret: body.Secret, KnownHosts: body.KnownHosts, Submodules: body.Submodules, Pull: model.Pull(body.Pull), Expires: body.Expires,
	}
	for _, v := range body.Variables {
		t.Variables = append(t.Variables, template.Variable{
			Name: v.Name, Description: v.Description, Type: template.Type(v.Type), Choices: v.Choices, Pattern: v.Pattern, Default: v.Default, Required: v.Required, Sensitive: v.Sensitive,
		})
	}
	out, err := s.Templates.Set(r.Context(), ownerOf(r.Context()), t)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, templateOf(out))
	return nil
}

func (s sources) removeTemplate(w http.ResponseWriter, r *web.Request) error {
	if err := s.Templates.Remove(r.Context(), ownerOf(r.Context()), r.Param); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s sources) launch(w http.ResponseWriter, r *web.Request) error {
	var body gen.LaunchTemplate
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	return s.accepted(w, r, func(ctx context.Context) (service.Playground, error) {
		return s.Templates.Launch(ctx, ownerOf(ctx), r.Param, template.Launch{
			Name: body.Name, Branch: body.Branch, Marquee: body.Marquee, Values: body.Variables, Secrets: body.SecretVariables, Expires: body.Expires,
		})
	})
}

func previewOf(p template.Preview) gen.PlaygroundPreview {
	out := gen.PlaygroundPreview{
		Name: p.Name, Owner: p.Owner, Template: p.Template, Branches: p.Branches, Most: p.Most, Variables: p.Values, SecretVariables: p.Secrets,
		Playgrounds: p.Playgrounds, LeftOut: p.LeftOut, LookedAt: utc(p.LookedAt), Failure: p.Failure,
	}
	if p.Life > 0 {
		out.Life = p.Life.String()
	}
	return out
}

func (s sources) previews(w http.ResponseWriter, r *web.Request) error {
	list, err := s.Templates.ListPreviews(auth.Visible(r.Context()))
	if err != nil {
		return err
	}
	out := gen.PlaygroundPreviewList{Previews: make([]gen.PlaygroundPreview, 0, len(list))}
	for _, p := range list {
		out.Previews = append(out.Previews, previewOf(p))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s sources) setPreview(w http.ResponseWriter, r *web.Request) error {
	var body gen.PlaygroundPreview
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	p := template.Preview{Name: body.Name, Template: body.Template, Branches: body.Branches, Most: body.Most, Values: body.Variables, Secrets: body.SecretVariables}
	if body.Life != "" {
		var err error
		if p.Life, err = model.ParseLife(body.Life); err != nil {
			return err
		}
	}
	out, err := s.Templates.SetPreview(r.Context(), ownerOf(r.Context()), p)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, previewOf(out))
	return nil
}

func (s sources) removePreview(w http.ResponseWriter, r *web.Request) error {
	if err := s.Templates.RemovePreview(r.Context(), ownerOf(r.Context()), r.Param); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
