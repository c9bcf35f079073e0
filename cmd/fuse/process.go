package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/metrics"
)

// runServer runs a server that leads or stands by until ctx ends.
func runServer(ctx context.Context, s config.Server, image string, out io.Writer) error {
	log := slog.New(logHandler(out, s, s.LogLevel))
	m := metrics.New(version)
	keyID, admit, err := standbyKeys(s)
	if err != nil {
		return err
	}
	r, err := serving.New(ctx, serving.Config{Settings: s, Metrics: m, Version: version, Secret: serving.NewSecret(), Logger: log})
	if err != nil {
		return err
	}
	r.Self.KeyID = keyID
	watched := newStorage(s, log)
	accepted := s.AcceptStore // until the first plane of this start has begun
	return r.Run(ctx, func(ctx context.Context) error {
		return r.Elect(ctx, serving.Election{Watched: watched, Out: out, Admit: admit, Open: func(ctx context.Context) (serving.Plane, error) {
			p, err := openPlane(ctx, planeConfig{settings: s, image: image, log: log, metrics: m, self: r.Self, front: r.Front, accepted: accepted})
			if err != nil {
				return serving.Plane{}, err
			}
			accepted = false
			return p.serving(), nil
		}})
	})
}

func (p *plane) serving() serving.Plane {
	return serving.Plane{
		API: p.api, Loops: p.loops(), Recovered: p.loop.WaitRecovered, Ready: p.loop.WaitReady, Lost: p.store.Err, Close: p.close,
	}
}

// serve runs one plane in a process of its own, which ends with it. ready is
// called with the API's URL once it answers.
func (p *plane) serve(ctx context.Context, ready func(url string)) error {
	r, err := serving.New(ctx, serving.Config{
		Settings: p.settings, Metrics: p.metrics, Version: version, Secret: p.self.Secret, Logger: p.log,
	})
	if err != nil {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.settings.ShutdownTimeout)
		defer cancel()
		return errors.Join(err, p.close(limit))
	}
	return r.Run(ctx, func(ctx context.Context) error {
		return r.Reign(ctx, p.serving(), func() { ready(r.URL) })
	})
}

// watchStore ends a plane once it no longer leads the fleet or cannot tell what
// is durable: only a new one, which loads the state again, can go on.
func (p *plane) watchStore(ctx context.Context) error {
	select {
	case <-p.store.Failed():
		return p.store.Err()
	case <-ctx.Done():
		return nil
	}
}
