package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
)

// TestServerEndsWithItsStore takes the store away under a server that serves:
// it must not stay up and refuse everything, but end with the reason, so that
// what supervises it starts it again.
func TestServerEndsWithItsStore(t *testing.T) {
	testkit.Leaks(t)
	settings := settingsFor(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := plane.New(ctx, plane.Config{Settings: settings, Version: version, Image: "", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	ready := make(chan struct{})
	go func() { served <- p.Serve(ctx, func(string) { close(ready) }) }()
	select {
	case <-ready:
	case err := <-served:
		t.Fatalf("the server did not come up: %v", err)
	}
	if err := p.Store.Close(ctx); err != nil {
		t.Errorf("close the store: %v", err)
	}
	if err := <-served; !errors.Is(err, fleet.ErrStoreUnavailable) || ctx.Err() != nil {
		t.Errorf("the server ended with %v (%v)", err, ctx.Err())
	}
}

// settingsFor are the settings of a server in dir on a free port.
func settingsFor(t *testing.T, dir string) config.Server {
	t.Helper()
	flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
	config.Register(flags)
	if err := flags.Parse([]string{"--listen", "127.0.0.1:0", "--data-dir", dir}); err != nil {
		t.Fatal(err)
	}
	none := config.Environ{
		Lookup:   func(string) (string, bool) { return "", false },
		ReadFile: func(string) ([]byte, error) { return nil, errors.New("no files") },
	}
	settings, err := config.Load(flags, none)
	if err != nil {
		t.Fatal(err)
	}
	return settings
}
