package records

import (
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/state"
)

// Decision is what was decided about a playground, as people are told: how often in
// a row, by which rule, and what held it back.
type Decision struct {
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Count   int       `json:"count"`
	Verdict string    `json:"verdict"`
	Rule    string    `json:"rule"`
	Act     string    `json:"act"`
	Guard   string    `json:"guard,omitempty"`
	Why     string    `json:"why,omitempty"`
	Epoch   uint64    `json:"epoch"`
}

func decisionsKey(p model.PlaygroundID) string { return string(p) + "/decisions" }

// PutDecisions keeps the last decisions about a playground, oldest first, if it has
// a record.
func PutDecisions(tx *state.Tx, p model.PlaygroundID, list []Decision) error {
	if _, ok := Playgrounds.Get(tx, string(p)); !ok {
		return nil
	}
	return Entries.Put(tx, decisionsKey(p), &Entry{Decisions: list})
}

// Decisions are those that were kept, oldest first.
func Decisions(tx state.Reader, p model.PlaygroundID) []Decision {
	if e, ok := Entries.Get(tx, decisionsKey(p)); ok {
		return e.Decisions
	}
	return nil
}
