package plane

import (
	"slices"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/api/placing"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/state"
)

// wireAdmission makes what decides who gets room and where.
func wireAdmission(p *Plane) {
	p.quotas = quota.New(quota.Config{
		Store: p.Store, Logger: p.log, Defaults: defaultQuotas(p.settings.Placing),
		KeyOwner: func(tx *state.ReadTx, id string) (string, bool) {
			key, ok := keys.Documents.Get(tx, id)
			if !ok {
				return "", false
			}
			return key.Owner, true
		},
		More: snapshots.Dimensions(),
	})
	p.desk = admission.New(admission.Config{
		Store: p.Store, Policy: p.settings.Placement, Unreachable: p.Hosts.Unreachable, Quotas: p.quotas,
		ImageHosts: p.images.Holders,
	})
}

func defaultQuotas(s config.Placing) quota.Amounts {
	return quota.Amounts{
		quota.Environments: int64(s.QuotaEnvironments), quota.CPUs: int64(s.QuotaCPUs), quota.MemoryMB: int64(s.QuotaMemoryMB),
		quota.DiskGB: int64(s.QuotaDiskGB), quota.Creates: int64(s.QuotaCreatesInFlight),
	}
}

func placingRoutes(p *Plane) []web.Route {
	return slices.Concat(placing.QuotaRoutes(p.quotas, p.keeper), placing.ExplainRoutes(p.desk, p.life))
}
