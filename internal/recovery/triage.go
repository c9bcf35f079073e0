package recovery

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Record is a row as the last process left it.
type Record struct{ VM *fleet.VM }

// Action is what becomes of a row.
type Action string

// Actions. Only Destroy writes to the row; the rest leave it to the passes of
// reconcile, with what the same look has shown.
const (
	Destroy  Action = "destroy"  // claim it for destruction
	Resume   Action = "resume"   // go on with its destruction
	Reattach Action = "reattach" // it runs: keep it and say so
	Keep     Action = "keep"     // keep it, without knowing
	Suspect  Action = "suspect"  // one complete look did not show it: keep it until the next
	Demote   Action = "demote"   // its host recorded its end: it counts as missing at once
	Drain    Action = "drain"    // ask its host for the outcome of its drain
)

// Verdict is what a rule decided, and why.
type Verdict struct {
	Action Action
	Rule   string // name of the rule in the table
	Why    string
	// Reason is that of the end; set when Action is Destroy.
	Reason fleet.Reason
}

type question struct {
	vm      *fleet.VM
	obs     fleet.Observation
	running bool
	exit    *fleet.ExitRecord
}

// speaks reports whether the look says anything about the row.
func (q question) speaks() bool {
	return q.obs.Quality() == fleet.Complete && q.obs.HostID == q.vm.HostID && q.vm.Revision <= q.obs.Revision
}

type rule struct {
	name    string
	applies func(question) bool
	action  Action
	why     string
}

// rules are asked in order; the first that applies decides.
var rules = []rule{
	{
		"destroying", func(q question) bool { return q.vm.State == fleet.VMStateDestroying }, Resume,
		"an end once decided is carried out, whatever the host shows",
	},
	{
		"provisioning", func(q question) bool { return q.vm.State == fleet.VMStateProvisioning }, Destroy,
		"a boot that was cut short cannot be trusted, even if the machine came up",
	},
	{
		"drain cut short", func(q question) bool {
			return q.vm.State == fleet.VMStateDraining && q.vm.DrainResult == "" && q.running && q.speaks()
		}, Drain,
		"its host lists it as running and knows whether the drain has ended; asking again starts no second one",
	},
	{
		"draining", func(q question) bool { return q.vm.State == fleet.VMStateDraining }, Keep,
		"a drain outlives the process that asked for it; only a destroy follows",
	},
	{
		"unseen", func(q question) bool { return q.obs.Quality() == fleet.Unseen }, Keep,
		"the host could not be looked at, and not seen is not gone",
	},
	{
		"partial", func(q question) bool { return q.obs.Quality() != fleet.Complete }, Keep,
		"the host does not know yet what it runs",
	},
	{
		"other host", func(q question) bool { return q.obs.HostID != q.vm.HostID }, Keep,
		"another host's list says nothing about this one",
	},
	{
		"younger", func(q question) bool { return q.vm.Revision > q.obs.Revision }, Keep,
		"the row was written after the look was sent",
	},
	{
		"seen", func(q question) bool { return q.running }, Reattach,
		"the host lists this life as running",
	},
	{
		"ended", func(q question) bool { return q.exit != nil }, Demote,
		"the host recorded durably that this life ended",
	},
	{
		"absent", func(question) bool { return true }, Suspect,
		"one complete look does not show it running; a second decides",
	},
}

// Triage decides what becomes of one row, given one look at its host. Rows
// that are not running can be decided without a look.
func Triage(rec Record, obs fleet.Observation) Verdict {
	q := question{vm: rec.VM, obs: obs}
	vms, _ := obs.VMs()
	for i := range vms {
		if vms[i].UID == q.vm.UID {
			q.running, q.exit = vms[i].Running, vms[i].Exit
		}
	}
	exits, _ := obs.Exits()
	for i := range exits {
		if exits[i].UID == q.vm.UID {
			q.exit = &exits[i]
		}
	}
	for _, r := range rules {
		if r.applies(q) {
			return r.verdict(q)
		}
	}
	panic("recovery: the last rule applies to everything")
}

func (r rule) verdict(q question) Verdict {
	v := Verdict{Action: r.action, Rule: r.name, Why: r.why}
	if r.action == Destroy {
		v.Reason = fleet.Reason{
			Actor: fleet.ActorRecovery, Rule: fleet.RuleCreateInterrupted,
			Evidence: fmt.Sprintf("the control plane ended while this was being made; claimed at %s, revision %d",
				q.vm.CreatedAt.UTC().Format(time.RFC3339), q.vm.Revision),
		}
	}
	return v
}
