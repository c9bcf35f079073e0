// Command child is a host agent for tests that kill it, with simulated VMs or,
// given images, with real ones.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/hostwire"
)

func main() {
	dir := flag.String("dir", "", "data directory")
	addr := flag.String("addr", "", "address to serve on")
	token := flag.String("token", "", "bearer token")
	options := flag.String("sim", "", "options of the sim driver")
	images := flag.String("images", "", "directory of images for real VMs; empty: they are simulated")
	fused := flag.String("fused", "", "guest agent of real VMs")
	ram := flag.Int("ram", 0, "memory to hand out, in MiB; 0: the driver's")
	flag.Parse()
	open := func() (driver.Driver, error) { return simulated(*dir, *options) }
	if *images != "" {
		open = func() (driver.Driver, error) { return realVMs(*dir, *images, *fused) }
	}
	if err := run(*dir, *addr, *token, *ram, open); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

func simulated(dir, options string) (driver.Driver, error) {
	opts, err := sim.ParseOptions(options)
	if err != nil {
		return nil, err
	}
	opts.ObjectDir = filepath.Join(dir, "objects")
	return sim.New(opts)
}

// bootTimeout is of a machine that is busy with other tests.
const bootTimeout = 8 * time.Minute

func realVMs(dir, images, fused string) (driver.Driver, error) {
	data := filepath.Join(dir, "host")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	registry, err := hostd.RegistryID(data)
	if err != nil {
		return nil, err
	}
	store, err := image.Open(image.Config{Dir: images, Fused: fused})
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return qemu.New(qemu.Config{Dir: data, Registry: registry, Images: store, Logger: log, BootTimeout: bootTimeout})
}

func run(dir, addr, token string, ramMB int, open func() (driver.Driver, error)) error {
	drv, err := open()
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
