// Package snapstore knows the captures that a host keeps: whose they are, what
// they hold, who uses them, and which may never be written again. What it is
// told is on disk before it answers, so the host agent may die at any moment.
package snapstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/journal"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/keylock"
)

// Captures that are gone are remembered so long, and at most so many of them:
// a capture that comes late finds that it must not be written.
const (
	goneKeep = 24 * time.Hour
	goneMax  = 20000
)

// State is where a capture stands.
type State string

// States. One that was being written when the host agent died is discarded at
// its next start, and one that was being deleted is deleted.
const (
	Writing  State = "writing"
	Ready    State = "ready"
	Deleting State = "deleting"
)

// Record is one capture.
type Record struct {
	ID      string    `json:"id"`
	FleetID string    `json:"fleet_id"`
	OpID    string    `json:"op_id"`
	VMID    string    `json:"vm_id"`
	UID     string    `json:"uid"`
	Live    bool      `json:"live"` // as it was asked for
	At      time.Time `json:"at"`
	State   State     `json:"state"`
	// Info is what was written, once it is.
	Info *driver.SnapshotInfo `json:"info,omitempty"`
	// Bad says why it must not be used; empty: it may.
	Bad string `json:"bad,omitempty"`
}

// entry is a line of the log; exactly one field is set.
type entry struct {
	Record *Record `json:"record,omitempty"`
	Gone   *gone   `json:"gone,omitempty"`
}

type gone struct {
	FleetID string    `json:"fleet_id"`
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
}

// Store holds the records.
type Store struct {
	dir string
	log *slog.Logger
	j   *journal.Journal

	files keylock.Lock // by id: a capture's directory is made, its owner written and all of it removed one after another

	mu      sync.Mutex
	records map[string]*Record // by id
	users   map[string][]string
	last    map[string]time.Time // of use, since this program began
	gone    *ops.Recent[*gone]   // by fleet and id
	// unreadable are directories that no record explains: nobody's to touch.
	unreadable map[string]bool
}

// ownerFile is the record in the capture's own directory.
const ownerFile = "owner.json"

var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// Open reads what is kept in dir.
func Open(dir string, log *slog.Logger) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(dir, "snapshots"), 0o700); err != nil {
		return nil, fmt.Errorf("make the snapshots' directory: %w", err)
	}
	s := &Store{
		dir: filepath.Join(dir, "snapshots"), log: log, records: map[string]*Record{}, users: map[string][]string{}, last: map[string]time.Time{},
		gone: ops.NewRecent[*gone](goneKeep, goneMax), unreadable: map[string]bool{},
	}
	j, damaged, err := journal.Open(filepath.Join(dir, "snapshots.log"), s.apply)
	if err != nil {
		return nil, err
	}
	j.Snapshot, s.j = s.snapshot, j
	if damaged > 0 {
		log.Error("snapshot log has damaged lines", "lines", damaged)
	}
	if err := s.compare(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return s, nil
}

// Close closes the log.
func (s *Store) Close() error { return s.j.Close() }

func (s *Store) apply(doc []byte) error {
	var e entry
	if err := json.Unmarshal(doc, &e); err != nil {
		return err
	}
	switch {
	case e.Record != nil && validID.MatchString(e.Record.ID):
		s.records[e.Record.ID] = e.Record
	case e.Gone != nil:
		if r := s.records[e.Gone.ID]; r != nil && r.FleetID == e.Gone.FleetID {
			delete(s.records, e.Gone.ID)
		}
		s.gone.Put(key(e.Gone.FleetID, e.Gone.ID), e.Gone, e.Gone.At)
	}
	return nil
}

func key(fleetID, id string) string { return fleetID + " " + id }

// snapshot are the records that say the same as the whole log.
func (s *Store) snapshot() (out []any, queued []*journal.Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		c := *r
		out = append(out, entry{Record: &c})
	}
	s.gone.Each(func(g *gone) { out = append(out, entry{Gone: g}) })
	return out, s.j.Take()
}

// compare looks for captures that the log does not know: one with a sound
// record of its own is taken back, another one is left alone.
func (s *Store) compare() error {
	dirs, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("read the snapshots' directory: %w", err)
	}
	there := map[string]bool{}
	for _, d := range dirs {
		id := d.Name()
		there[id] = true
		if s.records[id] != nil {
			continue
		}
		doc, err := os.ReadFile(filepath.Join(s.dir, id, ownerFile))
		var r Record
		if err != nil || json.Unmarshal(doc, &r) != nil || r.ID != id || r.FleetID == "" {
			s.unreadable[id] = true
			s.log.Warn("snapshot directory has no readable owner, left alone", "snapshot_id", id)
			continue
		}
		if _, over := s.gone.Get(key(r.FleetID, id)); over {
			r.State = Deleting
		}
		s.log.Warn("snapshot taken back from its own directory", "snapshot_id", id)
		s.records[id] = &r
		s.j.Append(entry{Record: &r}, true)
	}
	for id, r := range s.records {
		if !there[id] && r.State == Ready && r.Bad == "" {
			r.Bad = "its files are gone from the host"
			s.log.Error("the files of a snapshot are gone", "snapshot_id", id)
		}
	}
	return nil
}

// Artifact is where a capture lies.
func (s *Store) Artifact(id string) driver.Artifact {
	return driver.Artifact{ID: id, Dir: filepath.Join(s.dir, id)}
}

// ErrSame says that the same operation has begun or made the capture.
var ErrSame = errors.New("the same operation")

// Begin registers a capture that is to be written and makes its directory. With
// ErrSame it returns the record that the operation made.
func (s *Store) Begin(r Record) (Record, error) {
	if !validID.MatchString(r.ID) {
		return r, fleet.Errorf(fleet.CodeInvalidArgument, "snapshot id %.80q is not allowed", r.ID).With(fleet.DetailLimit, validID.String())
	}
	r.State, r.At, r.Info, r.Bad = Writing, time.Now().UTC(), nil, ""
	s.mu.Lock()
	old := s.records[r.ID]
	_, over := s.gone.Get(key(r.FleetID, r.ID))
	switch {
	case old != nil && old.FleetID == r.FleetID && old.OpID == r.OpID && old.State != Deleting:
		same := *old
		s.mu.Unlock()
		return same, ErrSame
	case old != nil || s.unreadable[r.ID]:
		s.mu.Unlock()
		return r, fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s is already there", fleet.ErrSnapshotInvalidState, r.ID)
	case over:
		s.mu.Unlock()
		return r, fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s was deleted and cannot be written any more", fleet.ErrSnapshotInvalidState, r.ID)
	}
	s.records[r.ID] = &r
	t := s.j.Append(entry{Record: copied(r)}, true)
	s.mu.Unlock()
	if err := t.Wait(); err != nil {
		s.forget(r.ID)
		return r, err
	}
	if err := s.makeDir(r); err != nil {
		return r, errors.Join(err, s.Gone(r))
	}
	return r, nil
}

func copied(r Record) *Record { return &r }

// Deleted is the error about a capture whose deletion came before its end.
func Deleted(id string) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s was deleted while it was written", fleet.ErrSnapshotInvalidState, id)
}

// alone waits until nobody else changes a capture's directory.
func (s *Store) alone(id string) (unlock func()) {
	unlock, _ = s.files.Take(context.Background(), id) // which does not end
	return unlock
}

// makeDir makes a capture's directory, unless its deletion has come since.
func (s *Store) makeDir(r Record) error {
	defer s.alone(r.ID)()
	if now, err := s.Get(r.FleetID, r.ID); err != nil || now.State != Writing {
		return Deleted(r.ID)
	}
	dir := s.Artifact(r.ID).Dir
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make the snapshot's directory: %w", err)
	}
	if err := durable.WriteFile(filepath.Join(dir, ownerFile), doc); err != nil {
		return fmt.Errorf("write the snapshot's owner: %w", err)
	}
	return durable.SyncDir(s.dir)
}

func (s *Store) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
}

// Written settles a capture that was being written.
func (s *Store) Written(id string, info driver.SnapshotInfo) (Record, error) {
	return s.change(id, func(r *Record) error {
		if r.State != Writing {
			return Deleted(id)
		}
		r.State, r.Info = Ready, &info
		return nil
	})
}

// Damaged puts a capture into quarantine; the first reason counts.
func (s *Store) Damaged(id, why string) (Record, error) {
	return s.change(id, func(r *Record) error {
		if r.Bad == "" {
			r.Bad = why
		}
		return nil
	})
}

// change changes a record and returns once that is durable.
func (s *Store) change(id string, f func(*Record) error) (Record, error) {
	s.mu.Lock()
	r := s.records[id]
	if r == nil {
		s.mu.Unlock()
		return Record{}, notFound(id)
	}
	next := *r
	if err := f(&next); err != nil {
		s.mu.Unlock()
		return next, err
	}
	s.records[id] = &next
	t := s.j.Append(entry{Record: copied(next)}, true)
	s.mu.Unlock()
	if err := t.Wait(); err != nil {
		return next, err
	}
	if err := s.writeOwner(next.FleetID, id); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("owner of a snapshot not written", "snapshot_id", id, "error", err)
	}
	return next, nil
}

// writeOwner writes what a lost log would be replaced by: the record as it is
// now, whichever of two changes comes to it last.
func (s *Store) writeOwner(fleetID, id string) error {
	defer s.alone(id)()
	r, err := s.Get(fleetID, id)
	if err != nil {
		return nil // it is gone
	}
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(s.Artifact(id).Dir, ownerFile), doc)
}

// Gone removes a capture's directory and its record, and remembers that it must
// not be written any more.
func (s *Store) Gone(r Record) error {
	defer s.alone(r.ID)()
	if err := os.RemoveAll(s.Artifact(r.ID).Dir); err != nil {
		return fmt.Errorf("remove the snapshot's directory: %w", err)
	}
	return s.bury(r.FleetID, r.ID)
}

// bury remembers that a capture of a fleet must not be written any more.
func (s *Store) bury(fleetID, id string) error {
	g := &gone{FleetID: fleetID, ID: id, At: time.Now().UTC()}
	s.mu.Lock()
	if r := s.records[id]; r != nil && r.FleetID == fleetID {
		delete(s.records, id)
		delete(s.last, id)
	}
	s.gone.Put(key(fleetID, id), g, g.At)
	t := s.j.Append(entry{Gone: g}, true)
	s.mu.Unlock()
	return t.Wait()
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "%w: this host has no %s", fleet.ErrSnapshotNotFound, id)
}

// Get finds a fleet's capture.
func (s *Store) Get(fleetID, id string) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.getLocked(fleetID, id)
}

func (s *Store) getLocked(fleetID, id string) (Record, error) {
	r := s.records[id]
	if r == nil || r.FleetID != fleetID {
		return Record{}, notFound(id)
	}
	return *r, nil
}

// Use finds a capture that can be used and keeps it from being deleted until
// release. user is told to who wants to delete it.
func (s *Store) Use(fleetID, id, user string) (r Record, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, err = s.getLocked(fleetID, id); err != nil {
		return r, nil, err
	}
	switch {
	case r.State != Ready:
		return r, nil, fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s is %s", fleet.ErrSnapshotInvalidState, id, r.State)
	case r.Bad != "":
		return r, nil, Corrupt(id, r.Bad)
	case r.Info == nil:
		return r, nil, Corrupt(id, "what it holds is not on record")
	}
	s.users[id], s.last[id] = append(s.users[id], user), time.Now()
	return r, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.Index(s.users[id], user); i >= 0 {
			s.users[id] = slices.Delete(s.users[id], i, i+1)
		}
		if len(s.users[id]) == 0 {
			delete(s.users, id)
		}
	}), nil
}

// Corrupt is the error about a capture that is not what was written.
func Corrupt(id, why string) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s: %s", fleet.ErrSnapshotCorrupt, id, why).
		With(fleet.DetailReason, why).With(fleet.DetailRemedy, "delete it and take another one")
}

// Condemn marks a capture that is to be deleted, unless somebody uses it. One
// that is not there can no longer be written, and found is false.
func (s *Store) Condemn(fleetID, id string) (r Record, found bool, err error) {
	s.mu.Lock()
	r, err = s.getLocked(fleetID, id)
	foreign := err != nil && (s.records[id] != nil || s.unreadable[id])
	s.mu.Unlock()
	switch {
	case foreign:
		return r, false, fleet.Errorf(fleet.CodeForbidden, "snapshot %s belongs to another fleet", id).With(fleet.DetailReason, "foreign")
	case err != nil:
		return r, false, s.bury(fleetID, id)
	}
	r, err = s.change(id, func(r *Record) error {
		if users := s.users[id]; len(users) > 0 {
			return InUse(id, users)
		}
		r.State = Deleting
		return nil
	})
	return r, true, err
}

// InUse is the error about a capture that somebody uses.
func InUse(id string, users []string) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s is used by %v", fleet.ErrSnapshotInUse, id, users).
		With(fleet.DetailUsage, fmt.Sprint(users)).With(fleet.DetailRemedy, "wait until they run")
}

// List lists a fleet's captures by id, those that are being written or deleted
// apart, and counts those of others.
func (s *Store) List(fleetID string) (out []Record, users map[string][]string, foreign int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	users = map[string][]string{}
	foreign = len(s.unreadable)
	for _, id := range slices.Sorted(maps.Keys(s.records)) {
		r := s.records[id]
		switch {
		case r.FleetID != fleetID:
			foreign++
		case r.State == Ready:
			out = append(out, *r)
			users[id] = slices.Clone(s.users[id])
		}
	}
	return out, users, foreign
}

// In lists the captures in a state, whoever's they are.
func (s *Store) In(states ...State) (out []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.records)) {
		if r := s.records[id]; slices.Contains(states, r.State) {
			out = append(out, *r)
		}
	}
	return out
}

// Use is when a capture was last used; that it was written counts.
type Use struct {
	Record
	Last time.Time
	Busy bool
}

// Uses are those of all captures that can be used.
func (s *Store) Uses() (out []Use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, r := range s.records {
		if r.State != Ready {
			continue
		}
		u := Use{Record: *r, Last: r.At, Busy: len(s.users[id]) > 0}
		if at := s.last[id]; at.After(u.Last) {
			u.Last = at
		}
		out = append(out, u)
	}
	return out
}

// StorageGB is what all captures take of the host's disk, rounded up.
func (s *Store) StorageGB() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var bytes int64
	for _, r := range s.records {
		if r.Info != nil {
			bytes += r.Info.SizeBytes
		}
	}
	return int((bytes + 1<<30 - 1) >> 30)
}

// Forget lets go of what need not be remembered any more.
func (s *Store) Forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone.Forget(now)
}
