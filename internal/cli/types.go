package cli

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
)

// The API's own types, generated from api/openapi.yaml.
type (
	environment     = gen.Environment
	environmentList = gen.EnvironmentList
	execResult      = gen.ExecResult
	host            = gen.HostInfo
	hostList        = gen.HostList
)

// bootSteps renders how an environment came up, a step a line.
func bootSteps(env environment) []string {
	if env.Boot == nil {
		return nil
	}
	var out []string
	for _, s := range env.Boot.Steps {
		out = append(out, fmt.Sprintf("%-18s %s", s.Step, seconds(time.Duration(s.TookMs*float64(time.Millisecond)))))
	}
	return out
}
