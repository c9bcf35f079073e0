package sim

import (
	"fmt"
	"strings"
	"sync"

	"github.com/fusevm/fuse/test/history"
)

// deed is a kind of entry in the hosts' record.
type deed string

// Deeds. Orders are written down as they arrive and as they are answered.
const (
	deedClaim   deed = "claim"   // a mark was raised
	deedOrder   deed = "order"   // a change was asked for, and answered
	deedStart   deed = "start"   // a machine begins to exist
	deedStarted deed = "started" // it answers
	deedRemove  deed = "remove"  // a machine is being ended
	deedRemoved deed = "removed" // nothing is left of it
	deedDied    deed = "died"    // it ended by itself
	deedCrash   deed = "crash"   // the host agent was killed
	deedLied    deed = "lied"    // a listing left a machine out
)

// entry is one line of the hosts' record.
type entry struct {
	// From and To frame the deed in stamps; To is 0 while it goes on.
	From, To int64
	Host     string
	Deed     deed
	Verb     string // of an order
	What     string // the command of an exec
	VMID     string
	UID      string
	Fleet    string
	Term     int64
	OpID     string
	Server   string // who sent the order
	Refused  string // why an order was refused; empty: it was obeyed
}

func (e entry) String() string {
	s := fmt.Sprintf("[%d, %d] %s: %s", e.From, e.To, e.Host, e.Deed)
	for _, p := range []string{e.Verb, e.What, e.VMID, e.UID} {
		if p != "" {
			s += " " + p
		}
	}
	if e.Term != 0 {
		s += fmt.Sprintf(" (term %d of %s, operation %s)", e.Term, e.Server, e.OpID)
	}
	if e.Refused != "" {
		s += " refused: " + e.Refused[:min(len(e.Refused), 140)]
	}
	return s
}

// record is what the hosts say happened. It is kept beside the host agents,
// at their driver and at their door, and knows nothing of the server's state.
type record struct {
	clock *history.Clock

	mu      sync.Mutex
	entries []*entry
}

// begin writes down a deed that goes on until the returned function is called.
func (r *record) begin(e entry) (end func(refused string)) {
	line := &e
	r.mu.Lock()
	defer r.mu.Unlock()
	line.From = r.clock.Now()
	r.entries = append(r.entries, line)
	return func(refused string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		line.To, line.Refused = r.clock.Now(), refused
	}
}

// note writes down a deed of one instant.
func (r *record) note(e entry) { r.begin(e)("") }

func (r *record) all() []entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]entry, len(r.entries))
	for i, e := range r.entries {
		out[i] = *e
	}
	return out
}

// about is the part of a record that concerns an environment, for a report.
func about(entries []entry, vmID string) string {
	var b strings.Builder
	for _, e := range entries {
		if e.VMID == vmID || e.Deed == deedCrash || e.Deed == deedClaim {
			fmt.Fprintln(&b, "  ", e)
		}
	}
	return b.String()
}
