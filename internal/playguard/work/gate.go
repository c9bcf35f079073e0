package work

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
)

// goal is what a gate waits for.
type goal struct {
	project  model.Project
	services []model.Service
	digest   string
}

// Bounds of a gate beside its time: looks in a row that show what time alone
// will not mend.
const (
	looksEnded   = 2 // a service failed and nothing starts it again
	looksRestart = 8 // a service is started again and again
)

// gate looks until the goal is healthy: nil, or what is wrong with it. An error
// is that nothing can be said, since too little was seen.
func (w *Worker) gate(ctx context.Context, s Site, g goal, still func() error) (*model.Failure, error) {
	deadline := time.Now().Add(w.Policy.HealthTimeout)
	ended, restarting := 0, 0
	for {
		if err := still(); err != nil {
			return nil, err
		}
		run, containers, seen := see(observe.Conclude(s.Host.Look(ctx), s.Pin), g)
		if seen {
			if run.Condition == decide.Healthy && len(run.Outdated)+len(run.Leftovers) == 0 {
				return nil, nil
			}
			why, restarts := hopeless(run, containers)
			if ended++; why == "" {
				ended = 0
			}
			if restarting++; !restarts {
				restarting = 0
			}
			if ended >= looksEnded {
				f := model.Classify(model.Symptom{Stderr: why})
				f.Step = model.StepHealth
				return &f, nil
			}
		}
		switch late := time.Now().After(deadline); {
		case late && !seen:
			return nil, ErrUnknown
		case late || restarting >= looksRestart:
			f := model.Classify(model.Symptom{Step: model.StepHealth, Stderr: "it did not become healthy: " + run.String()})
			return &f, nil
		}
		if err := pause(ctx, w.Policy.HealthInterval); err != nil {
			return nil, err
		}
	}
}

func see(look observe.Look, g goal) (decide.Runtime, []observe.Container, bool) {
	project := look.Project(g.project)
	containers, seen := project.Containers()
	dir, ok := project.Directory()
	if !seen || !ok || dir.Compose != g.digest {
		return decide.Runtime{}, nil, false
	}
	return decide.Assess(g.services, containers), containers, true
}

// hopeless names services that failed and that nothing starts again, and says
// whether one is being started again and again.
func hopeless(run decide.Runtime, containers []observe.Container) (why string, restarts bool) {
	var failed []string
	for _, c := range containers {
		switch {
		case c.OneOff:
		case c.State == "restarting":
			restarts = true
		case (c.State == "exited" || c.State == "dead") && c.Exit != 0 && (c.Restart == "no" || c.Restart == ""):
			failed = append(failed, fmt.Sprintf("service %s exited with code %d", c.Service, c.Exit))
		}
	}
	if len(run.Leftovers) > 0 { // a recreate is under way
		return "", restarts
	}
	return strings.Join(failed, "; "), restarts
}

func goalOf(p records.Playground) goal { return goal{p.Project, p.Services, p.Desired} }
