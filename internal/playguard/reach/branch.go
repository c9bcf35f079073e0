package reach

import (
	"context"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
)

// Remote asks from the marquee where a branch is at its server; empty: it is gone.
func (h *Host) Remote(ctx context.Context, payload []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
	defer cancel()
	c, r, err := h.both(ctx)
	if err != nil {
		return "", err
	}
	return r.Remote(ctx, c, payload)
}

// Branches lists the branches of a repository.
func (h *Host) Branches(ctx context.Context, payload []byte) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
	defer cancel()
	c, r, err := h.both(ctx)
	if err != nil {
		return nil, err
	}
	return r.Branches(ctx, c, payload)
}

// Tree returns the commit of a checkout and what it has at these paths.
func (h *Host) Tree(ctx context.Context, p model.Project, checkout string, paths ...string) (string, []runner.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
	defer cancel()
	c, r, err := h.both(ctx)
	if err != nil {
		return "", nil, err
	}
	return r.Tree(ctx, c, p, checkout, paths...)
}

// Blobs returns the contents of files of a checkout.
func (h *Host) Blobs(ctx context.Context, p model.Project, checkout string, files []runner.Entry) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, runner.LookTimeout)
	defer cancel()
	c, r, err := h.both(ctx)
	if err != nil {
		return nil, err
	}
	return r.Blobs(ctx, c, p, checkout, files)
}
