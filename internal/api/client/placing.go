package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Placing are the calls about quotas and about where environments go.
type Placing struct{ API *API }

// Quotas returns what owners and keys hold and may hold.
func (p Placing) Quotas(ctx context.Context) (list gen.QuotaList, err error) {
	resp, err := p.API.raw.ListQuotas(ctx)
	return list, decode(resp, err, &list)
}

// Quota returns one entry; id is owner:NAME or key:ID.
func (p Placing) Quota(ctx context.Context, id string) (one gen.Quota, err error) {
	resp, err := p.API.raw.GetQuota(ctx, id)
	return one, decode(resp, err, &one)
}

// SetQuota changes limits: -1 is no limit, nil the server's default.
func (p Placing) SetQuota(ctx context.Context, id string, limits map[string]*int64) (one gen.Quota, err error) {
	resp, err := p.API.raw.SetQuota(ctx, id, &gen.SetQuotaParams{}, gen.SetQuota{Limits: limits})
	return one, decode(resp, err, &one)
}

// RemoveQuota takes the limits of an owner or key away.
func (p Placing) RemoveQuota(ctx context.Context, id string) error {
	resp, err := p.API.raw.RemoveQuota(ctx, id, &gen.RemoveQuotaParams{})
	return decode(resp, err, nil)
}

// Explain runs a placement dry.
func (p Placing) Explain(ctx context.Context, spec gen.Spec) (e gen.ScheduleExplanation, err error) {
	resp, err := p.API.raw.ExplainSchedule(ctx, gen.ExplainSchedule{Spec: spec})
	return e, decode(resp, err, &e)
}
