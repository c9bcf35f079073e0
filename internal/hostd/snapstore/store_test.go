package snapstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/testkit"
)

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func begin(t testing.TB, s *Store, id string) Record {
	t.Helper()
	r, err := s.Begin(Record{ID: id, FleetID: "f", OpID: "op-" + id, VMID: "vm", UID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var info = driver.SnapshotInfo{Kind: fleet.SnapshotKindLive, Digest: "sha256:1", SizeBytes: 3 << 29}

func TestALifeOfACapture(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	r := begin(t, s, "a")
	if same, err := s.Begin(r); !errors.Is(err, ErrSame) || same.State != Writing {
		t.Errorf("the same operation: %+v %v", same, err)
	}
	other := r
	other.OpID = "other"
	if _, err := s.Begin(other); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("another operation: %v", err)
	}
	if _, _, err := s.Use("f", "a", "vm"); !errors.Is(err, fleet.ErrSnapshotInvalidState) {
		t.Errorf("use of one that is being written: %v", err)
	}
	if list, _, _ := s.List("f"); len(list) != 0 {
		t.Errorf("one that is being written is listed: %v", list)
	}
	if _, err := s.Written("a", info); err != nil {
		t.Fatal(err)
	}
	if got := s.StorageGB(); got != 2 {
		t.Errorf("%d GiB are taken, want 2", got)
	}
	_, release, err := s.Use("f", "a", "vm-2")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Condemn("f", "a"); !errors.Is(err, fleet.ErrSnapshotInUse) {
		t.Errorf("deleted while in use: %v", err)
	}
	if _, users, _ := s.List("f"); !cmp.Equal(users["a"], []string{"vm-2"}) {
		t.Errorf("users %v", users)
	}
	release()
	release()
	if _, _, err := s.Condemn("g", "a"); fleet.CodeOf(err) != fleet.CodeForbidden {
		t.Errorf("another fleet's: %v", err)
	}
	r, found, err := s.Condemn("f", "a")
	if err != nil || !found || r.State != Deleting {
		t.Fatal(r, found, err)
	}
	if err := s.Gone(r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin(r); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("written after its deletion: %v", err)
	}
	if _, found, err := s.Condemn("f", "never"); found || err != nil {
		t.Error(found, err)
	}
	if _, err := s.Begin(Record{ID: "never", FleetID: "f"}); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("written after a deletion that found nothing: %v", err)
	}
	if _, err := s.Begin(Record{ID: "../x", FleetID: "f"}); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("an id that is a path: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A deletion that comes before a capture has its directory leaves none behind,
// whichever of the two gets to the disk first.
func TestADeletionBeforeTheDirectory(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	unlock, err := s.files.Take(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	begun, condemned := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Begin(Record{ID: "a", FleetID: "f", OpID: "op", VMID: "vm", UID: "u"})
		begun <- err
	}()
	state := func() State { r, _ := s.Get("f", "a"); return r.State }
	testkit.Eventually(t, time.Minute, "the capture is on record", func() bool { return state() == Writing })
	go func() {
		_, _, err := s.Condemn("f", "a")
		condemned <- err
	}()
	testkit.Eventually(t, time.Minute, "its deletion is", func() bool { return state() == Deleting })
	unlock()
	if err := <-begun; !errors.Is(err, fleet.ErrSnapshotInvalidState) || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("it began: %v", err)
	}
	if err := <-condemned; err != nil {
		t.Errorf("the deletion: %v", err)
	}
	if _, err := os.Stat(s.Artifact("a").Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if left := s.In(Writing, Ready, Deleting); len(left) != 0 {
		t.Errorf("on record: %+v", left)
	}
}

// Two changes at once leave on disk what the later one made of the record.
func TestTheOwnerOnDiskIsTheLastChange(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	for i := range 50 {
		id := fmt.Sprintf("s%d", i)
		begin(t, s, id)
		var both sync.WaitGroup
		for _, f := range []func() error{
			func() error { _, err := s.Damaged(id, "torn"); return err },
			func() error { _, _, err := s.Condemn("f", id); return err },
		} {
			both.Go(func() {
				if err := f(); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		var got Record
		doc, err := os.ReadFile(filepath.Join(s.Artifact(id).Dir, ownerFile))
		if err = errors.Join(err, json.Unmarshal(doc, &got)); err != nil || got.State != Deleting || got.Bad != "torn" {
			t.Fatalf("%s on disk: %+v %v", id, got, err)
		}
	}
}

func TestAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, id := range []string{"ready", "bad", "lost", "writing", "deleting", "gone"} {
		r := begin(t, s, id)
		if id == "writing" {
			continue
		}
		if _, err := s.Written(id, info); err != nil {
			t.Fatal(err)
		}
		switch id {
		case "bad":
			if _, err := s.Damaged(id, "torn"); err != nil {
				t.Fatal(err)
			}
			if r, err := s.Damaged(id, "again"); err != nil || r.Bad != "torn" {
				t.Error("the first reason counts", r, err)
			}
		case "deleting":
			if _, _, err := s.Condemn("f", id); err != nil {
				t.Fatal(err)
			}
		case "gone":
			if err := s.Gone(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(s.Close(), os.RemoveAll(filepath.Join(dir, "snapshots", "lost")), os.Mkdir(filepath.Join(dir, "snapshots", "stranger"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, log := range []string{"whole", "lost"} {
		if log == "lost" { // the captures' own records replace it
			if err := os.Remove(filepath.Join(dir, "snapshots.log")); err != nil {
				t.Fatal(err)
			}
		}
		s = open(t, dir)
		got := map[string]string{}
		for _, r := range s.In(Writing, Ready, Deleting) {
			got[r.ID] = string(r.State) + " " + r.Bad
		}
		want := map[string]string{"ready": "ready ", "bad": "ready torn", "lost": "ready its files are gone from the host", "writing": "writing ", "deleting": "deleting "}
		if log == "lost" {
			delete(want, "lost")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s log: %s", log, diff)
		}
		if _, _, foreign := s.List("f"); foreign != 1 {
			t.Errorf("%d are foreign, want the stranger", foreign)
		}
		if _, _, err := s.Condemn("f", "stranger"); fleet.CodeOf(err) != fleet.CodeForbidden {
			t.Errorf("a directory of nobody is deleted: %v", err)
		}
		if _, _, err := s.Use("f", "bad", "vm"); !errors.Is(err, fleet.ErrSnapshotCorrupt) {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever was done before a restart, the records are the same after it.
func TestRestartsChangeNothing(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "snapstore")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s := open(t, dir)
		for range rapid.IntRange(0, 15).Draw(r, "steps") {
			id := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "id")
			switch rapid.IntRange(0, 4).Draw(r, "step") {
			case 0:
				_, _ = s.Begin(Record{ID: id, FleetID: "f", OpID: rapid.SampledFrom([]string{"1", "2"}).Draw(r, "op")})
			case 1:
				_, _ = s.Written(id, info)
			case 2:
				_, _ = s.Damaged(id, "torn")
			case 3:
				_, _, _ = s.Condemn("f", id)
			case 4:
				if rec, err := s.Get("f", id); err == nil {
					if err := s.Gone(rec); err != nil {
						r.Fatal(err)
					}
				}
			}
		}
		before := s.In(Writing, Ready, Deleting)
		if err := s.Close(); err != nil {
			r.Fatal(err)
		}
		s = open(t, dir)
		defer s.Close()
		if diff := cmp.Diff(before, s.In(Writing, Ready, Deleting)); diff != "" {
			r.Fatal(diff)
		}
		for _, rec := range before {
			if _, err := os.Stat(s.Artifact(rec.ID).Dir); err != nil {
				r.Fatal(err)
			}
		}
	})
}
