package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/bench"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/sqlite"
	"github.com/fusevm/fuse/internal/uid"
)

func benchCmd(streams cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure Fuse on this machine", GroupID: "ops", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(benchControlPlaneCmd(streams))
	return cmd
}

func benchControlPlaneCmd(streams cli.Streams) *cobra.Command {
	var dir string
	b := bench.ControlPlane{Out: streams.Out}
	cmd := &cobra.Command{
		Use: "control-plane", Short: "Measure creates and reads at growing fleet sizes, with simulated machines", Args: cobra.NoArgs,
		Long: "control-plane starts a server with durable SQLite and a simulated host, in one\n" +
			"process and talking over their real protocols, and measures them as a client of\n" +
			"the API. The disk's own fsync and the journal alone are measured beside it.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if dir, err = os.MkdirTemp(dir, "fuse-bench-*"); err != nil {
				return fmt.Errorf("make a directory for the measurement: %w", err)
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			return runBench(cmd, dir, b)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "data-dir", ".", "`directory` whose disk is measured; a temporary one is made in it")
	f.IntSliceVar(&b.Sizes, "sizes", []int{0, 1000, 10000}, "fleet sizes")
	f.IntVar(&b.Serial, "serial", 300, "creates in a row, a size")
	f.IntVar(&b.Burst, "burst", 2000, "creates by 16 workers, a size")
	f.IntVar(&b.Reads, "reads", 100, "repeats of each read")
	return cmd
}

// runBench runs a server and a simulated host until the measurement is over.
func runBench(cmd *cobra.Command, dir string, b bench.ControlPlane) error {
	d, err := openDataDir(dir)
	if err != nil {
		return err
	}
	b.DataDir, b.JournalRate = string(d), func(ctx context.Context, n int) (bench.Latency, error) {
		return journalRate(ctx, d.path("journal-alone.db"), n)
	}
	settings, err := benchSettings(d)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	const hostToken = "bench-host-token-0123456789"
	h, err := openHost(cmd.Context(), hostOptions{
		dir: d, driver: "sim", listen: "unix://" + d.path("hostd.sock"), token: hostToken,
		capacity: fleet.HostCapacity{CPUs: 100000, RamMB: 100 << 20, StorageGB: 100 << 20, VMCount: 100000},
	}, log)
	if err != nil {
		return err
	}
	p, err := newPlane(cmd.Context(), settings, "", log)
	if err != nil {
		return errors.Join(err, h.agent.Close())
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	hostCtx, stopHost := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return h.run(hostCtx) })
	g.Go(func() error {
		defer stopHost()
		return p.serve(ctx, func(url string) {
			g.Go(func() error {
				defer stop()
				if _, err := p.hosts.Register(ctx, hosts.RegisterRequest{
					ID: localHost, URL: h.url, Token: hostToken, Owner: "master", Actor: fleet.ActorMaster,
				}); err != nil {
					return err
				}
				client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: bench.Workers}}
				defer client.CloseIdleConnections()
				b.Target = bench.Target{Base: url, Token: settings.AuthToken, Client: client}
				return b.Run(ctx)
			})
		})
	})
	return g.Wait()
}

func benchSettings(d dataDir) (config.Server, error) {
	var s config.Server
	fs := new(cobra.Command).Flags()
	config.Register(fs)
	for name, v := range map[string]string{"listen": "127.0.0.1:0", "data-dir": string(d), "auth-token": uid.New()} {
		if err := fs.Set(name, v); err != nil {
			return s, err
		}
	}
	none := config.Environ{
		Lookup:   func(string) (string, bool) { return "", false },
		ReadFile: os.ReadFile,
	}
	return config.Load(fs, none)
}

// journalRate measures the store without anything above it: two commits make
// up a create, so two are one sample.
func journalRate(ctx context.Context, path string, n int) (_ bench.Latency, err error) {
	j := sqlite.New(sqlite.Config{Path: path})
	defer func() { err = errors.Join(err, j.Close()) }()
	grant, err := j.Acquire(ctx, "bench")
	if err != nil {
		return bench.Latency{}, err
	}
	if _, err := j.Load(ctx, 0); err != nil {
		return bench.Latency{}, err
	}
	rev := uint64(0)
	commit := func() error {
		rev++
		vm := &fleet.VM{ID: fmt.Sprintf("fuse-%d", rev/2), UID: uid.New(), State: fleet.VMStateProvisioning, TaskID: fmt.Sprint(rev / 2), CreatedAt: time.Now()}
		return j.Commit(ctx, grant.Term, state.Batch{
			ID: uid.New(), Revision: rev, Seq: rev, At: time.Now(),
			Writes: []state.Write{{Table: state.TableVMs, Key: state.Key{vm.ID}, Row: vm}},
			Events: []fleet.Event{{Seq: rev, EntityType: "vm", EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMRunning, At: time.Now()}},
		})
	}
	return bench.Each(ctx, n, 1, func(context.Context, int) error { return errors.Join(commit(), commit()) })
}
