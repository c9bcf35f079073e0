package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Reconcile says how the reconcile loop stands.
func (a *API) Reconcile(ctx context.Context) (r gen.Reconcile, err error) {
	resp, err := a.raw.GetReconcile(ctx)
	return r, decode(resp, err, &r)
}

// PlanReconcile says what the next cycle would do.
func (a *API) PlanReconcile(ctx context.Context) (p gen.ReconcilePlan, err error) {
	resp, err := a.raw.PlanReconcile(ctx)
	return p, decode(resp, err, &p)
}

// PauseReconcile stops what the loop destroys, and returns all pauses.
func (a *API) PauseReconcile(ctx context.Context, req gen.PauseReconcile) (p gen.Pauses, err error) {
	resp, err := a.raw.PauseReconcile(ctx, &gen.PauseReconcileParams{}, req)
	return p, decode(resp, err, &p)
}

// ResumeReconcile ends the pause of a host, or with "" that of everything, and
// returns those that are left.
func (a *API) ResumeReconcile(ctx context.Context, host string) (p gen.Pauses, err error) {
	params := &gen.ResumeReconcileParams{}
	if host != "" {
		params.Host = &host
	}
	resp, err := a.raw.ResumeReconcile(ctx, params)
	return p, decode(resp, err, &p)
}
