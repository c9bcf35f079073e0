package hostd

import "github.com/fusevm/fuse/internal/hostd/entry"

// What the log says.
type (
	owner  = entry.Owner
	answer = entry.Answer
	ended  = entry.Ended
	record = entry.Record
)

// Verbs of operations whose answers are kept.
const (
	verbCreate = entry.VerbCreate
	verbDrain  = entry.VerbDrain
)
