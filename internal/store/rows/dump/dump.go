// Package dump moves a whole state store through a file of JSON lines, from any
// SQL journal into any other. The first line is the head, every further one a
// row, the last one counts them, so that a file that was cut short is noticed.
// Rows travel as they are stored: what is sealed stays sealed.
package dump

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/codec"
	"github.com/fusevm/fuse/internal/store/rows"
	"github.com/fusevm/fuse/internal/uid"
)

// Format and Version are in the head of every file.
const (
	Format  = "fuse-store"
	Version = 1
)

// tableTerms and tableEnd are lines that are no rows of a table.
const (
	tableTerms state.Table = "terms"
	tableEnd   state.Table = "end"
)

// Head is what a store is beside its rows.
type Head struct {
	Format   string    `json:"format"`
	Version  int       `json:"version"`
	FleetID  string    `json:"fleet_id"`
	Revision uint64    `json:"revision"`
	Seq      uint64    `json:"seq"`
	At       time.Time `json:"committed_at"`
	Made     time.Time `json:"exported_at"`
}

// Record is one row.
type Record struct {
	Table     state.Table     `json:"t"`
	ID        string          `json:"id,omitempty"`        // of a document
	UpdatedAt time.Time       `json:"updated_at,omitzero"` // of a document
	Output    []byte          `json:"output,omitempty"`    // of a startup log
	Doc       json.RawMessage `json:"doc,omitempty"`       // as stored, with its version
	Term      *Term           `json:"term,omitempty"`      // of a term
	Rows      int             `json:"rows,omitempty"`      // of the end
}

// Term is one that the store has seen.
type Term struct {
	Number   int64     `json:"term"`
	Token    string    `json:"claim_token"`
	Holder   string    `json:"holder"`
	BegunAt  time.Time `json:"begun_at"`
	Revision uint64    `json:"revision"`
}

// Store is a SQL journal whose lease is held.
type Store interface {
	state.Journal
	// Export calls head once and then row for every term and row, in one
	// snapshot of the store, by table and key.
	Export(ctx context.Context, head func(Head) error, row func(Record) error) error
	// Adopt makes the store that of h's fleet, with its earlier terms.
	Adopt(ctx context.Context, term int64, h Head, terms []Term) error
}

// Export writes s to w and returns the number of rows.
func Export(ctx context.Context, s Store, w io.Writer) (n int, err error) {
	buffered := bufio.NewWriterSize(w, 1<<16)
	out := json.NewEncoder(buffered)
	out.SetEscapeHTML(false)
	err = s.Export(ctx,
		func(h Head) error {
			h.Format, h.Version, h.Made = Format, Version, time.Now().UTC().Truncate(time.Second)
			return out.Encode(h)
		},
		func(r Record) error {
			n++
			return out.Encode(r)
		})
	if err == nil {
		err = out.Encode(Record{Table: tableEnd, Rows: n})
	}
	return n, errors.Join(err, buffered.Flush())
}

// Chunks of an import: few rows enough that a transaction stays small.
const (
	chunkRows = 500
	maxLine   = 64 << 20 // a startup log, in base64, is far smaller
)

// Import reads r into s, which must be empty and whose lease of that term is
// held, and returns the number of rows. Until it has read the last line the
// store is not the fleet's: a server that begins with a half of it finds only
// foreign environments at the hosts.
func Import(ctx context.Context, s Store, term int64, r io.Reader) (int, error) {
	if err := empty(ctx, s); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<20), maxLine)
	h, err := readHead(lines)
	if err != nil {
		return 0, err
	}
	in := &importer{s: s, term: term}
	for !in.ended && lines.Scan() {
		var rec Record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return in.n, damaged(in.n, err)
		}
		if err := in.add(ctx, rec); err != nil {
			return in.n, err
		}
	}
	if err := lines.Err(); err != nil {
		return in.n, damaged(in.n, err)
	}
	if !in.ended {
		return in.n, damaged(in.n, errors.New("the file ends in the middle"))
	}
	if err := in.flush(ctx, h); err != nil {
		return in.n, err
	}
	return in.n, s.Adopt(ctx, term, h, in.terms)
}

func empty(ctx context.Context, s Store) error {
	l, err := s.Load(ctx, 1)
	if err != nil {
		return err
	}
	if l.Revision != 0 || l.Seq != 0 || len(l.VMs)+len(l.Hosts)+len(l.Events) > 0 {
		return fleet.Errorf(fleet.CodeConflict, "the store is not empty: it is at revision %d", l.Revision).
			With(fleet.DetailRemedy, "import into a new database")
	}
	return nil
}

func readHead(lines *bufio.Scanner) (h Head, err error) {
	if !lines.Scan() {
		return h, damaged(0, errors.Join(lines.Err(), errors.New("the file is empty")))
	}
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil || h.Format != Format || !uid.Valid(h.FleetID) {
		return h, fleet.Errorf(fleet.CodeInvalidArgument, "this is no export of a Fuse store")
	}
	if h.Version > Version {
		return h, fleet.Errorf(fleet.CodeInvalidArgument, "the export has version %d, this binary reads up to %d", h.Version, Version).
			With(fleet.DetailRemedy, "import it with the newer binary that wrote it")
	}
	return h, nil
}

func damaged(after int, err error) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "the export is damaged after %d rows: %w", after, err).
		With(fleet.DetailRemedy, "throw the target database away and import a whole file into a new one")
}

type importer struct {
	s        Store
	term     int64
	n        int
	revision uint64
	batch    state.Batch
	seq      uint64
	terms    []Term
	ended    bool
}

func (in *importer) add(ctx context.Context, rec Record) error {
	if rec.Table == tableEnd {
		if in.ended = true; rec.Rows != in.n {
			return damaged(in.n, fmt.Errorf("it should have %d", rec.Rows))
		}
		return nil
	}
	if err := in.take(rec); err != nil {
		return damaged(in.n, err)
	}
	in.n++
	if len(in.batch.Writes)+len(in.batch.Events) < chunkRows {
		return nil
	}
	return in.flush(ctx, Head{})
}

func (in *importer) take(rec Record) error {
	switch {
	case rec.Table == tableTerms && rec.Term != nil:
		in.terms = append(in.terms, *rec.Term)
		return nil
	case rec.Table == state.TableEvents:
		e, err := codec.Decode[fleet.Event](rec.Table, rec.Doc)
		if err != nil {
			return err
		}
		if e.Seq <= in.seq {
			return fmt.Errorf("event %d follows %d", e.Seq, in.seq)
		}
		in.seq = e.Seq
		in.batch.Events = append(in.batch.Events, *e)
		return nil
	case slices.Contains(state.Collections, rec.Table):
		d, err := state.LoadDocument(rec.Table, rec.ID, rec.UpdatedAt, rec.Doc)
		if err != nil {
			return err
		}
		in.batch.Writes = append(in.batch.Writes, state.Write{Table: rec.Table, Key: state.Key{rec.ID}, Row: d})
		return nil
	}
	key, row, err := rows.Decode(rec.Table, rec.Doc)
	if err != nil {
		return err
	}
	if l, ok := row.(*fleet.StartupLog); ok {
		l.Output = rec.Output
	}
	in.batch.Writes = append(in.batch.Writes, state.Write{Table: rec.Table, Key: key, Row: row})
	return nil
}

// flush commits what has gathered; the last one with the numbers of h.
func (in *importer) flush(ctx context.Context, h Head) error {
	in.revision++
	b := in.batch
	in.batch = state.Batch{}
	b.ID, b.Revision, b.Seq, b.At = uid.New(), in.revision, in.seq, time.Now().UTC()
	if h.FleetID != "" {
		b.Revision, b.Seq, b.At = h.Revision, max(h.Seq, in.seq), h.At
	}
	return in.s.Commit(ctx, in.term, b)
}
