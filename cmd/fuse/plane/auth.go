package plane

import (
	"github.com/fusevm/fuse/internal/api/keys"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	apikeys "github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/rotation"
	"github.com/fusevm/fuse/internal/secrets"
)

// wireAuth makes what knows callers: the API keys and the gate that asks them.
func (p *Plane) wireAuth() *auth.Gate {
	p.keys = apikeys.New(p.Store, p.log)
	return auth.New(auth.Config{
		Token: p.settings.AuthToken, AllowedCIDRs: p.settings.AllowedCIDRs, SecureCookies: p.settings.SecureCookies, Keys: p.keys,
	})
}

func (p *Plane) keyRoutes() []web.Route { return keys.Routes(p.keys, p.keeper) }

// wireRotation makes what rotates the tokens of guests.
func (p *Plane) wireRotation(sealer *secrets.Sealer) (err error) {
	p.rotation, err = rotation.New(rotation.Config{
		Store: p.Store, Providers: p.Hosts, Sealer: sealer, Logger: p.log, TokenKind: lifecycle.SealKindVMToken,
	})
	return err
}
