package plane

import (
	"context"
	"errors"

	"github.com/fusevm/fuse/cmd/fuse/serving"
)

// Serving is the plane as a process serves it.
func (p *Plane) Serving() serving.Plane {
	return serving.Plane{
		API: p.api, Loops: p.loops(), Recovered: p.loop.WaitRecovered, Ready: p.loop.WaitReady, Lost: p.Store.Err, Close: p.Close,
	}
}

// Serve runs one plane in a process of its own, which ends with it. ready is
// called with the API's URL once it answers.
func (p *Plane) Serve(ctx context.Context, ready func(url string)) error {
	r, err := serving.New(ctx, serving.Config{
		Settings: p.settings, Metrics: p.metrics, Version: p.version, Secret: p.self.Secret, Logger: p.log,
	})
	if err != nil {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.settings.ShutdownTimeout)
		defer cancel()
		return errors.Join(err, p.Close(limit))
	}
	return r.Run(ctx, func(ctx context.Context) error {
		return r.Reign(ctx, p.Serving(), func() { ready(r.URL) })
	})
}

// watchStore ends a plane once it no longer leads the fleet or cannot tell what
// is durable: only a new one, which loads the state again, can go on.
func (p *Plane) watchStore(ctx context.Context) error {
	select {
	case <-p.Store.Failed():
		return p.Store.Err()
	case <-ctx.Done():
		return nil
	}
}
