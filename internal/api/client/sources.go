package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Sources are what playgrounds are made from, beside the playgrounds themselves.
type Sources struct{ Playguard }

// NewSources works on them by a's connection.
func NewSources(a *API) Sources { return Sources{Playguard{a}} }

// FollowBranch makes a playground that follows a branch.
func (p Sources) FollowBranch(ctx context.Context, req gen.FollowBranch) (g gen.Playground, err error) {
	resp, err := p.api.raw.FollowBranch(ctx, &gen.FollowBranchParams{}, req)
	return g, decode(resp, err, &g)
}

// ActOnBranch does check or accept.
func (p Sources) ActOnBranch(ctx context.Context, id, action string) (g gen.Playground, err error) {
	resp, err := p.api.raw.ActOnBranch(ctx, id, &gen.ActOnBranchParams{Action: action})
	return g, decode(resp, err, &g)
}

// Secrets lists secrets, never what they hold.
func (p Sources) Secrets(ctx context.Context) (out gen.PlaygroundSecretList, err error) {
	resp, err := p.api.raw.ListPlaygroundSecrets(ctx)
	return out, decode(resp, err, &out)
}

// SetSecret sets one.
func (p Sources) SetSecret(ctx context.Context, req gen.SetPlaygroundSecret) (out gen.PlaygroundSecret, err error) {
	resp, err := p.api.raw.SetPlaygroundSecret(ctx, req)
	return out, decode(resp, err, &out)
}

// RemoveSecret forgets one, by id or name.
func (p Sources) RemoveSecret(ctx context.Context, id string) error {
	resp, err := p.api.raw.RemovePlaygroundSecret(ctx, id)
	return decode(resp, err, nil)
}

// GitHooks lists what git servers may call.
func (p Sources) GitHooks(ctx context.Context) (out gen.GitHookList, err error) {
	resp, err := p.api.raw.ListGitHooks(ctx)
	return out, decode(resp, err, &out)
}

// AddGitHook makes one; its secret is in the answer.
func (p Sources) AddGitHook(ctx context.Context, req gen.AddGitHook) (out gen.GitHook, err error) {
	resp, err := p.api.raw.AddGitHook(ctx, req)
	return out, decode(resp, err, &out)
}

// RemoveGitHook forgets one.
func (p Sources) RemoveGitHook(ctx context.Context, id string) error {
	resp, err := p.api.raw.RemoveGitHook(ctx, id)
	return decode(resp, err, nil)
}

// Templates lists templates.
func (p Sources) Templates(ctx context.Context) (out gen.PlaygroundTemplateList, err error) {
	resp, err := p.api.raw.ListPlaygroundTemplates(ctx)
	return out, decode(resp, err, &out)
}

// SetTemplate makes or replaces one.
func (p Sources) SetTemplate(ctx context.Context, t gen.PlaygroundTemplate) (out gen.PlaygroundTemplate, err error) {
	resp, err := p.api.raw.SetPlaygroundTemplate(ctx, t)
	return out, decode(resp, err, &out)
}

// RemoveTemplate forgets one.
func (p Sources) RemoveTemplate(ctx context.Context, name string) error {
	resp, err := p.api.raw.RemovePlaygroundTemplate(ctx, name)
	return decode(resp, err, nil)
}

// Launch makes a playground of a template.
func (p Sources) Launch(ctx context.Context, name string, req gen.LaunchTemplate) (g gen.Playground, err error) {
	resp, err := p.api.raw.LaunchPlaygroundTemplate(ctx, name, req)
	return g, decode(resp, err, &g)
}

// Previews lists previews.
func (p Sources) Previews(ctx context.Context) (out gen.PlaygroundPreviewList, err error) {
	resp, err := p.api.raw.ListPlaygroundPreviews(ctx)
	return out, decode(resp, err, &out)
}

// SetPreview makes or changes one.
func (p Sources) SetPreview(ctx context.Context, v gen.PlaygroundPreview) (out gen.PlaygroundPreview, err error) {
	resp, err := p.api.raw.SetPlaygroundPreview(ctx, v)
	return out, decode(resp, err, &out)
}

// RemovePreview forgets one; its playgrounds stay.
func (p Sources) RemovePreview(ctx context.Context, name string) error {
	resp, err := p.api.raw.RemovePlaygroundPreview(ctx, name)
	return decode(resp, err, nil)
}
