package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/metrics"
)

// runServer runs a server that leads or stands by until ctx ends.
func runServer(ctx context.Context, s config.Server, image string, out io.Writer) error {
	log := slog.New(logHandler(out, s, s.LogLevel))
	m := metrics.New(version)
	keyID, admit, err := plane.StandbyKeys(s)
	if err != nil {
		return err
	}
	r, err := serving.New(ctx, serving.Config{Settings: s, Metrics: m, Version: version, Secret: serving.NewSecret(), Logger: log})
	if err != nil {
		return err
	}
	r.Self.KeyID = keyID
	watched := plane.NewStorage(s, log)
	accepted := s.AcceptStore // until the first plane of this start has begun
	return r.Run(ctx, func(ctx context.Context) error {
		return r.Elect(ctx, serving.Election{Watched: watched, Out: out, Admit: admit, Open: func(ctx context.Context) (serving.Plane, error) {
			p, err := plane.Open(ctx, plane.Config{Settings: s, Version: version, Image: image, Log: log, Metrics: m, Self: r.Self, Front: r.Front, Accepted: accepted})
			if err != nil {
				return serving.Plane{}, err
			}
			accepted = false
			return p.Serving(), nil
		}})
	})
}
