package dump_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/postgres"
	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/store/rows/dump"
	"github.com/fusevm/fuse/internal/store/sqlite"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/uid"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type store interface {
	dump.Store
	state.Lease
}

func newSQLite(t *testing.T) store {
	return sqlite.New(sqlite.Config{Path: filepath.Join(t.TempDir(), "state.db")})
}

func newPostgres(t *testing.T) store {
	return postgres.New(postgres.Config{URL: pgtest.Shared(t).Database(t)})
}

// with runs fn while s is held, in a term of its own.
func with(t *testing.T, s store, fn func(term int64)) {
	t.Helper()
	g, err := s.Acquire(t.Context(), state.Candidate{Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	fn(g.Term)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func export(t *testing.T, s store) (text string) {
	t.Helper()
	with(t, s, func(int64) {
		var out bytes.Buffer
		n, err := dump.Export(t.Context(), s, &out)
		if err != nil || n != strings.Count(out.String(), "\n")-2 {
			t.Fatalf("%d rows, %v", n, err)
		}
		text = out.String()
	})
	return text
}

func load(t *testing.T, s store, text string) {
	t.Helper()
	with(t, s, func(term int64) {
		if _, err := dump.Import(t.Context(), s, term, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	})
}

// filled is a store with rows of every table, enough for several chunks.
func filled(t *testing.T) store {
	t.Helper()
	s := newSQLite(t)
	with(t, s, func(term int64) {
		batch := storetest.FullBatch(uid.New(), 60)
		batch.Revision = 700
		if err := s.Commit(t.Context(), term, batch); err != nil {
			t.Fatal(err)
		}
		if _, err := s.PurgeEvents(t.Context(), term, state.EventCut{Keep: 55, Limit: 100}); err != nil {
			t.Fatal(err)
		}
	})
	return s
}

// split takes an export apart: what is the store's, and its terms.
func split(t *testing.T, text string) (lines, terms []string) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		switch {
		case i == 0:
			var h dump.Head
			if err := json.Unmarshal([]byte(line), &h); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprint(h.FleetID, h.Revision, h.Seq, h.At))
		case strings.HasPrefix(line, `{"t":"terms"`):
			terms = append(terms, line)
		case strings.HasPrefix(line, `{"t":"end"`):
		default:
			lines = append(lines, line)
		}
	}
	return lines, terms
}

// From SQLite to PostgreSQL and back every row is the same, byte for byte.
func TestRoundTrip(t *testing.T) {
	first := export(t, filled(t))
	pg, back := newPostgres(t), newSQLite(t)
	load(t, pg, first)
	second := export(t, pg)
	load(t, back, second)
	third := export(t, back)
	lines, terms := split(t, first)
	if len(lines) < 60*(len(state.Tables)) {
		t.Errorf("only %d rows", len(lines))
	}
	for name, text := range map[string]string{"PostgreSQL": second, "SQLite": third} {
		got, seen := split(t, text)
		if diff := gocmp.Diff(lines, got); diff != "" {
			t.Errorf("%s differs:\n%s", name, diff)
		}
		for _, term := range terms {
			if !slices.Contains(seen, term) {
				t.Errorf("%s has forgotten %s", name, term)
			}
		}
	}
}

// The store that was imported goes on where the other stopped, and can prove
// its terms.
func TestTheImportedStoreGoesOn(t *testing.T) {
	source := filled(t)
	text := export(t, source)
	pg := newPostgres(t)
	load(t, pg, text)
	g, err := pg.Acquire(t.Context(), state.Candidate{Name: "next"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := pg.Load(t.Context(), 10)
	if err != nil || l.Revision != 700 || len(l.VMs) != 60 || len(g.Earlier) != 3 {
		t.Errorf("revision %d, %d environments, earlier terms %v, %v", l.Revision, len(l.VMs), g.Earlier, err)
	}
	next := state.Batch{ID: uid.New(), Revision: l.Revision + 1, Seq: l.Seq + 1, At: l.At, Events: []fleet.Event{{Seq: l.Seq + 1}}}
	if err := errors.Join(pg.Commit(t.Context(), g.Term, next), pg.Close()); err != nil {
		t.Error(err)
	}
	if fleetOf(t, source) != l.FleetID {
		t.Error("it is another fleet")
	}
}

func fleetOf(t *testing.T, s store) (id string) {
	t.Helper()
	with(t, s, func(int64) {
		l, err := s.Load(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		id = l.FleetID
	})
	return id
}

// A half of an export must never pass for the fleet.
func TestADamagedExportIsRefused(t *testing.T) {
	source := filled(t)
	text := export(t, source)
	original := fleetOf(t, source)
	lines := strings.SplitAfter(text, "\n")
	middle := len(lines) / 2
	for name, damaged := range map[string]string{
		"nothing":            "",
		"another file":       "{}\n",
		"a newer version":    strings.Replace(text, `"version":1`, `"version":2`, 1),
		"the head alone":     lines[0],
		"a half":             strings.Join(lines[:middle], ""),
		"cut in a line":      text[:len(text)/2],
		"without its end":    strings.Join(lines[:len(lines)-2], ""),
		"a line is missing":  strings.Join(slices.Concat(lines[:middle], lines[middle+1:]), ""),
		"a line is no row":   strings.Join(slices.Concat(lines[:middle], []string{"x\n"}, lines[middle:]), ""),
		"an unknown table":   strings.Join(slices.Concat(lines[:middle], []string{`{"t":"x","doc":{"v":1}}` + "\n"}, lines[middle:]), ""),
		"a newer row":        strings.Replace(text, `"doc":{"v":1,`, `"doc":{"v":9,`, 1),
		"an event goes back": strings.Join(slices.Concat(lines[:len(lines)-2], []string{lines[len(lines)-5]}, lines[len(lines)-2:]), ""),
	} {
		s := newSQLite(t)
		with(t, s, func(term int64) {
			if _, err := dump.Import(t.Context(), s, term, strings.NewReader(damaged)); err == nil {
				t.Errorf("%s: it is taken", name)
			}
		})
		if fleetOf(t, s) == original {
			t.Errorf("%s: the half passes for the fleet", name)
		}
	}
}

func TestOnlyAnEmptyStoreIsFilled(t *testing.T) {
	text := export(t, filled(t))
	s := filled(t)
	with(t, s, func(term int64) {
		if _, err := dump.Import(t.Context(), s, term, strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "is not empty") {
			t.Errorf("import: %v", err)
		}
	})
}
