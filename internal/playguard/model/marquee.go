package model

import (
	"hash/fnv"
	"time"
)

// Admin is whether people allow a marquee to be used.
type Admin string

// Admin states.
const (
	AdminActive   Admin = "active"
	AdminDisabled Admin = "disabled"
)

// Reach is whether the loop can work on a marquee: an axis of its own, which
// only looks move.
type Reach string

// Reach states.
const (
	ReachOK          Reach = "ok"
	ReachQuarantined Reach = "quarantined" // probed only, until one clean look
)

// Marquee is the record of a Docker host that is reached over SSH.
type Marquee struct {
	ID      MarqueeID `json:"id"`
	Address string    `json:"address,omitempty"` // host:port
	User    string    `json:"user,omitempty"`
	KeyRef  string    `json:"key_ref,omitempty"`  // name of the private key, never the key
	HostKey string    `json:"host_key,omitempty"` // pinned, in authorized_keys form
	Root    string    `json:"root,omitempty"`     // see Layout

	Admin      Admin     `json:"admin"`
	Reach      Reach     `json:"reach"`
	ReachSince time.Time `json:"reach_since,omitzero"`
	Streak     Streak    `json:"streak,omitzero"`   // looks in a row that saw nothing
	Trouble    string    `json:"trouble,omitempty"` // why the last look saw nothing; empty after a clean one
	Identity   Identity  `json:"identity,omitzero"` // pinned when it was registered or taken back
}

// Streak counts looks in a row that failed.
type Streak struct {
	Count int       `json:"count"`
	Last  time.Time `json:"last,omitzero"`
}

// Miss counts one more failed look. A streak that is older than memory is
// forgotten.
func (s Streak) Miss(at time.Time, memory time.Duration) Streak {
	if s.Count > 0 && at.Sub(s.Last) > memory {
		s.Count = 0
	}
	return Streak{Count: s.Count + 1, Last: at}
}

// Identity is what makes a Docker host the one we mean. An exit code of zero
// and an empty list come from the wrong daemon too; these tell it apart.
type Identity struct {
	Installation InstallationID `json:"installation,omitempty"` // kept in a file below our root
	MachineID    string         `json:"machine_id,omitempty"`
	DaemonID     string         `json:"daemon_id,omitempty"`
	DataRoot     string         `json:"data_root,omitempty"`
	Witness      string         `json:"witness,omitempty"` // id on the label of our witness volume
}

// Differs names the first thing in which what was read is not what is pinned;
// empty if all are equal. A pin with a gap in it matches nothing.
func (i Identity) Differs(read Identity) string {
	for _, part := range []struct{ name, pinned, read string }{
		{"installation id", string(i.Installation), string(read.Installation)},
		{"machine id", i.MachineID, read.MachineID},
		{"daemon id", i.DaemonID, read.DaemonID},
		{"data root", i.DataRoot, read.DataRoot},
		{"witness volume", i.Witness, read.Witness},
	} {
		if part.pinned == "" || part.pinned != part.read {
			return part.name
		}
	}
	return ""
}

// Offset spreads marquees over the period of the loop: a fixed delay in
// [0, period) that follows from the id.
func (id MarqueeID) Offset(period time.Duration) time.Duration {
	if period <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // a hash takes everything
	return time.Duration(h.Sum64() % uint64(period))
}
