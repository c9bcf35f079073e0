package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// FollowBranch makes a playground that follows a branch.
func (p Playguard) FollowBranch(ctx context.Context, req gen.FollowBranch) (g gen.Playground, err error) {
	resp, err := p.api.raw.FollowBranch(ctx, &gen.FollowBranchParams{}, req)
	return g, decode(resp, err, &g)
}

// ActOnBranch does check or accept.
func (p Playguard) ActOnBranch(ctx context.Context, id, action string) (g gen.Playground, err error) {
	resp, err := p.api.raw.ActOnBranch(ctx, id, &gen.ActOnBranchParams{Action: action})
	return g, decode(resp, err, &g)
}

// Secrets lists secrets, never what they hold.
func (p Playguard) Secrets(ctx context.Context) (out gen.PlaygroundSecretList, err error) {
	resp, err := p.api.raw.ListPlaygroundSecrets(ctx)
	return out, decode(resp, err, &out)
}

// SetSecret sets one.
func (p Playguard) SetSecret(ctx context.Context, req gen.SetPlaygroundSecret) (out gen.PlaygroundSecret, err error) {
	resp, err := p.api.raw.SetPlaygroundSecret(ctx, req)
	return out, decode(resp, err, &out)
}

// RemoveSecret forgets one, by id or name.
func (p Playguard) RemoveSecret(ctx context.Context, id string) error {
	resp, err := p.api.raw.RemovePlaygroundSecret(ctx, id)
	return decode(resp, err, nil)
}

// GitHooks lists what git servers may call.
func (p Playguard) GitHooks(ctx context.Context) (out gen.GitHookList, err error) {
	resp, err := p.api.raw.ListGitHooks(ctx)
	return out, decode(resp, err, &out)
}

// AddGitHook makes one; its secret is in the answer.
func (p Playguard) AddGitHook(ctx context.Context, req gen.AddGitHook) (out gen.GitHook, err error) {
	resp, err := p.api.raw.AddGitHook(ctx, req)
	return out, decode(resp, err, &out)
}

// RemoveGitHook forgets one.
func (p Playguard) RemoveGitHook(ctx context.Context, id string) error {
	resp, err := p.api.raw.RemoveGitHook(ctx, id)
	return decode(resp, err, nil)
}

// Templates lists templates.
func (p Playguard) Templates(ctx context.Context) (out gen.PlaygroundTemplateList, err error) {
	resp, err := p.api.raw.ListPlaygroundTemplates(ctx)
	return out, decode(resp, err, &out)
}

// SetTemplate makes or replaces one.
func (p Playguard) SetTemplate(ctx context.Context, t gen.PlaygroundTemplate) (out gen.PlaygroundTemplate, err error) {
	resp, err := p.api.raw.SetPlaygroundTemplate(ctx, t)
	return out, decode(resp, err, &out)
}

// RemoveTemplate forgets one.
func (p Playguard) RemoveTemplate(ctx context.Context, name string) error {
	resp, err := p.api.raw.RemovePlaygroundTemplate(ctx, name)
	return decode(resp, err, nil)
}

// Launch makes a playground of a template.
func (p Playguard) Launch(ctx context.Context, name string, req gen.LaunchTemplate) (g gen.Playground, err error) {
	resp, err := p.api.raw.LaunchPlaygroundTemplate(ctx, name, req)
	return g, decode(resp, err, &g)
}

// Previews lists previews.
func (p Playguard) Previews(ctx context.Context) (out gen.PlaygroundPreviewList, err error) {
	resp, err := p.api.raw.ListPlaygroundPreviews(ctx)
	return out, decode(resp, err, &out)
}

// SetPreview makes or changes one.
func (p Playguard) SetPreview(ctx context.Context, v gen.PlaygroundPreview) (out gen.PlaygroundPreview, err error) {
	resp, err := p.api.raw.SetPlaygroundPreview(ctx, v)
	return out, decode(resp, err, &out)
}

// RemovePreview forgets one; its playgrounds stay.
func (p Playguard) RemovePreview(ctx context.Context, name string) error {
	resp, err := p.api.raw.RemovePlaygroundPreview(ctx, name)
	return decode(resp, err, nil)
}
