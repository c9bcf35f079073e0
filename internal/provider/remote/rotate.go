package remote

import (
	"context"

	"connectrpc.com/connect"

	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/provider"
)

var _ provider.Rotator = (*environment)(nil)

// Rotate implements provider.Rotator.
func (e *environment) Rotate(ctx context.Context, number int64, c provider.Credentials) error {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	return e.p.change(ctx, func(f *hostwirev1.Fence) error {
		_, err := e.p.vms.RotateVM(ctx, connect.NewRequest(&hostwirev1.RotateVMRequest{
			Fence: f, Ref: e.call(""), Number: number,
			Credentials: &hostwirev1.Credentials{Token: c.Token, CertPem: c.CertPEM, KeyPem: c.KeyPEM},
		}))
		return callError(ctx, err)
	})
}
