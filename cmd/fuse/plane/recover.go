package plane

import (
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
	"github.com/fusevm/fuse/internal/reattach"
	"github.com/fusevm/fuse/internal/secrets"
)

// newReattacher takes back what an earlier leader left running.
func (p *Plane) newReattacher(sealer *secrets.Sealer) (*reattach.Service, error) {
	return reattach.New(reattach.Config{
		Store: p.Store, Providers: p.Hosts, Sealer: sealer, Drains: p.life, Logger: p.log,
		TokenKind: lifecycle.SealKindVMToken, BootKind: lifecycle.SealKindVMBoot, Secrets: uploads.GuestSecrets,
	})
}
