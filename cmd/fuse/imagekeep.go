package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/imagerpc"
)

// imageService serves a host's images to its control plane.
func imageService(store *image.Store) hostd.Service {
	return func(check func(hostd.Fence) error, opts ...connect.HandlerOption) (string, http.Handler) {
		return imagerpc.Handler(store, check, opts...)
	}
}

// imageKeep says how long a host keeps images that nothing uses.
type imageKeep struct {
	unused time.Duration
	maxGB  int64
}

func (k *imageKeep) register(f *pflag.FlagSet) {
	f.DurationVar(&k.unused, "image-unused", 30*24*time.Hour, "`time` that a pulled image is kept which nothing uses; 0 keeps it until the disk is full")
	f.Int64Var(&k.maxGB, "image-max-gb", 0, "most disk for pulled images, in `GiB`; those in use stay (default: no limit)")
}

// imageKeeper removes what a host need not keep.
type imageKeeper struct {
	store *image.Store
	keep  imageKeep
	log   *slog.Logger
}

const keepEvery = 10 * time.Minute

func (k imageKeeper) run(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		k.once(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (k imageKeeper) once(ctx context.Context) {
	for _, o := range []image.PruneOptions{{Unused: k.keep.unused}, {MaxBytes: k.keep.maxGB << 30}} {
		if o == (image.PruneOptions{}) {
			continue
		}
		gone, err := k.store.Prune(ctx, o)
		if err != nil && ctx.Err() == nil {
			k.log.Warn("images not pruned", slog.Any("error", err))
		}
		for _, e := range gone.Images {
			k.log.Info("image removed that nothing uses", slog.String("image", e.Name), slog.String("digest", e.Digest), slog.Int64("bytes", e.Disk))
		}
	}
}
