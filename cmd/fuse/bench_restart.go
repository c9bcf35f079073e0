package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/bench"
	"github.com/fusevm/fuse/internal/cli"
)

func benchRestartCmd(streams cli.Streams) *cobra.Command {
	b := bench.Restart{Out: streams.Out, Limit: benchStart}
	var dir string
	var hosts int
	cmd := &cobra.Command{
		Use: "restart", Short: "Measure a server's restart at growing fleet sizes, with simulated machines", Args: cobra.NoArgs,
		Long: "restart kills a server that has environments, starts it again, and measures until it\n" +
			"serves and until it is ready: recovered, with every host looked at. Server and\n" +
			"hosts are processes of their own.",
		RunE: func(cmd *cobra.Command, _ []string) error { return benchRestart(cmd.Context(), b, dir, hosts) },
	}
	f := cmd.Flags()
	f.StringVar(&dir, "data-dir", ".", "`directory` whose disk is used; a temporary one is made in it")
	f.IntSliceVar(&b.Sizes, "sizes", []int{0, 2000, 10000}, "fleet sizes, rising")
	f.IntVar(&hosts, "hosts", 4, "simulated hosts")
	f.IntVar(&b.Restarts, "restarts", 5, "restarts, a size")
	f.BoolVar(&b.Secrets, "secrets", false, "give each environment a secret, which is handed over again after a restart")
	return cmd
}

func benchRestart(ctx context.Context, b bench.Restart, dir string, hosts int) (err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: bench.Workers}}
	defer client.CloseIdleConnections()
	temporary, err := os.MkdirTemp(dir, "fuse-bench-*")
	if err != nil {
		return fmt.Errorf("make a directory for the measurement: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	d, err := datadir.Open(temporary)
	if err != nil {
		return err
	}
	b.Target.Client = client
	if b.Target.Token, err = d.Secret("api-token"); err != nil {
		return err
	}
	token, err := d.Secret("host-token")
	if err != nil {
		return err
	}
	for i := range hosts {
		name := fmt.Sprintf("host-%d", i)
		host, url, err := startFuse(ctx, d.Path(name+".log"), "host agent at ", []string{
			"hostd", "--driver", "sim", "--listen", "unix://" + d.Path(name+".sock"), "--data-dir", d.Path(name), "--token-file", d.Path("host-token"),
			"--host-cpus", fmt.Sprint(benchCapacity.CPUs), "--host-ram-mb", fmt.Sprint(benchCapacity.RamMB),
			"--host-storage-gb", fmt.Sprint(benchCapacity.StorageGB), "--max-vms", fmt.Sprint(benchCapacity.VMCount),
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, host.stop()) }()
		b.Hosts = append(b.Hosts, bench.RestartHost{ID: name, URL: url, Token: token})
	}
	b.Server = func(ctx context.Context) (bench.Process, string, error) {
		c, url, err := startFuse(ctx, d.Path("server.log"), "serving ", []string{
			"server", "--listen", "127.0.0.1:0", "--data-dir", d.Path("server"), "--auth-token-file", d.Path("api-token"),
		})
		return measured{c}, url, err
	}
	return b.Run(ctx)
}

// measured is a child as the measurement handles it.
type measured struct{ c *child }

func (m measured) PID() int    { return m.c.cmd.Process.Pid }
func (m measured) Stop() error { return m.c.stop() }

func (m measured) Kill() error {
	if err := m.c.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill a program of the measurement: %w", err)
	}
	if err := <-m.c.ended; err == nil {
		return errors.New("a program of the measurement had ended before it was killed")
	}
	return nil
}
