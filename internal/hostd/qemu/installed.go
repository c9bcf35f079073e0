package qemu

import (
	"context"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

// Installed is an error, with the remedy, when this host has no QEMU for its
// own architecture.
func Installed() error {
	m, err := vmm.Host()
	if err != nil {
		return err
	}
	_, err = (&prober{machine: m}).program()
	return err
}

// Accelerator says how guests run on this host, with which QEMU, and why not
// with KVM if they do not. It boots a guest in order to know, once for each boot
// of the host.
func Accelerator(ctx context.Context, cfg Config) (accelerator, version, why string, err error) {
	cfg = cfg.withDefaults()
	b := &prober{cfg: cfg, lock: make(chan struct{}, 1), first: probeFirst, total: probeTotal}
	if b.machine, err = vmm.Host(); err == nil {
		b.bootID, err = proc.BootID()
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(cfg.Dir, "qemu"), 0o700)
	}
	if err != nil {
		return "", "", "", err
	}
	p, err := b.accelerator(ctx)
	return p.Accel, p.Version, p.Why, err
}
