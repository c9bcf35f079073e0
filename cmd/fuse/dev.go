package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/internal/hosts"
)

// localHost is the id under which fuse dev registers its own machine.
const localHost = "local"

// dev is one run of fuse dev: a server and a host agent in one process, which
// talk over the same protocol as they would across a network.
type dev struct {
	streams  cli.Streams
	settings config.Server
	dir      datadir.Dir
	host     hostFlags
	demo     bool
	image    string
}

func devCmd(streams cli.Streams) *cobra.Command {
	d := &dev{streams: streams}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run everything on this machine, in one process", GroupID: "ops", Args: cobra.NoArgs,
		Long: "dev runs the control plane and the host agent of this machine in one process. Its\n" +
			"data, the API token among them, is in --data-dir; the command line in another\n" +
			"terminal finds it through the context 'local'. VMs go on running when dev stops,\n" +
			"and dev finds them again when it starts.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			serving.SaveMemory()
			if err := d.prepare(cmd); err != nil {
				return err
			}
			return d.run(cmd.Context())
		},
	}
	registerSettings(cmd)
	d.host.register(cmd)
	cmd.Flags().BoolVar(&d.demo, "demo", false, "first create, use and destroy an environment before your eyes")
	cmd.Flags().StringVar(&d.image, "image", "minimal", "image that environments boot unless they name one; built if it is missing")
	return cmd
}

// prepare reads the settings. The token is the data directory's own unless one
// is given, which then becomes it: dev never serves without one, and the
// context that it writes names that file.
func (d *dev) prepare(cmd *cobra.Command) error {
	var err error
	if d.settings, err = loadSettings(cmd); err != nil {
		return err
	}
	d.dir = datadir.Dir(d.settings.DataDir)
	if d.settings.AuthToken != "" {
		return d.dir.Keep("token", d.settings.AuthToken)
	}
	d.settings.AuthToken, err = d.dir.Secret("token")
	return err
}

func (d *dev) run(ctx context.Context) (err error) {
	if d.host.driver == "qemu" {
		if err := qemu.Installed(); err != nil {
			return err
		}
	}
	log, closeLog, err := openLog(d.dir.Path("fuse.log"), d.settings, d.streams.Err)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	if err := d.buildImage(ctx); err != nil {
		return err
	}
	hostToken, err := d.dir.Secret("hostd-token")
	if err != nil {
		return err
	}
	opts := d.host.options(d.dir, "unix://"+d.dir.Path("hostd.sock"), hostToken)
	h, err := openHost(ctx, opts, log)
	if err != nil {
		return err
	}
	p, err := plane.New(ctx, plane.Config{Settings: d.settings, Version: version, Image: d.image, Log: log})
	if err != nil {
		return errors.Join(err, h.agent.Close())
	}

	registering := "this machine is not registered yet"
	p.NotYet.Store(&registering)
	var unready error
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	// The host agent outlives the server, which still has work to settle with
	// it while it stops.
	hostCtx, stopHost := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return h.run(hostCtx) })
	g.Go(func() error {
		defer stopHost()
		return p.Serve(ctx, func(url string) {
			if err := d.ready(ctx, p, h, hostToken, url); err != nil && ctx.Err() == nil {
				unready = err
				stop()
			}
		})
	})
	return errors.Join(g.Wait(), unready)
}

// buildImage makes sure that the default image is there before anything boots.
func (d *dev) buildImage(ctx context.Context) error {
	if d.host.driver != "qemu" {
		return nil
	}
	store, err := openImages(d.dir, d.host.images)
	if err != nil {
		return err
	}
	start, told := time.Now(), false
	say := func(msg string) {
		if !told {
			fmt.Fprintf(d.streams.Err, "building image %s (once)\n", d.image)
			told = true
		}
		fmt.Fprintln(d.streams.Err, "  "+msg)
	}
	if _, err := store.Kernel(ctx, say); err != nil {
		return err
	}
	if _, there := store.Get(d.image); oci.IsReference(d.image) || there == nil && !image.BuiltIn(d.image) {
		return nil // its host pulls it, or somebody put it there
	}
	_, err = store.Build(ctx, d.image, say)
	if err == nil && told {
		fmt.Fprintf(d.streams.Err, "image %s is ready (%.1f s)\n", d.image, time.Since(start).Seconds())
	}
	return err
}

// ready registers this machine, tells how to reach the server, and shows what
// it does if asked to. Without its machine dev is of no use and ends; what goes
// wrong after that is said, and the server stays up.
func (d *dev) ready(ctx context.Context, p *plane.Plane, h *host, token, url string) error {
	say := func(format string, args ...any) { fmt.Fprintf(d.streams.Err, format+"\n", args...) }
	reg, err := p.Hosts.Register(ctx, hosts.RegisterRequest{
		ID: localHost, URL: h.url, Token: token, Owner: "master", Actor: fleet.ActorMaster,
	})
	var conflict *fleet.Error
	if errors.As(err, &conflict) && conflict.Code == fleet.CodeConflict { // DIR/host was made anew
		err = conflict.With(fleet.DetailRemedy, fmt.Sprintf(
			"use another --data-dir; or, if the VMs of the old one are gone, run 'fuse server --data-dir %s' and 'fuse host rm %s' once", d.dir, localHost))
	}
	if err != nil {
		return fmt.Errorf("register this machine: %w", err)
	}
	p.NotYet.Store(nil)
	say("serving %s, version %s", url, version)
	say("host local: %s", describeHost(reg))
	for _, m := range reg.Facts.Missing {
		say("  missing: %s", m)
	}
	path, before, err := writeContext(localHost, url, d.dir.Path("token"))
	switch {
	case err != nil:
		say("the command line will need --url %s --token-file %s: %v", url, d.dir.Path("token"), err)
	case before != "" && before != localHost:
		say("context 'local' of %s is now in use; 'fuse context use %s' goes back", path, before)
	default:
		say("context 'local' is in %s", path)
	}
	say("log in %s", d.dir.Path("fuse.log"))
	if d.demo {
		if err := d.show(ctx, url); err != nil && ctx.Err() == nil {
			say("demonstration: %v", err)
			return nil
		}
	}
	if ctx.Err() == nil {
		say("ready. In another terminal: %s run -- uname -a", os.Args[0])
		say("^C stops the server; environments go on running and are found again.")
	}
	return nil
}

func describeHost(h fleet.Host) string {
	parts := []string{h.Facts.Driver}
	if v := h.Facts.DriverVersion; v != "" {
		parts = append(parts, v)
	}
	if a := h.Facts.Accelerator; a != "" {
		parts = append(parts, "accelerator "+a)
	}
	c := h.Capacity
	parts = append(parts, fmt.Sprintf("%d CPUs, %d MB of memory, %d GB of disk, %d VMs at most", c.CPUs, c.RamMB, c.StorageGB, c.VMCount))
	return strings.Join(parts, ", ")
}
