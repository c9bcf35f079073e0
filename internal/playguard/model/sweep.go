package model

import "time"

// Operations of the sweep. None of them knows anything of volumes.
const (
	OpSweep   OpKind = "sweep"   // containers go, the directory is set aside
	OpRestore OpKind = "restore" // the directory that was set aside comes back
	OpPurge   OpKind = "purge"   // the directory that was set aside goes
)

// Sweep is what a marquee's record holds of the orphan sweep. The zero Sweep
// only reports.
type Sweep struct {
	Arming   Arming    `json:"arming,omitzero"`
	Halt     Halt      `json:"halt,omitzero"`
	Alarm    string    `json:"alarm,omitempty"` // that was told last
	Suspects []Suspect `json:"suspects,omitempty"`
	Aside    []Aside   `json:"aside,omitempty"`
	Op       SweepOp   `json:"op,omitzero"`
}

// Arming is an operator's word that orphans on a marquee may be set aside.
type Arming struct {
	By    string    `json:"by"`
	Why   string    `json:"why,omitempty"`
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
	Share int       `json:"share"` // of the host's projects that may be orphans, in percent
}

// Halt stops the sweep on every marquee until a person arms this one again: its
// host shows what these records do not know of.
type Halt struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

// Suspect is an orphan while it is watched.
type Suspect struct {
	Project Project `json:"project"`
	Strikes Strikes `json:"strikes"`
	Failed  int     `json:"failed,omitempty"` // times that it could not be set aside
}

// Aside is a project that the sweep has set aside on its host.
type Aside struct {
	Project    Project      `json:"project"`
	Playground PlaygroundID `json:"playground"`
	At         time.Time    `json:"at"`
	Ran        bool         `json:"ran,omitempty"`     // something of it ran
	Volumes    []string     `json:"volumes,omitempty"` // that stay, whatever happens to it
	Restore    bool         `json:"restore,omitempty"` // a person wants it back
	Trouble    string       `json:"trouble,omitempty"` // of the last try to restore or purge it
	Tried      time.Time    `json:"tried,omitzero"`
	Failed     int          `json:"failed,omitempty"` // tries in a row
	Found      time.Time    `json:"found,omitzero"`   // by a rescan: these records had lost it
}

// Since is when its time to be restored began: people have all of it again after
// the records were lost.
func (a Aside) Since() time.Time {
	if a.Found.After(a.At) {
		return a.Found
	}
	return a.At
}

// Fail notes a try that failed, after which nobody wants it back until he says so
// again.
func (a Aside) Fail(why string, now time.Time) Aside {
	a.Trouble, a.Tried, a.Restore = why, now, false
	a.Failed++
	return a
}

// SweepOp is an operation of the sweep in flight: claimed here before the host
// was asked.
type SweepOp struct {
	Op
	Project    Project      `json:"project"`
	Playground PlaygroundID `json:"playground"`
	Ran        bool         `json:"ran,omitempty"`
	Volumes    []string     `json:"volumes,omitempty"`
}

// Span is one term's part of the records' history: from this revision of the
// store to that of the next span.
type Span struct {
	Epoch   uint64 `json:"epoch"`
	Lineage string `json:"lineage"` // random: a term that was never ours has another
	From    uint64 `json:"from"`
}

// MaxSpans is how many spans are kept of a marquee.
const MaxSpans = 256

// Wrote reports whether a marker was written by the history that these spans,
// oldest first, and the store's revision tell of. Records that were restored
// from a copy do not know what was written after it was made.
func Wrote(spans []Span, head uint64, m Marker) bool {
	if m.Lineage == "" || m.Revision == 0 || m.Revision > head || len(spans) == 0 {
		return false
	}
	for i, s := range spans {
		if s.Epoch != m.Epoch || s.Lineage != m.Lineage {
			continue
		}
		return m.Revision >= s.From && (i == len(spans)-1 || m.Revision < spans[i+1].From)
	}
	// Older than what is kept: at least it is of before.
	return len(spans) >= MaxSpans && m.Epoch < spans[0].Epoch && m.Revision < spans[0].From
}
