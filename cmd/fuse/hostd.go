package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/tracing"
)

// hostOptions are what a host agent is started with.
type hostOptions struct {
	dir        datadir.Dir
	driver     string // qemu or sim
	simSpec    string
	listen     string // as hostwire.ServerConfig.Addr
	token      string
	images     imageOptions
	keep       imageKeep
	capacity   fleet.HostCapacity
	overcommit float64
	ports      portFlags
	golden     goldenFlags
}

// goldenFlags bound what golden snapshots take, and the memory of the others.
type goldenFlags struct{ diskGB, ramMB, othersMB int }

func (f goldenFlags) check() error {
	if f.diskGB < 0 || f.ramMB < 0 || f.othersMB < 0 {
		return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("--golden-disk-gb, --golden-ram-mb and --snapshot-ram-mb are 0 or more; without disk no golden snapshots are made")}
	}
	return nil
}

// othersRAM is hostd's: there zero is the default.
func (f goldenFlags) othersRAM() int64 {
	if f.othersMB == 0 {
		return -1
	}
	return int64(f.othersMB) << 20
}

// hostFlags are the flags that hostd and dev share.
type hostFlags struct {
	driver, sim string
	images      imageOptions
	keep        imageKeep
	capacity    fleet.HostCapacity
	overcommit  float64
	ports       portFlags
	golden      goldenFlags
}

func (f *hostFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.driver, "driver", "qemu", "what runs the VMs: qemu, or sim (no VMs: for tests and demonstrations)")
	s.StringVar(&f.sim, "sim", "", "options of --driver sim, such as boot=200ms..400ms,fail=create:0.01,vms=10000")
	f.images.register(s)
	f.keep.register(s)
	f.ports.register(s)
	s.IntVar(&f.capacity.CPUs, "host-cpus", 0, "CPUs to hand out (default: the machine's)")
	s.Float64Var(&f.overcommit, "cpu-overcommit", 1, "how many `times` over the CPUs are handed out; memory never is")
	s.IntVar(&f.capacity.RamMB, "host-ram-mb", 0, "memory to hand out, in `MiB` (default: the machine's)")
	s.IntVar(&f.capacity.StorageGB, "host-storage-gb", 0, "disk to hand out, in `GiB` (default: what is free at the start)")
	s.IntVar(&f.capacity.VMCount, "max-vms", 0, "most VMs at a time")
	s.IntVar(&f.golden.diskGB, "golden-disk-gb", 8, "disk for golden snapshots, from which VMs start without booting, in `GiB`; 0: none")
	s.IntVar(&f.golden.ramMB, "golden-ram-mb", 1024, "memory that golden snapshots keep loaded, in `MiB`")
	s.IntVar(&f.golden.othersMB, "snapshot-ram-mb", 1024, "memory that other live snapshots keep loaded, which forks share, in `MiB`")
}

func (f *hostFlags) options(dir datadir.Dir, listen, token string) hostOptions {
	return hostOptions{
		dir: dir, driver: f.driver, simSpec: f.sim, listen: listen, token: token,
		images: f.images, keep: f.keep, capacity: f.capacity, overcommit: f.overcommit, ports: f.ports, golden: f.golden,
	}
}

// tracesTime is how long the end waits for the collector of traces.
const tracesTime = 2 * time.Second

// host is a host agent that accepts calls.
type host struct {
	url, certSHA256 string
	agent           *hostd.Host
	server          *hostwire.Server
	images          imageKeeper
	tracer          *tracing.Tracer
	log             *slog.Logger
	joining         func(context.Context) error // nil: it is registered otherwise
}

// openHost makes the agent and its listener; run serves them.
func openHost(ctx context.Context, o hostOptions, log *slog.Logger) (*host, error) {
	if err := errors.Join(checkCapacity(o.capacity), checkOvercommit(o.overcommit), o.ports.check(), o.golden.check()); err != nil {
		return nil, err
	}
	images, err := openImages(o.dir, o.images)
	if err != nil {
		return nil, err
	}
	drv, err := openDriver(images, o, log)
	if err != nil {
		return nil, err
	}
	tracer, err := tracing.New(ctx, tracing.Config{Service: "fuse-hostd", Version: version, Logger: log})
	if err != nil {
		return nil, errors.Join(err, drv.Close())
	}
	agent, err := hostd.New(hostd.Config{
		Dir: o.dir.Path("host"), Driver: drv, Token: o.token, Version: version, Capacity: o.capacity, Services: []hostd.Service{imageService(images)}, CPUOvercommit: o.overcommit, Logger: log, Tracer: tracer,
		PortAddress: o.ports.address, GoldenDisk: int64(o.golden.diskGB) << 30, GoldenRAM: int64(o.golden.ramMB) << 20, SnapshotRAM: o.golden.othersRAM(),
	})
	if err != nil {
		return nil, errors.Join(err, drv.Close(), tracer.Close(ctx))
	}
	srv, err := hostwire.Listen(hostwire.ServerConfig{
		Addr: o.listen, Handler: agent.Handler(), CertDir: o.dir.Path("host", "tls"), Logger: log,
	})
	if err != nil {
		return nil, errors.Join(err, agent.Close(), tracer.Close(ctx))
	}
	return &host{url: srv.URL(), certSHA256: srv.CertSHA256(), agent: agent, server: srv, images: imageKeeper{images, o.keep, log}, tracer: tracer, log: log}, nil
}

// checkCapacity refuses what could be no machine's; zero means the machine's.
func checkCapacity(c fleet.HostCapacity) error {
	for flag, n := range map[string]int{"host-cpus": c.CPUs, "host-ram-mb": c.RamMB, "host-storage-gb": c.StorageGB, "max-vms": c.VMCount} {
		if n < 0 {
			return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("--%s is %d; give 1 or more, or leave it out for what the machine has", flag, n)}
		}
	}
	return nil
}

// checkOvercommit refuses factors that mean nothing; zero is the default.
func checkOvercommit(f float64) error {
	if f == 0 || f >= 1 && f <= fleet.MaxCPUOvercommit {
		return nil
	}
	return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("--cpu-overcommit is %g; give a number from 1, which hands each CPU out once, to %d", f, fleet.MaxCPUOvercommit)}
}

func openDriver(images *image.Store, o hostOptions, log *slog.Logger) (driver.Driver, error) {
	switch o.driver {
	case "qemu":
		registry, err := hostd.RegistryID(o.dir.Path("host"))
		if err != nil {
			return nil, err
		}
		return qemu.New(qemu.Config{Dir: o.dir.Path("host"), Registry: registry, Images: images, Ports: o.ports.span(), Logger: log})
	case "sim":
		opts, err := sim.ParseOptions(o.simSpec)
		if err != nil {
			return nil, err
		}
		opts.Ports = o.ports.span()
		return sim.New(opts)
	}
	return nil, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("driver %q is not known: use qemu or sim", o.driver)}
}

// run serves until ctx ends. VMs go on running.
func (h *host) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.agent.Run(ctx) })
	g.Go(func() error { return h.server.Serve(ctx) })
	if h.joining != nil {
		g.Go(func() error { return h.joining(ctx) })
	}
	g.Go(func() error { h.images.run(ctx); return nil })
	err := g.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	err = errors.Join(err, h.agent.Close())
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesTime)
	defer cancel()
	if err := h.tracer.Close(last); err != nil {
		h.log.Warn("last traces not delivered", slog.Any("error", err))
	}
	return err
}

func hostdCmd(streams cli.Streams) *cobra.Command {
	var f hostFlags
	var j joinFlags
	var dir, listen, token, tokenFile string
	cmd := &cobra.Command{
		Use: "hostd", Short: "Run the host agent of this machine", GroupID: "ops", Args: cobra.NoArgs,
		Long: "hostd runs the VMs of this machine for a server elsewhere. It prints what\n" +
			"'fuse host register' needs; with --join it registers itself. VMs go on running when\n" +
			"it stops, and it finds them again when it starts.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			serving.SaveMemory()
			joins, err := j.config()
			if err != nil {
				return err
			}
			d, err := datadir.Open(dir)
			if err != nil {
				return err
			}
			if token, err = givenSecret("--token", token, tokenFile); err != nil {
				return err
			}
			from := "as given"
			if token == "" {
				if token, err = d.Secret("hostd-token"); err != nil {
					return err
				}
				from = "in " + d.Path("hostd-token")
			}
			log := slog.New(slog.NewTextHandler(streams.Err, nil))
			h, err := openHost(cmd.Context(), f.options(d, listen, token), log)
			if err != nil {
				return err
			}
			scheme, addr, _ := strings.Cut(h.url, "://")
			fmt.Fprintf(streams.Err, "host agent at %s://%s, token %s\n", scheme, serving.Reachable(addr), from)
			if h.certSHA256 != "" {
				fmt.Fprintf(streams.Err, "certificate %s\n", h.certSHA256)
			}
			if err := h.joins(cmd.Context(), &j, joins, token, d.Path("host")); err != nil {
				return errors.Join(err, h.agent.Close())
			}
			return h.run(cmd.Context())
		},
	}
	s := cmd.Flags()
	s.StringVar(&dir, "data-dir", datadir.Default(), "`directory` of the host's data")
	s.StringVar(&listen, "listen", "127.0.0.1:8090", "`address`: host:port (TLS beyond loopback) or unix:///path")
	s.StringVar(&token, "token", "", "token that the server must show (default: one is made and kept; prefer --token-file)")
	s.StringVar(&tokenFile, "token-file", "", "`file` that holds the token")
	f.register(cmd)
	j.register(cmd)
	return cmd
}

// givenSecret reads a secret given as a flag or in a file, not both.
func givenSecret(flag, plain, file string) (string, error) {
	switch {
	case plain != "" && file != "":
		return "", &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("%s and %s-file are both given", flag, flag)}
	case file != "":
		return readSecretFile(file)
	}
	return plain, nil
}
