package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/internal/bench"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

func benchCmd(streams cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure Fuse on this machine", GroupID: "ops", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(benchControlPlaneCmd(streams), benchRestartCmd(streams), benchGuestCmd(streams), benchSnapshotsCmd(streams))
	return cmd
}

// benchRun is one measurement of a control plane.
type benchRun struct {
	bench.ControlPlane
	streams               cli.Streams
	dir, hostDir          string
	url, token, tokenFile string
	inProcess, postgres   bool
	store                 benchStore
	profile               string
}

func benchControlPlaneCmd(streams cli.Streams) *cobra.Command {
	b := &benchRun{streams: streams}
	cmd := &cobra.Command{
		Use: "control-plane", Short: "Measure creates and reads at growing fleet sizes, with simulated machines", Args: cobra.NoArgs,
		Long: "control-plane starts a server with durable SQLite and a simulated host, each a\n" +
			"process of its own, and measures them as a client of the API. The disk's own\n" +
			"fsync and the journal alone are measured beside it. With --url it measures a\n" +
			"server that runs already and has no environments yet.",
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&b.dir, "data-dir", ".", "`directory` whose disk is measured; a temporary one is made in it")
	f.StringVar(&b.hostDir, "host-data-dir", "", "`directory` for the simulated host, which has a disk of its own in a real fleet (default: as --data-dir)")
	f.IntSliceVar(&b.Sizes, "sizes", []int{0, 1000, 10000}, "fleet sizes, rising")
	f.IntVar(&b.Serial, "serial", 300, "creates in a row, a size")
	f.IntVar(&b.Burst, "burst", 2000, "creates by 16 workers, a size")
	f.IntVar(&b.Reads, "reads", 100, "repeats of each read")
	f.BoolVar(&b.postgres, "postgres", false, "keep the state in the database that DATABASE_URL names, in a schema that is dropped afterwards")
	f.StringVar(&b.url, "url", "", "measure the server at this `URL` instead of one of our own")
	f.StringVar(&b.token, "token", "", "token of that server (prefer --token-file)")
	f.StringVar(&b.tokenFile, "token-file", "", "`file` that holds the token of that server")
	f.BoolVar(&b.inProcess, "in-process", false, "run server, host and client in one process, for profiles")
	f.StringVar(&b.profile, "profile", "", "`directory` for cpu.pprof and heap.pprof, with --in-process")
	return cmd
}

func (b *benchRun) run(ctx context.Context) (err error) {
	b.Out = b.streams.Out
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: bench.Workers}}
	defer client.CloseIdleConnections()
	b.Target.Client = client
	if b.url != "" {
		return b.runRemote(ctx)
	}
	temporary, err := os.MkdirTemp(b.dir, "fuse-bench-*")
	if err != nil {
		return fmt.Errorf("make a directory for the measurement: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	d, err := datadir.Open(temporary)
	if err != nil {
		return err
	}
	b.DataDir, b.JournalRate = string(d), func(ctx context.Context, n int) (bench.Latency, error) {
		return journalRate(ctx, b.store.journal(), n)
	}
	if b.store, err = b.openStore(ctx, d); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.store.clean(context.WithoutCancel(ctx))) }()
	if b.inProcess {
		return b.runInProcess(ctx, d)
	}
	return b.runProcesses(ctx, d)
}

// runRemote measures a server that somebody else runs.
func (b *benchRun) runRemote(ctx context.Context) (err error) {
	b.Target.Base = strings.TrimSuffix(b.url, "/")
	if b.Target.Token, err = givenSecret("--token", b.token, b.tokenFile); err != nil {
		return err
	}
	b.Usage, b.Clean = b.Target.MetricsUsage, true
	return b.Run(ctx)
}

// journalRate measures the store without anything above it: two commits make
// up a create, so two are one sample.
func journalRate(ctx context.Context, j plane.Storage, n int) (_ bench.Latency, err error) {
	defer func() { err = errors.Join(err, j.Close()) }()
	grant, err := j.Acquire(ctx, state.Candidate{Name: "bench"})
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
