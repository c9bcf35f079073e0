package playguard

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/rescan"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sweeper"
	"github.com/fusevm/fuse/internal/state"
)

// orphans are the routes of what is on marquees and in no record.
type orphans struct {
	routes
	sweeper *sweeper.Sweeper
	scanner *rescan.Scanner
}

// OrphanRoutes are the routes of the sweep, adoption and rescan.
func OrphanRoutes(s *service.Service, keeper web.Keeper, sw *sweeper.Sweeper, sc *rescan.Scanner) []web.Route {
	r := orphans{routes{service: s, keeper: keeper}, sw, sc}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/marquees/{id}/sweep", Handle: r.sweep},
		{Method: http.MethodPost, Pattern: "/v1/marquees/{id}/sweep", BodyLimit: web.BodyLimit, Handle: r.actOnSweep},
		{Method: http.MethodPost, Pattern: "/v1/marquees/{id}/restore", BodyLimit: web.BodyLimit, Slow: true, Handle: r.restore},
		{Method: http.MethodPost, Pattern: "/v1/marquees/{id}/rescan", BodyLimit: web.BodyLimit, Slow: true, Handle: r.rescan},
		{Method: http.MethodPost, Pattern: "/v1/marquees/{id}/adopt", BodyLimit: web.BodyLimit, Slow: true, Handle: r.adopt},
	}
}

func (s orphans) sweep(w http.ResponseWriter, r *web.Request) error {
	st, err := s.sweeper.Status(r.Context(), r.Param)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, sweepOf(st))
	return nil
}

func (s orphans) actOnSweep(w http.ResponseWriter, r *web.Request) error {
	var body gen.SweepAction
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	do := s.sweeper.Disarm
	switch action := r.URL.Query().Get("action"); action {
	case "arm":
		arm := sweeper.Arm{Why: body.Why, Share: body.Share}
		if body.For != "" {
			d, err := time.ParseDuration(body.For)
			if err != nil {
				return fleet.Invalid("for", "a duration such as 72h", "", "is %.40q", body.For)
			}
			arm.For = d
		}
		do = func(ctx context.Context, id string) (sweeper.Status, error) { return s.sweeper.Arm(ctx, id, arm) }
	case "disarm":
	default:
		return fleet.Invalid("action", "arm or disarm", "", "is %.40q", action)
	}
	st, err := once(w, r, s.keeper, http.StatusOK, func(ctx context.Context) (sweeper.Status, string, error) {
		st, err := do(ctx, r.Param)
		return st, string(st.Marquee), err
	}, s.sweeper.Status)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, sweepOf(st))
	return nil
}

// taken answers with a playground that has a record again.
func (s orphans) taken(w http.ResponseWriter, r *web.Request, do func(ctx context.Context) (model.PlaygroundID, error)) error {
	p, err := once(w, r, s.keeper, http.StatusCreated, func(ctx context.Context) (service.Playground, string, error) {
		id, err := do(ctx)
		if err != nil {
			return service.Playground{}, "", err
		}
		return playgroundID(s.service.Playground(ctx, string(id)))
	}, s.getPlayground)
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("playgrounds", string(p.ID)))
	web.WriteJSON(w, http.StatusCreated, playgroundOf(p))
	return nil
}

func (s orphans) restore(w http.ResponseWriter, r *web.Request) error {
	var body gen.RestoreSwept
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	project, err := model.ParseProject(body.Project)
	if err != nil {
		return err
	}
	return s.taken(w, r, func(ctx context.Context) (model.PlaygroundID, error) { return s.sweeper.Restore(ctx, r.Param, project) })
}

func (s orphans) adopt(w http.ResponseWriter, r *web.Request) error {
	var body gen.AdoptPlayground
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	project, err := model.ParseProject(body.Project)
	if err != nil {
		return err
	}
	return s.taken(w, r, func(ctx context.Context) (model.PlaygroundID, error) {
		return s.scanner.Adopt(ctx, r.Param, project, body.Name)
	})
}

func (s orphans) rescan(w http.ResponseWriter, r *web.Request) error {
	var body gen.RescanMarquee
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req := rescan.Request{Adopt: body.AdoptAll, TakeOver: model.InstallationID(body.TakeOverInstallation)}
	var report rescan.Report
	answer, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (_ idempotency.Answer, err error) {
		report, err = s.scanner.Rescan(ctx, r.Param, req)
		return idempotency.Answer{Status: http.StatusOK, ResourceID: string(report.Marquee)}, err
	})
	if err == nil && answer.Replayed { // what it did is done; what there is now is told
		report, err = s.scanner.Rescan(r.Context(), answer.ResourceID, rescan.Request{})
	}
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, rescanOf(report))
	return nil
}

func sweepOf(st sweeper.Status) gen.MarqueeSweep {
	a := st.Sweep.Arming
	out := gen.MarqueeSweep{
		Marquee: string(st.Marquee), Name: st.Name, Armed: st.Armed, ArmedBy: a.By, ArmedAt: a.At, ArmedUntil: a.Until, Why: a.Why, Share: a.Share,
		Halted: st.Sweep.Halt.Why, HaltedElsewhere: st.HaltedAt, Alarm: st.Sweep.Alarm, LookedAt: st.At,
		Findings: []gen.SweepFinding{}, Aside: []gen.SweptProject{},
	}
	if op := st.Sweep.Op; !op.IsZero() {
		out.WorkingOn = string(op.Kind) + " of " + op.Project.String()
	}
	for _, f := range st.Findings {
		out.Findings = append(out.Findings, gen.SweepFinding{Project: f.Project.String(), Guard: string(f.Guard), Why: f.Why, Adoptable: f.Adopt})
	}
	for _, x := range st.Sweep.Aside {
		out.Aside = append(out.Aside, gen.SweptProject{
			Project: x.Project.String(), At: x.At, Until: x.Since().Add(st.Keep), Ran: x.Ran, Volumes: x.Volumes, Trouble: x.Trouble,
		})
	}
	return out
}

func rescanOf(r rescan.Report) gen.MarqueeRescan {
	out := gen.MarqueeRescan{
		Marquee: string(r.Marquee), Name: r.Name, Installation: string(r.Installation), Installations: []string{}, Projects: []gen.FoundProject{},
	}
	for _, i := range r.Installations {
		out.Installations = append(out.Installations, string(i))
	}
	for _, p := range r.Aside {
		out.Aside = append(out.Aside, p.Project.String())
	}
	for _, f := range r.Projects {
		out.Projects = append(out.Projects, gen.FoundProject{
			Project: f.Project.String(), Name: f.Name, Owner: f.Owner, CreatedAt: f.CreatedAt, Containers: f.Containers, Running: f.Running,
			Last: f.Last, Digest: f.Digest, Recorded: f.Recorded, Adopted: f.Adopted, Needs: f.Needs, Trouble: f.Trouble,
		})
	}
	return out
}
