package sim

import (
	"strings"
	"testing"
	"time"
)

// Two servers with different stores, one a copy of the other's, on the same
// hosts: the copy destroys nothing, creates nothing, and says why; the original
// goes on as if it were alone.
func TestACopyNeverActs(t *testing.T) {
	none(t, scene(t, 3, broken{}, func(w *world) {
		u := w.newUser(1)
		for _, task := range []string{"t1", "t2", "t3"} {
			u.create(task)
		}
		_ = pause(w.ctx, w.ctx, time.Minute)
		db, err := w.db.copy(w.ctx, "elsewhere")
		if err != nil {
			w.wrong("copy: %v", err)
			return
		}
		u.destroy("t1")
		u.create("t4") // unknown to the copy: an orphan in its eyes
		s := &server{w: w, name: roguePrefix, db: db}
		w.rogues = append(w.rogues, s)
		s.start()
		_ = pause(w.ctx, w.ctx, 3*time.Minute)

		// Whom the copy serves is told that it cannot act.
		w.only(s.now())
		_, err = u.api.Destroy(w.ctx, vmID("t2"))
		if env, getErr := u.api.Get(w.ctx, vmID("t2")); err == nil && getErr == nil && env.State != "destroying" {
			w.wrong("the copy says that it has destroyed: %+v", env)
		}
		w.only(nil)
		_ = pause(w.ctx, w.ctx, 3*time.Minute)
		u.create("t5")
		u.drain("t3")
		if !w.refusedFor("from another store") {
			w.wrong("no host has told the copy why it may not act")
		}
	}))
}

// A database that was put back to an earlier state, in its own place: hosts
// refuse it, and what was made since is still there when the right one is back.
func TestARestoredDatabaseNeverActs(t *testing.T) {
	none(t, scene(t, 4, broken{}, func(w *world) {
		u := w.newUser(1)
		u.create("t1")
		u.create("t2")
		_ = pause(w.ctx, w.ctx, time.Minute)
		backup, err := w.db.copy(w.ctx, w.db.fingerprint)
		if err != nil {
			w.wrong("copy: %v", err)
			return
		}
		// Another term, which the backup does not know, with work in it.
		w.leader().die("for another term")
		_ = pause(w.ctx, w.ctx, 20*time.Second)
		u.destroy("t1")
		u.create("t3")
		w.startOn(backup)
		_ = pause(w.ctx, w.ctx, 5*time.Minute)
		if !w.refusedFor("does not know the term") {
			w.wrong("no host has told the older database why it may not act")
		}
		w.startOn(w.db)
		for _, task := range []string{"t1", "t2", "t3"} {
			u.get(task)
		}
	}))
}

// startOn stops all servers and starts them on another database.
func (w *world) startOn(db *database) {
	for _, s := range w.servers {
		s.stop()
		s.restore(db)
		s.start()
	}
	w.leader()
}

// refusedFor reports whether a host has refused a claim with these words.
func (w *world) refusedFor(words string) bool {
	for _, e := range w.wit.hosts.all() {
		if e.Deed == deedClaim && strings.Contains(e.Refused, words) {
			return true
		}
	}
	return false
}

// A wall clock that is put three hours ahead while a server runs makes nothing
// old: what nobody has ended runs on.
func TestAClockThatJumpsEndsNothing(t *testing.T) {
	none(t, scene(t, 5, broken{}, func(w *world) {
		u := w.newUser(1)
		u.create("t1")
		_ = pause(w.ctx, w.ctx, 2*time.Minute)
		w.mu.Lock()
		w.shift = 3 * time.Hour // more than the ceiling for what names no limit
		w.mu.Unlock()
		_ = pause(w.ctx, w.ctx, 5*time.Minute)
		u.get("t1")
	}))
}
