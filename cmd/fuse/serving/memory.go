package serving

import (
	"os"
	"runtime/debug"
)

// daemonGC is the garbage that a daemon lets gather before it collects, as a
// percentage of what is live. A fleet's rows are nearly all there is in memory
// and live long, so at Go's 100 a server of 10,000 environments would hold as
// much garbage as rows. At 40 it needs a quarter less memory, and a create a
// sixth more processor time. docs/operate/performance.md has the figures.
const daemonGC = 40

// SaveMemory sets the collector for a daemon, unless the operator has.
func SaveMemory() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(daemonGC)
	}
}
