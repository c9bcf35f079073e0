package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// healthFlags are the healthcheck of an environment.
type healthFlags struct {
	command, page     string
	interval, timeout time.Duration
	retries           int
	startPeriod       time.Duration
}

func (f *healthFlags) register(s *pflag.FlagSet) {
	s.StringVar(&f.command, "health-cmd", "", "healthcheck: shell `command` to run in the guest; it passes with exit code 0")
	s.StringVar(&f.page, "health-http", "", "healthcheck: `PORT[/PATH]` to ask in the guest; it passes with 200 to 399")
	s.DurationVar(&f.interval, "health-interval", 0, "time between two tries (default 10s)")
	s.DurationVar(&f.timeout, "health-timeout", 0, "longest time of a try (default 2s)")
	s.IntVar(&f.retries, "health-retries", 0, "failures in a row until it counts as failing (default 3)")
	s.DurationVar(&f.startPeriod, "health-start-period", 0, "time in which failures do not count yet")
}

// body is nil without a healthcheck.
func (f *healthFlags) body() (*gen.Healthcheck, error) {
	h := &gen.Healthcheck{
		IntervalSeconds: kit.WholeSeconds(f.interval), TimeoutSeconds: kit.WholeSeconds(f.timeout),
		Retries: f.retries, StartPeriodSeconds: kit.WholeSeconds(f.startPeriod),
	}
	switch {
	case f.command != "" && f.page != "":
		return nil, usagef("--health-cmd and --health-http are both given")
	case f.command != "":
		h.Exec = []string{"sh", "-c", f.command}
	case f.page != "":
		port, path, _ := strings.Cut(f.page, "/")
		n, err := strconv.Atoi(port)
		if err != nil {
			return nil, usagef("--health-http %q: want PORT or PORT/PATH, for example 8080/health", f.page)
		}
		h.HTTP = &gen.HealthcheckHTTP{Port: n, Path: "/" + path}
	case f.interval != 0 || f.timeout != 0 || f.retries != 0 || f.startPeriod != 0:
		return nil, usagef("a healthcheck needs --health-cmd or --health-http")
	default:
		return nil, nil //nolint:nilnil // none was asked for
	}
	return h, nil
}

// shownHealth is a verdict in a few words; "" while none is known.
func shownHealth(env gen.Environment) string {
	h := env.Health
	if h == nil {
		return ""
	}
	text := fmt.Sprintf("%s since %s (%s)", h.State, h.Since.Format(time.RFC3339), age(time.Now(), h.Since))
	if h.Failures > 0 {
		text += fmt.Sprintf(", failed %d times in a row", h.Failures)
	}
	if h.Message != "" {
		text += ": " + h.Message
	}
	return text
}
