package fleet

import (
	"fmt"
	"time"
)

// Pause is a stop of what the reconcile loop would destroy: who, why, when.
type Pause struct {
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

func (p Pause) String() string {
	s := fmt.Sprintf("by %s since %s", p.Actor, p.At.UTC().Format(time.RFC3339))
	if p.Reason != "" {
		s += ": " + p.Reason
	}
	return s
}

// Pauses are the stops there are. What users ask to destroy is destroyed all
// the same, and looking goes on.
type Pauses struct {
	All   *Pause           `json:"all,omitempty"` // of every host
	Hosts map[string]Pause `json:"hosts,omitempty"`
}

// At is the pause that counts on a host; "" is what belongs to none.
func (p Pauses) At(hostID string) (Pause, bool) {
	if p.All != nil {
		return *p.All, true
	}
	by, ok := p.Hosts[hostID]
	return by, ok
}

// Any says whether destruction is stopped anywhere.
func (p Pauses) Any() bool { return p.All != nil || len(p.Hosts) > 0 }
