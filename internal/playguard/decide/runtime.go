package decide

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Condition is what a seen project's containers amount to.
type Condition string

// Conditions.
const (
	Healthy  Condition = "healthy"
	Starting Condition = "starting" // nothing wrong, a health check has not said yet
	Degraded Condition = "degraded" // some run; some are missing, ended or not healthy
	AtRest   Condition = "at_rest"  // none runs, none failed
	Crashed  Condition = "crashed"  // none runs, at least one failed
	Absent   Condition = "absent"
)

// Runtime is a seen project, assessed against the services it should have.
type Runtime struct {
	Condition Condition
	Ended     []string // services without a container that runs, one-shots aside
	Unhealthy []string // services whose container runs and does not work
	Outdated  []string // services made from another definition than the record's
	Leftovers []string // names of containers that a cut recreate left
	Finished  time.Time
}

// temporaryName is how Compose names a replacement before it takes over.
var temporaryName = regexp.MustCompile(`^[0-9a-f]{12}_`)

// leftover reports whether a cut recreate left the container: it has a
// temporary name, and does not run or has not taken the place of the one with
// the real name. Compose v2 leaves one that has under its temporary name. The
// replace label tells nothing: a replacement keeps it for life.
func leftover(c observe.Container, names map[string]bool) bool {
	prefix := temporaryName.FindString(c.Name)
	return c.State == "removing" || prefix != "" && (c.State != "running" || names[c.Name[len(prefix):]])
}

// Assess reads a complete list of a project's containers. Containers in
// mid-recreate are leftovers, not services; containers made by "run" are
// nobody's service.
func Assess(services []model.Service, containers []observe.Container) Runtime {
	var r Runtime
	byService := map[string][]observe.Container{}
	names := map[string]bool{}
	for _, c := range containers {
		names[c.Name] = true
	}
	running, failed, seen := false, false, false
	for _, c := range containers {
		if c.OneOff {
			continue
		}
		seen = true
		runs := c.State == "running" || c.State == "restarting" || c.State == "paused"
		running = running || runs
		failed = failed || !runs && c.Exit != 0 || c.State == "dead"
		if !runs && c.Finished.After(r.Finished) {
			r.Finished = c.Finished
		}
		if leftover(c, names) {
			r.Leftovers = append(r.Leftovers, c.Name)
			continue
		}
		byService[c.Service] = append(byService[c.Service], c)
	}
	starting := false
	for _, s := range services {
		starting = r.service(s, byService[s.Name]) || starting
	}
	switch {
	case !seen:
		r.Condition = Absent
	case !running && failed:
		r.Condition = Crashed
	case !running:
		r.Condition = AtRest
	case len(r.Ended)+len(r.Unhealthy) > 0:
		r.Condition = Degraded
	case starting:
		r.Condition = Starting
	default:
		r.Condition = Healthy
	}
	return r
}

// service files one service under what is wrong with it, and reports whether
// it is still starting. A container that ended with 0 and is not to be
// restarted has done its work.
func (r *Runtime) service(s model.Service, containers []observe.Container) (starting bool) {
	ended, unhealthy := len(containers) == 0, false
	for _, c := range containers {
		switch {
		case c.State == "running":
			starting = starting || c.Health == "starting"
			unhealthy = unhealthy || c.Health == "unhealthy"
		case c.State == "restarting" || c.State == "paused":
			unhealthy = true
		case c.State == "exited" && c.Exit == 0 && c.Restart == "no":
		default:
			ended = true
		}
		if c.Digest != s.Digest && !slices.Contains(r.Outdated, s.Name) {
			r.Outdated = append(r.Outdated, s.Name)
		}
	}
	if ended {
		r.Ended = append(r.Ended, s.Name)
	}
	if unhealthy {
		r.Unhealthy = append(r.Unhealthy, s.Name)
	}
	return starting
}

// String says what is wrong, for people.
func (r Runtime) String() string {
	words := []string{string(r.Condition)}
	for _, part := range []struct {
		what  string
		names []string
	}{{"missing or ended", r.Ended}, {"not healthy", r.Unhealthy}, {"of an older definition", r.Outdated}, {"left by a cut recreate", r.Leftovers}} {
		if len(part.names) > 0 {
			words = append(words, fmt.Sprintf("%s: %s", part.what, strings.Join(part.names, " ")))
		}
	}
	return strings.Join(words, "; ")
}

// explained reports whether an event of the host, and nobody's stop, ended
// what was running: the host booted, or its daemon started, after the
// playground was last seen up, and no container ended later than that. A
// container that ran on in the new life and ended there was stopped. If it was
// never seen up, only the end of its containers can tell.
func explained(last model.Boot, host observe.Host, r Runtime, slack time.Duration) (string, bool) {
	unknown := last.BootID == ""
	what, at := "", time.Time{}
	if host.Boot.BootID != last.BootID {
		what, at = "the host booted", host.BootedAt()
	}
	newer := unknown || !last.DaemonStart.IsZero() && host.Boot.DaemonStart.After(last.DaemonStart)
	if newer && host.Boot.DaemonStart.After(at) {
		at = host.Boot.DaemonStart
		if what == "" {
			what = "the daemon started"
		}
	}
	if what == "" || unknown && r.Finished.IsZero() || r.Finished.After(at.Add(slack)) {
		return "", false
	}
	return what, true
}
