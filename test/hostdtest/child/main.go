// Command child is a host agent with simulated VMs for tests that kill it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/hostwire"
)

func main() {
	dir := flag.String("dir", "", "data directory")
	addr := flag.String("addr", "", "address to serve on")
	token := flag.String("token", "", "bearer token")
	options := flag.String("sim", "", "options of the sim driver")
	ram := flag.Int("ram", 0, "memory to hand out, in MiB; 0: the driver's")
	flag.Parse()
	if err := run(*dir, *addr, *token, *options, *ram); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

func run(dir, addr, token, options string, ramMB int) error {
	opts, err := sim.ParseOptions(options)
	if err != nil {
		return err
	}
	opts.ObjectDir = filepath.Join(dir, "objects")
	drv, err := sim.New(opts)
	if err != nil {
		return err
	}
	h, err := hostd.New(hostd.Config{Dir: filepath.Join(dir, "host"), Driver: drv, Token: token, Capacity: fleet.HostCapacity{RamMB: ramMB}})
	if err != nil {
		return err
	}
	srv, err := hostwire.Listen(hostwire.ServerConfig{Addr: addr, Handler: h.Handler()})
	if err != nil {
		return errors.Join(err, h.Close())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var wg sync.WaitGroup
	var ran, served error
	wg.Go(func() { ran = h.Run(ctx); stop() })
	wg.Go(func() { served = srv.Serve(ctx); stop() })
	wg.Wait()
	return errors.Join(ran, served, h.Close())
}
