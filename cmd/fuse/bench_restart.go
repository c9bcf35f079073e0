package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/bench"
	"github.com/fusevm/fuse/internal/cli"
)

// restartRun measures how long a server takes from its start until it is ready.
type restartRun struct {
	streams  cli.Streams
	dir      string
	sizes    []int
	hosts    int
	restarts int
	secrets  bool
	target   bench.Target
}

func benchRestartCmd(streams cli.Streams) *cobra.Command {
	b := &restartRun{streams: streams}
	cmd := &cobra.Command{
		Use: "restart", Short: "Measure a server's restart at growing fleet sizes, with simulated machines", Args: cobra.NoArgs,
		Long: "restart kills a server that has environments, starts it again, and measures until it\n" +
			"serves and until it is ready: recovered, with every host looked at. Server and\n" +
			"hosts are processes of their own.",
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&b.dir, "data-dir", ".", "`directory` whose disk is used; a temporary one is made in it")
	f.IntSliceVar(&b.sizes, "sizes", []int{0, 2000, 10000}, "fleet sizes, rising")
	f.IntVar(&b.hosts, "hosts", 4, "simulated hosts")
	f.IntVar(&b.restarts, "restarts", 5, "restarts, a size")
	f.BoolVar(&b.secrets, "secrets", false, "give each environment a secret, which is handed over again after a restart")
	return cmd
}

func (b *restartRun) run(ctx context.Context) (err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: bench.Workers}}
	defer client.CloseIdleConnections()
	b.target.Client = client
	temporary, err := os.MkdirTemp(b.dir, "fuse-bench-*")
	if err != nil {
		return fmt.Errorf("make a directory for the measurement: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	d, err := openDataDir(temporary)
	if err != nil {
		return err
	}
	if b.target.Token, err = d.secret("api-token"); err != nil {
		return err
	}
	hostToken, err := d.secret("host-token")
	if err != nil {
		return err
	}
	urls := make([]string, b.hosts)
	for i := range b.hosts {
		name := fmt.Sprintf("host-%d", i)
		host, url, err := startFuse(ctx, d.path(name+".log"), "host agent at ", []string{
			"hostd", "--driver", "sim", "--listen", "unix://" + d.path(name+".sock"), "--data-dir", d.path(name), "--token-file", d.path("host-token"),
			"--host-cpus", fmt.Sprint(benchCapacity.CPUs), "--host-ram-mb", fmt.Sprint(benchCapacity.RamMB),
			"--host-storage-gb", fmt.Sprint(benchCapacity.StorageGB), "--max-vms", fmt.Sprint(benchCapacity.VMCount),
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, host.stop()) }()
		urls[i] = url
	}
	return b.measure(ctx, d, urls, hostToken)
}

func (b *restartRun) measure(ctx context.Context, d dataDir, urls []string, hostToken string) error {
	server, _, err := b.start(ctx, d)
	if err != nil {
		return err
	}
	defer func() { _ = server.stop() }() // the measurement has ended, or its error tells
	for i, url := range urls {
		if _, err := b.target.Call(ctx, http.MethodPost, "/v1/hosts", map[string]any{"id": fmt.Sprintf("host-%d", i), "url": url, "token": hostToken}); err != nil {
			return err
		}
	}
	have := 0
	for _, size := range b.sizes {
		if _, err := bench.Each(ctx, size-have, bench.Workers, func(ctx context.Context, i int) error { return b.create(ctx, have+i) }); err != nil {
			return err
		}
		have = max(have, size)
		serving, ready, cpu := make([]time.Duration, b.restarts), make([]time.Duration, b.restarts), make([]time.Duration, b.restarts)
		for i := range b.restarts {
			if err := server.kill(); err != nil {
				return err
			}
			var took restart
			if server, took, err = b.start(ctx, d); err != nil {
				return err
			}
			serving[i], ready[i], cpu[i] = took.serving, took.ready, took.cpu
		}
		fmt.Fprintf(b.streams.Out, "at %d environments on %d hosts: serving after %s, ready after %s, processor time %s\n", size, b.hosts, spread(serving), spread(ready), spread(cpu))
	}
	return nil
}

func (b *restartRun) create(ctx context.Context, i int) error {
	if !b.secrets {
		return b.target.Create(ctx, fmt.Sprintf("r-%d", i))
	}
	_, err := b.target.Call(ctx, http.MethodPost, "/v1/environments", map[string]any{
		"task_id": fmt.Sprintf("r-%d", i), "image": "minimal", "secrets": map[string]string{"KEY": "value"},
	})
	return err
}

// restart is how long a start took, and how much of the processor until ready.
type restart struct{ serving, ready, cpu time.Duration }

func (b *restartRun) start(ctx context.Context, d dataDir) (*child, restart, error) {
	var took restart
	began := time.Now()
	c, url, err := startFuse(ctx, d.path("server.log"), "serving ", []string{
		"server", "--listen", "127.0.0.1:0", "--data-dir", d.path("server"), "--auth-token-file", d.path("api-token"),
	})
	if err != nil {
		return nil, took, err
	}
	took.serving = time.Since(began)
	b.target.Base = url
	ctx, cancel := context.WithTimeout(ctx, benchStart)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if _, err = b.target.Call(ctx, http.MethodGet, "/ready", nil); err == nil {
			took.ready = time.Since(began)
			usage, err := bench.ProcessUsage("server", c.cmd.Process.Pid)
			took.cpu = usage.CPU
			return c, took, err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, took, errors.Join(fmt.Errorf("the server does not become ready: %w", err), c.stop())
		}
	}
}

func (c *child) kill() error {
	if err := c.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill a program of the measurement: %w", err)
	}
	if err := <-c.ended; err == nil {
		return errors.New("a program of the measurement had ended before it was killed")
	}
	return nil
}

// spread renders the median and the worst.
func spread(times []time.Duration) string {
	sorted := slices.Sorted(slices.Values(times))
	return fmt.Sprintf("%.2f s (worst %.2f s)", sorted[len(sorted)/2].Seconds(), sorted[len(sorted)-1].Seconds())
}
