package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/cmd/fuse/beside"
	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/bench/snapshots"
	"github.com/fusevm/fuse/internal/cli"
)

// benchSnapshots is one measurement of captures.
type benchSnapshots struct {
	snapshots.Config
	streams               cli.Streams
	url, token, tokenFile string
	images, dir           string
	asJSON                bool
}

func benchSnapshotsCmd(streams cli.Streams) *cobra.Command {
	b := &benchSnapshots{streams: streams}
	cmd := &cobra.Command{
		Use: "snapshots", Short: "Measure golden creates, live snapshots and forks of a running server", Args: cobra.NoArgs,
		Long: "snapshots makes machines on a server whose one host is this machine: cold, from a\n" +
			"golden capture, and as live forks, each up to its first command; it takes live\n" +
			"snapshots and tells how long machine and processes stood still, and compares the\n" +
			"memory of forks with that of boots. A bare QEMU and a container of the same image\n" +
			"are measured beside them if --images names the host's data directory.",
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&b.url, "url", "http://127.0.0.1:8080", "`URL` of the server")
	f.StringVar(&b.token, "token", "", "token of the server (prefer --token-file)")
	f.StringVar(&b.tokenFile, "token-file", "", "`file` that holds the token of the server")
	f.StringVar(&b.images, "images", "", "data `directory` of the host, whose kernel and image the bare QEMU and the container have")
	f.StringVar(&b.Image, "image", "minimal", "image that is booted")
	f.IntSliceVar(&b.Sizes, "ram-mb", []int{256, 2048}, "sizes of guest memory")
	f.IntVar(&b.Times, "times", 3, "repeats of each create and fork")
	f.IntVar(&b.Stops, "stops", 10, "live snapshots, of a source and of a fork")
	f.IntVar(&b.Forks, "forks", 16, "forks at once")
	f.IntVar(&b.Boots, "boots", 16, "cold creates at once, to compare their memory with (0: none)")
	f.StringVar(&b.dir, "tmp-dir", "", "`directory` for files of the bare QEMU and the container")
	f.BoolVar(&b.asJSON, "json", false, "print the report as JSON")
	return cmd
}

func (b *benchSnapshots) run(ctx context.Context) (err error) {
	if b.Times < 1 || b.Stops < 1 || b.Forks < 1 || b.Boots < 0 || len(b.Sizes) == 0 {
		return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("--times, --stops, --forks and --ram-mb take at least 1")}
	}
	token, err := givenSecret("--token", b.token, b.tokenFile)
	if err != nil {
		return err
	}
	if b.API.API, err = client.New(b.url, client.Options{Token: token}); err != nil {
		return err
	}
	b.Progress = func(what string) { fmt.Fprintln(b.streams.Err, what) }
	clean, err := b.besides(ctx)
	if err != nil {
		return err
	}
	report, err := snapshots.Run(ctx, b.Config)
	if err := errors.Join(err, clean(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	if b.asJSON {
		enc := json.NewEncoder(b.streams.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}
	return report.Print(b.streams.Out)
}

// besides prepares what is measured beside it.
func (b *benchSnapshots) besides(ctx context.Context) (clean func(context.Context) error, err error) {
	dir, err := os.MkdirTemp(b.dir, "fuse-bench-*")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the measurement: %w", err)
	}
	remove := func(context.Context) error { return os.RemoveAll(dir) }
	if b.images == "" {
		why := "--images does not say where the host keeps kernel and image"
		b.Beside = []snapshots.Beside{{Name: "bare QEMU", Why: why}, {Name: "docker run", Why: why}}
		return remove, nil
	}
	if _, err := os.Stat(b.images); err != nil {
		return nil, errors.Join(fmt.Errorf("--images: %w", err), remove(ctx))
	}
	images, err := filepath.Abs(b.images)
	if err != nil {
		return nil, errors.Join(err, remove(ctx))
	}
	store, err := openImages(datadir.Dir(images), imageOptions{})
	if err != nil {
		return nil, errors.Join(err, remove(ctx))
	}
	container, removeContainer := beside.Docker(ctx, store, b.Image, dir)
	b.Beside = []snapshots.Beside{beside.BareQEMU(ctx, store, b.Image, dir), container}
	return func(ctx context.Context) error { return errors.Join(removeContainer(ctx), remove(ctx)) }, nil
}
