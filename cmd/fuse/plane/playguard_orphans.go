package plane

import (
	"context"
	"time"

	routes "github.com/fusevm/fuse/internal/api/playguard"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/rescan"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sweep"
	"github.com/fusevm/fuse/internal/playguard/sweeper"
)

// strays are what looks after what is on marquees and in no record.
type strays struct {
	sweeper *sweeper.Sweeper
	scanner *rescan.Scanner
}

// wireOrphans makes the sweep, which is the last phase of a pass, and what takes
// playgrounds back.
func wireOrphans(p *Plane, l *loop.Loop, hosts *reach.Hosts, sealer records.Sealer) {
	p.strays.scanner = rescan.New(rescan.Config{Store: p.Store, Sealer: sealer, Loop: l, Hosts: hosts, Installation: hosts.Installation, Leads: p.leads})
	p.strays.sweeper = sweeper.New(sweeper.Config{
		Store: p.Store, Worker: l.Worker, Policy: sweep.DefaultPolicy(), Logger: p.log, Kick: l.Kick,
		Adopt: func(ctx context.Context, marquee string, project model.Project) (model.PlaygroundID, error) {
			return p.strays.scanner.Adopt(ctx, marquee, project, "")
		},
		Start: func(ctx context.Context, id model.PlaygroundID) error {
			_, err := p.playguard.Act(ctx, string(id), service.ActionRequest{Action: model.ActionStart})
			return err
		},
	})
	l.After = append(l.After, rescan.Phase(l.Worker), p.strays.sweeper.Phase())
}

// sweepFigures adds what the sweep has on a marquee.
func sweepFigures(to map[string]int, m *records.Marquee) {
	s := m.Sweep
	for what, there := range map[string]bool{"armed": time.Now().Before(s.Arming.Until), "halted": s.Halt != (model.Halt{})} {
		if there {
			to[what]++
		}
	}
	to["suspects"] += len(s.Suspects)
	to["aside"] += len(s.Aside)
}

func (p *Plane) orphanRoutes() []web.Route {
	if p.playguard == nil {
		p.playguard = &service.Service{}
	}
	if p.strays.sweeper == nil {
		p.strays = strays{sweeper.New(sweeper.Config{}), rescan.New(rescan.Config{})}
	}
	return routes.OrphanRoutes(p.playguard, p.keeper, p.strays.sweeper, p.strays.scanner)
}
