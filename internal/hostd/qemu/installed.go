package qemu

import (
	"context"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/accel"
)

func (c Config) prober(m vmm.Machine, bootID string) *accel.Prober {
	return accel.New(accel.Config{
		Dir: filepath.Join(c.Dir, "qemu"), QEMU: c.QEMU, Accel: c.Accel, Images: c.Images, UID: c.UIDBase, Logger: c.Logger,
	}, m, bootID)
}

// Installed is an error, with the remedy, when this host has no QEMU for its
// own architecture.
func Installed() error {
	m, err := vmm.Host()
	if err != nil {
		return err
	}
	_, err = accel.New(accel.Config{}, m, "").Program()
	return err
}

// Accelerator says how guests run on this host, with which QEMU, and why not
// with KVM if they do not. It boots a guest in order to know, once for each boot
// of the host.
func Accelerator(ctx context.Context, cfg Config) (accelerator, version, why string, err error) {
	cfg = cfg.withDefaults()
	m, err := vmm.Host()
	if err != nil {
		return "", "", "", err
	}
	bootID, err := proc.BootID()
	if err == nil {
		err = os.MkdirAll(filepath.Join(cfg.Dir, "qemu"), 0o700)
	}
	if err != nil {
		return "", "", "", err
	}
	p, err := cfg.prober(m, bootID).Accelerator(ctx)
	return p.Accel, p.Version, p.Why, err
}
