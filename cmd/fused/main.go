// A machine that is thawed has better to do than to look for more processors.
//
//go:debug updatemaxprocs=0

// Command fused is the guest agent: the first process of every VM. It boots
// the machine from its initramfs, serves the host and never ends before the
// machine does.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/guestd"
	"github.com/fusevm/fuse/internal/guestd/boot"
	"github.com/fusevm/fuse/internal/guestd/container"
	"github.com/fusevm/fuse/internal/guestd/process"
)

var version = "dev"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println("fused", version)
		return
	}
	if len(os.Args) > 2 && os.Args[1] == container.Verb {
		os.Exit(container.Main(os.Args[2:]))
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "fused is the first process of a VM and does nothing elsewhere; `fuse` starts VMs")
		os.Exit(2)
	}
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: terse})).With("from", "fused")
	slog.SetDefault(log)
	ctx := context.Background()
	if err := run(ctx, log); err != nil {
		boot.Fail(ctx, log, err)
	}
	select {} // if PID 1 returned, the kernel would panic over it
}

// terse leaves out the time: the machine's clock may be wrong, and every line
// that matters says how long the machine has been up.
func terse(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// run boots, serves, and returns once the machine has been told to end.
func run(ctx context.Context, log *slog.Logger) error {
	machine, err := boot.Start(ctx, log)
	if err != nil {
		return err
	}
	cfg := machine.Config
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGPWR)
	defer stop()

	var own sync.WaitGroup
	reaper := process.NewInitReaper()
	reaping, endReaping := context.WithCancel(context.WithoutCancel(ctx))
	own.Go(func() { reaper.Run(reaping) })
	defer own.Wait()
	defer endReaping()

	runner, err := process.NewRunner(process.Config{
		Reaper: reaper, CgroupDir: boot.CgroupDir,
		Env: cfg.Image.Env, Workdir: cfg.Image.Workdir, User: cfg.Image.User,
	})
	if err != nil {
		return err
	}
	late := sync.OnceFunc(func() { machine.LoadLate(reaping) })
	capture, err := captured(cfg, late, log)
	if err != nil {
		return err
	}
	server, err := guestd.New(guestd.Config{
		VMID: cfg.VMID, Token: cfg.Token, Rotated: machine.Rotated, CertPEM: []byte(cfg.CertPEM), KeyPEM: []byte(cfg.KeyPEM),
		Contain: container.New(cfg.Services).Contain,
		Version: version, BootPhases: phases(machine.Phases), Program: append(slices.Clone(cfg.Image.Entrypoint), cfg.Image.Cmd...), Shutdown: stop, Log: log,
		Capture: capture,
	}, runner)
	if err != nil {
		return err
	}
	listen := net.ListenConfig{KeepAlive: -1} // the host asks by HTTP/2 whether the other is there
	listen.SetMultipathTCP(false)
	link, err := listen.Listen(ctx, "tcp", cfg.LinkAddr())
	if err != nil {
		return fmt.Errorf("listen to the host: %w", err)
	}
	agent, err := listen.Listen(ctx, "tcp", cfg.AgentAddr())
	if err != nil {
		return errors.Join(fmt.Errorf("listen on the published port: %w", err), link.Close())
	}
	log.InfoContext(ctx, "ready", "vm_id", cfg.VMID, "version", version, "up_ms", boot.Uptime().Milliseconds())
	own.Go(func() { settle(reaping, late, server, log) })
	if err := server.Serve(ctx, link, agent); err != nil {
		return err
	}
	runner.Close()
	return boot.PowerOff(reaping, log)
}

// settleAfter bounds the wait for the first command, which tends to come at
// once and should have the machine's processor for itself.
const settleAfter = 2 * time.Second

// settle does what nothing waits for.
func settle(ctx context.Context, late func(), server *guestd.Server, log *slog.Logger) {
	timer := time.NewTimer(settleAfter)
	defer timer.Stop()
	select {
	case <-server.Used():
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	late()
	if err := server.CheckCertificate(); err != nil {
		log.ErrorContext(ctx, "the published port answers nobody", "error", err)
	}
}

func phases(of []boot.Phase) []guestd.BootPhase {
	var out []guestd.BootPhase
	for _, p := range of {
		out = append(out, guestd.BootPhase{Name: p.Name, Took: p.Took})
	}
	return out
}
