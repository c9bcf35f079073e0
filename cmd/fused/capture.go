package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd"
	"github.com/fusevm/fuse/internal/guestd/boot"
	"github.com/fusevm/fuse/internal/guestd/freeze"
	"github.com/fusevm/fuse/internal/guestd/renew"
	"github.com/fusevm/fuse/internal/guestwire"
)

// captured prepares the machine for captures, and renews what a disk that was
// another machine's brought along. late does what the boot left for later.
func captured(cfg guestwire.BootConfig, late func(), log *slog.Logger) (*guestd.Capture, error) {
	machine := renew.Machine{Root: "/", Kernel: renew.Linux{Interface: boot.InterfaceName}}
	copied, err := machine.Copied(cfg.MachineID)
	if err != nil {
		return nil, err
	}
	var anew []fleet.Renewal
	if copied {
		var keys func() error
		if anew, keys, err = machine.Disk(cfg.MachineID, cfg.Hostname); err != nil {
			return nil, fmt.Errorf("the disk was another machine's: %w", err)
		}
		log.Info("the disk was another machine's and is renewed")
		if keys != nil {
			go func() { // RSA keys take long under emulation, and nothing waits for them
				if err := keys(); err != nil {
					log.Error("no ssh host key of kind rsa", "error", err)
				}
			}()
		}
	} else if err := machine.Sign(cfg.MachineID); err != nil {
		log.Warn("the disk cannot be signed: a copy of it will not know that it is one", "error", err)
	}
	return &guestd.Capture{
		System: freeze.Linux{Group: boot.CgroupDir, Root: "/"}, Incarnation: freeze.Incarnation, Machine: machine,
		Settle: func(context.Context) { late() },
		Grow:   func(ctx context.Context) error { return boot.GrowRoot(ctx, cfg.Root) },
		Anew:   anew,
	}, nil
}
