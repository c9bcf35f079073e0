package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/bench"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/uid"
)

// benchCapacity is a host with room for every fleet size one would measure.
var benchCapacity = fleet.HostCapacity{CPUs: 1 << 20, RamMB: 1 << 30, StorageGB: 1 << 20, VMCount: 1 << 20}

// benchStart bounds how long a program of the measurement takes to serve.
const benchStart = 2 * time.Minute

// runProcesses measures a server and a host agent as people run them, each in
// its own process, so that the memory of one is not mixed with another's.
func (b *benchRun) runProcesses(ctx context.Context, d datadir.Dir) (err error) {
	hostDir, err := os.MkdirTemp(cmp.Or(b.hostDir, string(d)), "fuse-bench-host-*")
	if err != nil {
		return fmt.Errorf("make a directory for the host: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(hostDir)) }()
	hostToken, err := d.Secret("host-token")
	if err != nil {
		return err
	}
	if b.Target.Token, err = d.Secret("api-token"); err != nil {
		return err
	}
	host, hostURL, err := startFuse(ctx, d.Path("hostd.log"), "host agent at ", []string{
		"hostd", "--driver", "sim", "--listen", "unix://" + d.Path("hostd.sock"), "--data-dir", hostDir, "--token-file", d.Path("host-token"),
		"--host-cpus", fmt.Sprint(benchCapacity.CPUs), "--host-ram-mb", fmt.Sprint(benchCapacity.RamMB),
		"--host-storage-gb", fmt.Sprint(benchCapacity.StorageGB), "--max-vms", fmt.Sprint(benchCapacity.VMCount),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.stop()) }()
	server, url, err := startFuse(ctx, d.Path("server.log"), "serving ", []string{
		"server", "--listen", "127.0.0.1:0", "--data-dir", d.Path("server"), "--auth-token-file", d.Path("api-token"),
	}, b.store.env...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	b.Target.Base = url
	b.Usage = func(context.Context) ([]bench.Usage, error) {
		s, err := bench.ProcessUsage("server", server.cmd.Process.Pid)
		h, herr := bench.ProcessUsage("host", host.cmd.Process.Pid)
		return []bench.Usage{s, h}, errors.Join(err, herr)
	}
	if _, err := b.Target.Call(ctx, http.MethodPost, "/v1/hosts", map[string]any{"id": localHost, "url": hostURL, "token": hostToken}); err != nil {
		return err
	}
	return b.Run(ctx)
}

// child is a program of the measurement.
type child struct {
	cmd   *exec.Cmd
	log   string // path of what it writes
	ended chan error
}

// startFuse runs this very binary, with its output in a file, and waits for
// the line in which it says where it serves.
func startFuse(ctx context.Context, logPath, announces string, args []string, env ...string) (*child, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program: %w", err)
	}
	log, err := os.Create(logPath)
	if err != nil {
		return nil, "", fmt.Errorf("start %s: %w", args[0], err)
	}
	defer log.Close()
	c := &child{cmd: exec.CommandContext(context.WithoutCancel(ctx), self, args...), log: logPath, ended: make(chan error, 1)}
	c.cmd.Stderr, c.cmd.Env = log, childEnv(env)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C is ours to pass on
	if err := c.cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("start %s: %w", args[0], err)
	}
	go func() { c.ended <- c.cmd.Wait() }()
	url, err := c.announced(ctx, announces)
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("start %s: %w", args[0], err), c.stop())
	}
	return c, url, nil
}

// announced looks for the announcement in the log and returns the word that
// follows it.
func (c *child) announced(ctx context.Context, announces string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, benchStart)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		text, err := os.ReadFile(c.log)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, announces); ok && strings.HasSuffix(line, "\n") {
				url, _, _ := strings.Cut(strings.TrimSpace(rest), ",")
				return url, nil
			}
		}
		select {
		case <-look.C:
		case err := <-c.ended:
			c.ended <- err
			return "", fmt.Errorf("it ended: %s", text[max(0, len(text)-2000):])
		case <-ctx.Done():
			return "", fmt.Errorf("it does not say %q: %w", announces, ctx.Err())
		}
	}
}

func (c *child) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end a program of the measurement: %w", err)
	}
	return <-c.ended
}

// runInProcess measures with everything in one process, as fuse dev has it.
func (b *benchRun) runInProcess(ctx context.Context, d datadir.Dir) error {
	serving.SaveMemory()
	settings, err := benchSettings(d)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	hostToken := uid.New()
	h, err := openHost(ctx, hostOptions{
		dir: d, driver: "sim", listen: "unix://" + d.Path("hostd.sock"), token: hostToken, capacity: benchCapacity,
	}, log)
	if err != nil {
		return err
	}
	p, err := plane.New(ctx, plane.Config{Settings: settings, Version: version, Image: "", Log: log})
	if err != nil {
		return errors.Join(err, h.agent.Close())
	}
	b.Usage = func(context.Context) ([]bench.Usage, error) {
		u, err := bench.ProcessUsage("server, host and client", os.Getpid())
		return []bench.Usage{u}, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	hostCtx, stopHost := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return h.run(hostCtx) })
	g.Go(func() error {
		defer stopHost()
		return p.Serve(ctx, func(url string) {
			g.Go(func() error {
				defer stop()
				if _, err := p.Hosts.Register(ctx, hosts.RegisterRequest{
					ID: localHost, URL: h.url, Token: hostToken, Owner: "master", Actor: fleet.ActorMaster,
				}); err != nil {
					return err
				}
				b.Target.Base, b.Target.Token = url, settings.AuthToken
				return b.profiled(func() error { return b.Run(ctx) })
			})
		})
	})
	return g.Wait()
}

// profiled writes profiles of run, if a directory was given for them.
func (b *benchRun) profiled(run func() error) (err error) {
	if b.profile == "" {
		return run()
	}
	cpu, err := os.Create(datadir.Dir(b.profile).Path("cpu.pprof"))
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return errors.Join(fmt.Errorf("profile: %w", err), cpu.Close())
	}
	err = run()
	pprof.StopCPUProfile()
	err = errors.Join(err, cpu.Close())
	heap, herr := os.Create(datadir.Dir(b.profile).Path("heap.pprof"))
	if herr != nil {
		return errors.Join(err, herr)
	}
	runtime.GC() // so that the profile shows what is live
	return errors.Join(err, pprof.WriteHeapProfile(heap), heap.Close())
}

func benchSettings(d datadir.Dir) (config.Server, error) {
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
