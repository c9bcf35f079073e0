package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
)

func snap(id string, change func(*fleet.Snapshot)) *fleet.Snapshot {
	s := &fleet.Snapshot{
		SnapshotID: id, VMID: "vm", UID: "u", Owner: "alice", TenantID: "t", HostID: "h", State: fleet.SnapshotStateReady,
		Kind: fleet.SnapshotKindDisk, Digest: "d-" + id, SizeBytes: 10, Revision: 5, CreatedAt: time.Unix(int64(len(id)), 0),
	}
	if change != nil {
		change(s)
	}
	return s
}

func TestParent(t *testing.T) {
	vm := &fleet.VM{ID: "vm", UID: "u", Spec: fleet.Spec{SeedSnapshotID: "seed"}}
	at := func(id string, sec int64, change func(*fleet.Snapshot)) *fleet.Snapshot {
		s := snap(id, change)
		s.CreatedAt = time.Unix(sec, 0)
		return s
	}
	for name, tt := range map[string]struct {
		all  []*fleet.Snapshot
		want string
	}{
		"none: what it was made from":   {nil, "seed"},
		"not one for forks":             {[]*fleet.Snapshot{at("a", 1, nil), at("b", 2, func(s *fleet.Snapshot) { s.Ephemeral = true })}, "a"},
		"the newest":                    {[]*fleet.Snapshot{at("a", 1, nil), at("b", 2, nil)}, "b"},
		"ties go to the greater id":     {[]*fleet.Snapshot{at("b", 1, nil), at("a", 1, nil)}, "b"},
		"one that is being restored":    {[]*fleet.Snapshot{at("a", 1, func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateRestoring })}, "a"},
		"not one that is being made":    {[]*fleet.Snapshot{at("a", 1, func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateCreating })}, "seed"},
		"not one of an earlier life":    {[]*fleet.Snapshot{at("a", 1, func(s *fleet.Snapshot) { s.UID = "before" })}, "seed"},
		"not one that is to be no more": {[]*fleet.Snapshot{at("a", 1, func(s *fleet.Snapshot) { s.Discard = true })}, "seed"},
	} {
		if got := Parent(slices.Values(tt.all), vm, snap("seed", nil)); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if got := Parent(slices.Values([]*fleet.Snapshot(nil)), vm, snap("seed", func(s *fleet.Snapshot) { s.Ephemeral = true })); got != "" {
		t.Errorf("it builds on %q, which goes with the forks", got)
	}
}

// A retention means something for an environment that is captured again and
// again; what others made of a snapshot keeps it.
func TestCollectable(t *testing.T) {
	s, c := snap("s", nil), snap("c", nil)
	c.ParentSnapshotID = "s"
	all := func(string) bool { return true }
	of := func(vms ...*fleet.VM) error {
		return Collectable(s, slices.Values([]*fleet.Snapshot{s, c}), slices.Values(vms), all)
	}
	if err := of(); err != nil {
		t.Error("a later one of the same life keeps it:", err)
	}
	if err := of(&fleet.VM{ID: "v", Spec: fleet.Spec{SeedSnapshotID: "s"}}); !errors.Is(err, fleet.ErrSnapshotInUse) {
		t.Errorf("in use: %v", err)
	}
	c.UID = "another"
	if err := of(); !errors.Is(err, fleet.ErrSnapshotHasChildren) {
		t.Errorf("another life's: %v", err)
	}
}

func TestRemovable(t *testing.T) {
	s := snap("s", nil)
	var many []*fleet.VM
	for i := range 8 {
		many = append(many, &fleet.VM{ID: fmt.Sprintf("vm-%d", i), Owner: "alice", Spec: fleet.Spec{SeedSnapshotID: "s"}})
	}
	child := func(change func(*fleet.Snapshot)) []*fleet.Snapshot {
		c := snap("c", change)
		c.ParentSnapshotID = "s"
		return []*fleet.Snapshot{s, c}
	}
	for name, tt := range map[string]struct {
		s        *fleet.Snapshot
		all      []*fleet.Snapshot
		vms      []*fleet.VM
		sentinel error
		says     string
	}{
		"alone":                   {s: s},
		"an error":                {s: snap("s", func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateError })},
		"deleting already":        {s: snap("s", func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateDeleting })},
		"being taken":             {s: snap("s", func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateCreating }), sentinel: fleet.ErrSnapshotInvalidState, says: "creating"},
		"being restored":          {s: snap("s", func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateRestoring }), sentinel: fleet.ErrSnapshotInvalidState, says: "restoring"},
		"a child":                 {s: s, all: child(nil), sentinel: fleet.ErrSnapshotHasChildren, says: ": c"},
		"a child on its way out":  {s: s, all: child(func(c *fleet.Snapshot) { c.State = fleet.SnapshotStateDeleting })},
		"a child of no use":       {s: s, all: child(func(c *fleet.Snapshot) { c.State, c.Discard = fleet.SnapshotStateError, true })},
		"a stranger's child":      {s: s, all: child(func(c *fleet.Snapshot) { c.Owner = "bob" }), sentinel: fleet.ErrSnapshotHasChildren, says: "1 others"},
		"used":                    {s: s, vms: many[:1], sentinel: fleet.ErrSnapshotInUse, says: "by vm-0"},
		"used by many":            {s: s, vms: many, sentinel: fleet.ErrSnapshotInUse, says: "vm-0, vm-1, vm-2, vm-3, vm-4 and 3 others"},
		"used by another's of it": {s: s, vms: []*fleet.VM{{ID: "secret", Owner: "bob", Spec: fleet.Spec{SeedSnapshotID: "s"}}}, sentinel: fleet.ErrSnapshotInUse, says: "1 others"},
		"another one is used":     {s: s, vms: []*fleet.VM{{ID: "vm", Spec: fleet.Spec{SeedSnapshotID: "x"}}}},
	} {
		err := Removable(tt.s, slices.Values(tt.all), slices.Values(tt.vms), func(owner string) bool { return owner == "alice" })
		if (err == nil) != (tt.sentinel == nil) || err != nil && (!errors.Is(err, tt.sentinel) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// However snapshots are admitted and kept, no tenant is ever over its limits,
// and one that has room is not refused.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := Limits{Count: rapid.IntRange(0, 5).Draw(rt, "count"), Bytes: rapid.Int64Range(0, 100).Draw(rt, "bytes")}
		var all []*fleet.Snapshot
		for i := range rapid.IntRange(1, 30).Draw(rt, "steps") {
			tenant := rapid.SampledFrom([]string{"t", "u"}).Draw(rt, "tenant")
			used := UsageOf(slices.Values(all), tenant, "")
			err := l.Admit(tenant, used)
			if full := l.Count > 0 && used.Count >= l.Count || l.Bytes > 0 && used.Bytes >= l.Bytes; (err != nil) != full {
				rt.Fatalf("with %+v of %+v: %v", used, l, err)
			}
			if err != nil {
				if len(all) > 0 && rapid.Bool().Draw(rt, "drop") {
					all = slices.Delete(all, 0, 1)
				}
				continue
			}
			s := snap(fmt.Sprintf("s%d", i), func(s *fleet.Snapshot) {
				s.TenantID, s.State, s.SizeBytes = tenant, fleet.SnapshotStateCreating, 0
				s.Mode = rapid.SampledFrom([]fleet.SnapshotMode{fleet.SnapshotModeManual, fleet.SnapshotModeAuto}).Draw(rt, "mode")
			})
			all = append(all, s)
			size := rapid.Int64Range(0, 60).Draw(rt, "size")
			if err := l.Keep(tenant, UsageOf(slices.Values(all), tenant, s.SnapshotID), size); err != nil {
				all = all[:len(all)-1]
				continue
			}
			s.State, s.SizeBytes = fleet.SnapshotStateReady, size
			for _, name := range []string{"t", "u"} {
				u := UsageOf(slices.Values(all), name, "")
				if l.Count > 0 && u.Count > l.Count || l.Bytes > 0 && u.Bytes > l.Bytes {
					rt.Fatalf("%s keeps %+v of %+v", name, u, l)
				}
			}
		}
	})
	build := snap("b", func(s *fleet.Snapshot) { s.Mode = fleet.SnapshotModeBuild })
	if u := UsageOf(slices.Values([]*fleet.Snapshot{build, snap("e", func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateError })}), "t", ""); u != (Usage{}) {
		t.Errorf("builds and errors count: %+v", u)
	}
}

func TestBytes(t *testing.T) {
	records := map[string]*fleet.Snapshot{
		"ok": snap("ok", nil), "gone": snap("gone", nil), "bad": snap("bad", nil), "other": snap("other", nil),
		"making": snap("making", func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateCreating }),
		"young":  snap("young", func(s *fleet.Snapshot) { s.Revision = 11 }),
		"moved":  snap("moved", func(s *fleet.Snapshot) { s.HostID = "elsewhere" }),
	}
	art := func(id string) fleet.Artifact { return fleet.Artifact{ID: id, Digest: "d-" + id, VMID: "vm"} }
	spoilt, strange := art("bad"), art("other")
	spoilt.Bad, strange.Digest = "cut short", "x"
	look := Look{HostID: "h", Complete: true, Sent: 10, Artifacts: []fleet.Artifact{art("ok"), spoilt, strange, art("nobody"), art("moved"), art("making")}}
	kinds := func(fs []Finding) map[string]FindingKind {
		m := map[string]FindingKind{}
		for _, f := range fs {
			m[f.ID] = f.Kind
		}
		return m
	}
	first, seen := Bytes([]Look{look}, records, nil)
	if diff := cmp.Diff(map[string]FindingKind{"bad": Bad, "other": Bad}, kinds(first)); diff != "" {
		t.Error("first:", diff)
	}
	partial := Look{HostID: "h"}
	between, seen := Bytes([]Look{partial}, records, seen)
	if len(between) != 0 {
		t.Errorf("a look that is not complete found %v", between)
	}
	second, _ := Bytes([]Look{look}, records, seen)
	if diff := cmp.Diff(map[string]FindingKind{"bad": Bad, "other": Bad, "nobody": Orphan, "moved": Orphan, "gone": Gone}, kinds(second)); diff != "" {
		t.Error("second:", diff)
	}
	// What was seen once and not again is forgotten.
	healthy := Look{HostID: "h", Complete: true, Sent: 10, Artifacts: []fleet.Artifact{art("ok"), art("bad"), art("other"), art("gone")}}
	_, seen = Bytes([]Look{healthy}, records, Seen{{"h", "nobody", Orphan}: 1, {"h", "gone", Gone}: 1})
	if len(seen) != 0 {
		t.Errorf("remembered: %v", seen)
	}
}

// Bytes with a record of that host are never deleted, nothing is concluded from a
// look that is not complete, nor about what was written after it was sent.
func TestBytesIsCareful(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ids := []string{"a", "b", "c"}
		seen := Seen{}
		for range rapid.IntRange(1, 8).Draw(rt, "rounds") {
			records := map[string]*fleet.Snapshot{}
			for _, id := range ids {
				if rapid.Bool().Draw(rt, "record") {
					records[id] = snap(id, func(s *fleet.Snapshot) {
						s.HostID = rapid.SampledFrom([]string{"h", "g"}).Draw(rt, "host")
						s.Revision = uint64(rapid.IntRange(1, 20).Draw(rt, "revision"))
						s.State = rapid.SampledFrom([]fleet.SnapshotState{fleet.SnapshotStateReady, fleet.SnapshotStateCreating, fleet.SnapshotStateDeleting, fleet.SnapshotStateError}).Draw(rt, "state")
					})
				}
			}
			var looks []Look
			complete := map[string]Look{}
			for _, h := range []string{"h", "g"} {
				l := Look{HostID: h, Complete: rapid.Bool().Draw(rt, "complete"), Sent: 10}
				for _, id := range ids {
					if l.Complete && rapid.Bool().Draw(rt, "there") {
						l.Artifacts = append(l.Artifacts, fleet.Artifact{ID: id, Digest: "d-" + id})
					}
				}
				looks = append(looks, l)
				if l.Complete {
					complete[h] = l
				}
			}
			before := seen
			var found []Finding
			found, seen = Bytes(looks, records, before)
			for _, f := range found {
				l, ok := complete[f.HostID]
				r := records[f.ID]
				there := slices.ContainsFunc(l.Artifacts, func(a fleet.Artifact) bool { return a.ID == f.ID })
				switch {
				case !ok:
					rt.Fatalf("%+v without a complete look", f)
				case f.Kind == Orphan && (r != nil && r.HostID == f.HostID || !there || before[SeenKey{f.HostID, f.ID, Orphan}] == 0):
					rt.Fatalf("%+v with record %+v, there %t", f, r, there)
				case f.Kind == Gone && (r == nil || r.State != fleet.SnapshotStateReady || r.Revision > l.Sent || there || before[SeenKey{f.HostID, f.ID, Gone}] == 0):
					rt.Fatalf("%+v with record %+v, there %t", f, r, there)
				}
			}
		}
	})
}

func TestSeedable(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*fleet.Snapshot)
		live     bool
		sentinel error
	}{
		"disk":                 {nil, false, nil},
		"live":                 {func(s *fleet.Snapshot) { s.Kind = fleet.SnapshotKindLive }, true, nil},
		"an older record":      {func(s *fleet.Snapshot) { s.Kind = "" }, false, nil},
		"live as disk":         {func(s *fleet.Snapshot) { s.Kind = fleet.SnapshotKindLive }, false, fleet.ErrSnapshotNotSeedable},
		"disk as live":         {nil, true, fleet.ErrSnapshotNotSeedable},
		"an error":             {func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateError }, false, fleet.ErrSnapshotInvalidState},
		"being taken":          {func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateCreating }, false, fleet.ErrSnapshotInvalidState},
		"to be no more":        {func(s *fleet.Snapshot) { s.Discard = true }, false, fleet.ErrSnapshotInvalidState},
		"on no host":           {func(s *fleet.Snapshot) { s.HostID = "" }, false, fleet.ErrSnapshotInvalidState},
		"while it is restored": {func(s *fleet.Snapshot) { s.State = fleet.SnapshotStateRestoring }, false, nil},
	} {
		if err := Seedable(snap("s", tt.change), tt.live); !errors.Is(err, tt.sentinel) || (err == nil) != (tt.sentinel == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
