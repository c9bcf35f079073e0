package snapshots

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// Filter selects snapshots by exact values; empty ones select all (seed:
// SnapshotFilter).
type Filter struct {
	VMID, TaskID, TenantID string
	State                  fleet.SnapshotState
	Mode                   fleet.SnapshotMode
	Name, LayerKey, Arch   string
}

func (f *Filter) matches(s *fleet.Snapshot) bool {
	for _, c := range [][2]string{
		{f.VMID, s.VMID},
		{f.TaskID, s.TaskID},
		{f.TenantID, s.TenantID},
		{string(f.State), string(s.State)},
		{string(f.Mode), string(s.Mode)},
		{f.LayerKey, s.LayerKey},
		{f.Arch, s.Arch},
	} {
		if c[0] != "" && c[0] != c[1] {
			return false
		}
	}
	return f.Name == "" || Metadata(s)["name"] == f.Name
}

// List gives a page of snapshots, the newest first, that sees allows. after is
// the mark of the page before, next that of this one; empty: it is the last.
func (s *core) List(f Filter, sees func(owner string) bool, after string, limit int) (page []*fleet.Snapshot, next string, err error) {
	from, ok := parseMark(after)
	if !ok {
		return nil, "", fleet.Errorf(fleet.CodeInvalidArgument, "%w", fleet.ErrInvalidCursor).
			With(fleet.DetailScope, "cursor").With(fleet.DetailRemedy, "use next_cursor of the page before, or none")
	}
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		all := tx.Snapshots().All()
		if f.VMID != "" {
			all = tx.Snapshots().ByVM(f.VMID)
		}
		for snap := range all {
			if sees(snap.Owner) && f.matches(snap) && (after == "" || older(snap, &from)) {
				page = append(page, snap)
			}
		}
		return nil
	})
	slices.SortFunc(page, func(a, b *fleet.Snapshot) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.SnapshotID, a.SnapshotID))
	})
	if len(page) > limit {
		page = page[:limit]
		next = mark(page[limit-1])
	}
	return page, next, err
}

func older(a, than *fleet.Snapshot) bool {
	return decide.Newer(than, a)
}

// mark names a place in a list: when a snapshot was made, and which.
func mark(s *fleet.Snapshot) string {
	return strconv.FormatInt(s.CreatedAt.UnixMicro(), 10) + "/" + s.SnapshotID
}

func parseMark(text string) (s fleet.Snapshot, ok bool) {
	if text == "" {
		return s, true
	}
	at, id, found := strings.Cut(text, "/")
	n, err := strconv.ParseInt(at, 10, 64)
	s.CreatedAt, s.SnapshotID = time.UnixMicro(n).UTC(), id
	return s, found && err == nil && id != ""
}

// Resolve finds the newest ready layer of a recipe within a scope (seed:
// ResolveLayer). An empty key or architecture matches nothing.
func (s *core) Resolve(tenant, layerKey, arch string) (found *fleet.Snapshot, err error) {
	if layerKey == "" || arch == "" {
		return nil, nil
	}
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		for snap := range tx.Snapshots().All() {
			if snap.TenantID != tenant || snap.LayerKey != layerKey || snap.Arch != arch || snap.State != fleet.SnapshotStateReady || snap.Discard {
				continue
			}
			if found == nil || decide.Newer(snap, found) {
				found = snap
			}
		}
		return nil
	})
	return found, err
}

// Progress is how far work on a snapshot is; ok is false while there is none.
func (s *core) Progress(id string) (p provider.SnapshotProgress, ok bool) {
	return s.doing.Of(id)
}

// noted passes progress on and keeps it for who asks, until the result is called.
func (s *core) noted(id string, tell *progress) (emit func(provider.SnapshotProgress), end func()) {
	note, end := s.doing.Note(id)
	return func(u provider.SnapshotProgress) {
		note(u)
		tell.emit(u)
	}, end
}
