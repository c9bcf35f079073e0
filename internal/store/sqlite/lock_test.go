package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

func TestOthersSeeWhoHasTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	first, second := New(Config{Path: path}), New(Config{Path: path})
	see := func(j *Journal, want string, term int64) {
		t.Helper()
		info, held, err := j.Leader(t.Context())
		if err != nil || held != (want != "") || info.Name != want || info.Term != term || !info.Expires.IsZero() {
			t.Errorf("%+v, held %v, %v; want %q in term %d", info, held, err, want, term)
		}
	}
	see(second, "", 0) // there is no file yet
	c := state.Candidate{Name: "first", Address: "http://first:1", Secret: "s", CertSHA256: "c"}
	g, err := first.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	see(first, "first", g.Term)
	see(second, "first", g.Term)
	if info, _, err := second.Leader(t.Context()); err != nil || info.Candidate != c {
		t.Errorf("%+v %v", info.Candidate, err)
	}
	// Looking takes nothing: the owner's lock holds, and the next one finds it free.
	if _, err := second.Acquire(t.Context(), state.Candidate{Name: "second"}); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("acquire: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	see(second, "", 0) // what the file says of an owner that has gone does not count
	if _, err := second.Acquire(t.Context(), state.Candidate{Name: "second"}); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAReplacedFileEndsTheTerm takes the files away under their owner: what it
// writes then would be lost, and somebody else can lock the new ones.
func TestAReplacedFileEndsTheTerm(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"database removed":  os.Remove,
		"lock removed":      func(path string) error { return os.Remove(path + ".lock") },
		"database replaced": func(path string) error { return os.Rename(path+".lock", path) },
		"directory moved":   func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data", "state.db")
			j := New(Config{Path: path})
			g, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
			if err != nil {
				t.Fatal(err)
			}
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
			select {
			case <-g.Tenure.Lost():
			case <-time.After(time.Minute):
				t.Fatal("the owner does not notice")
			}
			if err := g.Tenure.Check(); !errors.Is(err, fleet.ErrNotLeader) {
				t.Errorf("check: %v", err)
			}
			if err := j.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestATenureEndsWithItsJournal(t *testing.T) {
	j := New(Config{Path: filepath.Join(t.TempDir(), "state.db")})
	g, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if left, lasting := g.Tenure.(interface {
		Left() (time.Duration, bool)
	}).Left(); !lasting {
		t.Errorf("left %v", left)
	}
	if err := errors.Join(j.Close(), g.Tenure.Release(t.Context()), j.Close()); err != nil {
		t.Error(err)
	}
	if err := g.Tenure.Check(); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("check: %v", err)
	}
	if err := j.Commit(context.Background(), g.Term, state.Batch{ID: uid.New()}); !errors.Is(err, state.ErrNotCommitted) {
		t.Errorf("commit: %v", err)
	}
}
