package decide

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
)

// Look is what one host said of its snapshots.
type Look struct {
	HostID string
	// Complete is whether absence tells anything.
	Complete bool
	// Sent is the state's revision before the host was asked: what was written
	// later is not judged by the answer.
	Sent      uint64
	Artifacts []fleet.Artifact
}

// Finding is something about the bytes of a snapshot that the records do not
// say, as one host.
type Finding struct {
	Kind   FindingKind
	HostID string
	ID     string
	// Revision is that of the record; 0 without one.
	Revision uint64
	Evidence string
}

// FindingKind is what is to be done.
type FindingKind string

// Kinds of findings.
const (
	Orphan FindingKind = "orphan" // no record knows the bytes: they go
	Gone   FindingKind = "gone"   // the record's bytes are not there: it is an error
	Bad    FindingKind = "bad"    // they do not hold what was written: the same
)

// Seen are findings that a look made once; it takes a second to act. A look that
// is not complete leaves those of its host as they are.
type Seen map[SeenKey]int

// SeenKey is one finding on one host.
type SeenKey struct {
	HostID, ID string
	Kind       FindingKind
}

// sightings is how often in a row something has to be found.
const sightings = 2

// Bytes compares what hosts keep with the records, which were read after the
// answers. Bad bytes count at once: the host itself says so.
func Bytes(looks []Look, records map[string]*fleet.Snapshot, before Seen) (findings []Finding, after Seen) {
	after = Seen{}
	looked := map[string]bool{}
	for _, l := range looks {
		if !l.Complete {
			continue
		}
		looked[l.HostID] = true
		for _, f := range compare(l, records) {
			key := SeenKey{f.HostID, f.ID, f.Kind}
			after[key] = before[key] + 1
			if after[key] >= sightings || f.Kind == Bad {
				findings = append(findings, f)
			}
		}
	}
	for key, n := range before {
		if !looked[key.HostID] {
			after[key] = n
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int { return cmp.Or(cmp.Compare(a.HostID, b.HostID), cmp.Compare(a.ID, b.ID)) })
	return findings, after
}

func compare(l Look, records map[string]*fleet.Snapshot) (out []Finding) {
	there := map[string]bool{}
	for _, a := range l.Artifacts {
		there[a.ID] = true
		r := records[a.ID]
		switch {
		case r == nil || r.HostID != l.HostID:
			out = append(out, Finding{Kind: Orphan, HostID: l.HostID, ID: a.ID, Evidence: fmt.Sprintf("no record knows the snapshot of %s (%d bytes)", a.VMID, a.SizeBytes)})
		case r.Revision > l.Sent || r.State != fleet.SnapshotStateReady:
		case a.Bad != "":
			out = append(out, Finding{Bad, l.HostID, a.ID, r.Revision, "its host says: " + a.Bad})
		case a.Digest != r.Digest:
			out = append(out, Finding{Bad, l.HostID, a.ID, r.Revision, "its host has bytes of another digest under its id"})
		}
	}
	for _, id := range sortedKeys(records) {
		r := records[id]
		if r.HostID == l.HostID && r.State == fleet.SnapshotStateReady && r.Revision <= l.Sent && !there[id] {
			out = append(out, Finding{Gone, l.HostID, id, r.Revision, "its host no longer has its bytes"})
		}
	}
	return out
}

func sortedKeys(m map[string]*fleet.Snapshot) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
