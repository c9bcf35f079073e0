package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Sweep tells of the orphan sweep on a marquee.
func (p Playguard) Sweep(ctx context.Context, marquee string) (s gen.MarqueeSweep, err error) {
	resp, err := p.api.raw.GetMarqueeSweep(ctx, marquee)
	return s, decode(resp, err, &s)
}

// ChangeSweep arms or disarms it.
func (p Playguard) ChangeSweep(ctx context.Context, marquee, action string, body gen.SweepAction) (s gen.MarqueeSweep, err error) {
	resp, err := p.api.raw.SweepMarquee(ctx, marquee, &gen.SweepMarqueeParams{Action: action}, body)
	return s, decode(resp, err, &s)
}

// Restore brings back what the sweep set aside.
func (p Playguard) Restore(ctx context.Context, marquee, project string) (g gen.Playground, err error) {
	resp, err := p.api.raw.RestoreSwept(ctx, marquee, &gen.RestoreSweptParams{}, gen.RestoreSwept{Project: project})
	return g, decode(resp, err, &g)
}

// Rescan lists what is on a marquee, and takes back what the request says.
func (p Playguard) Rescan(ctx context.Context, marquee string, req gen.RescanMarquee) (r gen.MarqueeRescan, err error) {
	resp, err := p.api.raw.RescanMarquee(ctx, marquee, &gen.RescanMarqueeParams{}, req)
	return r, decode(resp, err, &r)
}
