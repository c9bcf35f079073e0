package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/config"
)

func serverCmd(streams cli.Streams) *cobra.Command {
	var image string
	cmd := &cobra.Command{
		Use: "server", Short: "Run the control plane", GroupID: "ops", Args: cobra.NoArgs,
		Long: "server runs the control plane for hosts elsewhere: start 'fuse hostd' on each and\n" +
			"tell of it with 'fuse host register'. Settings are flags, environment variables\n" +
			"and files; docs/reference/settings.md lists them.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			saveMemory()
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			log := slog.New(logHandler(streams.Err, s, s.LogLevel))
			p, err := newPlane(cmd.Context(), s, image, log)
			if err != nil {
				return err
			}
			return p.serve(cmd.Context(), func(url string) {
				fmt.Fprintf(streams.Err, "serving %s, version %s\n", url, version)
			})
		},
	}
	registerSettings(cmd)
	cmd.Flags().StringVar(&image, "image", "minimal", "image that environments boot unless they name one; the hosts must have it")
	return cmd
}

// registerSettings adds the flags of a server.
func registerSettings(cmd *cobra.Command) {
	config.Register(cmd.Flags())
	cmd.Flags().Lookup("data-dir").DefValue = defaultDataDir()
}

// loadSettings reads the settings and makes the data directory.
func loadSettings(cmd *cobra.Command) (config.Server, error) {
	s, err := readSettings(cmd, config.OS())
	if err != nil {
		return s, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("settings:\n%w", err)}
	}
	d, err := openDataDir(s.DataDir)
	s.DataDir = string(d)
	return s, err
}

// readSettings reads flags and environment; a data directory that neither
// names is the default one.
func readSettings(cmd *cobra.Command, env config.Environ) (config.Server, error) {
	if dir, _ := env.Lookup("ORCH_DATA_DIR"); dir == "" && !cmd.Flags().Changed("data-dir") {
		if err := cmd.Flags().Set("data-dir", defaultDataDir()); err != nil {
			return config.Server{}, err
		}
	}
	return config.Load(cmd.Flags(), env)
}

// serve runs the control plane until ctx ends or a part of it fails, then
// takes it down: first the API, so that no new work comes, then the loop, then
// the work under way, then the store. ready is called with the API's URL once
// it answers.
func (p *plane) serve(ctx context.Context, ready func(url string)) (err error) {
	for _, w := range p.settings.Warnings {
		p.log.Warn("setting", slog.String("warning", w))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.settings.ShutdownTimeout)
		defer cancel()
		err = errors.Join(err, p.close(ctx))
	}()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.settings.Listen)
	if err != nil {
		return fmt.Errorf("listen for the API (choose another address with --listen): %w", err)
	}
	metricsListener, err := p.listenMetrics(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	srv := p.httpServer()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.watchStore(ctx) })
	g.Go(func() error { return ignoreCanceled(p.loop.Run(ctx)) })
	g.Go(func() error { return ignoreCanceled(p.api.Run(ctx)) })
	g.Go(func() error { return p.keys.Run(ctx) })
	g.Go(func() error {
		if err := p.loop.WaitRecovered(ctx); err != nil {
			return errors.Join(ignoreCanceled(err), l.Close())
		}
		return p.serveHTTP(ctx, srv, l)
	})
	if metricsListener != nil {
		m := &http.Server{Handler: p.metrics.Handler(), ReadHeaderTimeout: 5 * time.Second}
		g.Go(func() error { return p.serveHTTP(ctx, m, metricsListener) })
	}
	g.Go(func() error {
		if err := p.loop.WaitReady(ctx); err != nil {
			return ignoreCanceled(err)
		}
		ready(p.url(l))
		return nil
	})
	return g.Wait()
}

// watchStore ends the server once it no longer leads the fleet or cannot tell
// what is durable: only a new start, which loads the state again, can go on.
func (p *plane) watchStore(ctx context.Context) error {
	select {
	case <-p.store.Failed():
		return fmt.Errorf("the server cannot go on and has to be started again: %w", p.store.Err())
	case <-ctx.Done():
		return nil
	}
}

func (p *plane) listenMetrics(ctx context.Context) (net.Listener, error) {
	if p.settings.MetricsListen == "" {
		return nil, nil //nolint:nilnil // no listener is a valid answer
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.settings.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	return l, nil
}

func (p *plane) url(l net.Listener) string {
	scheme := "http"
	if p.settings.Certificate != nil {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return scheme + "://" + l.Addr().String()
	}
	// The address to listen on all interfaces is not one to connect to.
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// serveHTTP serves until ctx ends and then for at most two seconds: requests
// that take longer are cut, the work behind them goes on.
func (p *plane) serveHTTP(ctx context.Context, srv *http.Server, l net.Listener) error {
	done := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			done <- srv.ServeTLS(l, "", "")
		} else {
			done <- srv.Serve(l)
		}
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		p.log.Info("requests cut at shutdown", slog.Any("error", err))
		if err := srv.Close(); err != nil {
			p.log.Warn("close the listener", slog.Any("error", err))
		}
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func readSecretFile(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a secret: %w", err)
	}
	s := strings.TrimSpace(string(raw))
	if s == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return s, nil
}
