package fence

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
)

// store is a state store as the fence sees one: where it lies, which terms it
// remembers and how far it had come when each began, and what it knows of.
type store struct {
	place    string
	terms    []term
	revision uint64
	knows    map[int]bool // creates that it has journaled
}

type term struct {
	number int64
	token  string
	began  uint64 // the revision that was loaded
}

func (s *store) copyTo(place string) *store {
	c := *s
	c.place, c.terms, c.knows = place, append([]term{}, s.terms...), maps.Clone(s.knows)
	return &c
}

func (s *store) fence() Fence {
	now := s.terms[len(s.terms)-1]
	return Fence{FleetID: "f", Term: now.number, ClaimToken: now.token, Fingerprint: s.place, Revision: s.revision}
}

func (s *store) proof(number int64) Proof {
	p := Proof{Term: number}
	for i, t := range s.terms {
		if t.number == number {
			p.Token = t.token
			if i+1 < len(s.terms) {
				p.Revision = s.terms[i+1].began
			}
		}
	}
	return p
}

// world is one host and the stores that were ever made of one fleet.
type world struct {
	t       *rapid.T
	stores  []*store
	backups []*store
	clock   int64
	places  int

	marks   *Marks
	durable []Mark // the host's log
	full    bool   // its disk
	made    map[int]bool
	creates int
	holder  *store // whose change was admitted last; nil: nobody's
}

var errFull = errors.New("disk full")

func (w *world) open() {
	w.marks = NewMarks(func(m Mark) func() error {
		if w.full {
			return func() error { return errFull }
		}
		w.durable = append(w.durable, m)
		return func() error { return nil }
	})
	for _, m := range w.durable {
		w.marks.Restore(m)
	}
}

// restart kills the host agent. What creates have shown comes back from their
// own records.
func (w *world) restart() {
	shown := map[string]Mark{}
	w.marks.Locked(func(marks []Mark) {
		for _, m := range marks {
			shown[m.FleetID] = m
		}
	})
	w.open()
	for _, m := range shown {
		w.marks.Saw(m)
	}
}

func (w *world) begin(s *store) {
	w.clock++
	s.terms = append(s.terms, term{w.clock, fmt.Sprintf("%s/%d", s.place, w.clock), s.revision})
}

// claim is what the remote provider does, with the confirmation of an operator
// if accept is set.
func (w *world) claim(s *store, accept bool) error {
	c := Claim{Fence: s.fence()}
	err := w.marks.Claim(c, nil)
	if errors.Is(err, hostwire.ErrNeedProof) {
		c.Proof = s.proof(w.term())
		err = w.marks.Claim(c, nil)
	}
	if accept && errors.Is(err, fleet.ErrFenced) {
		c.AcceptTerm = w.term()
		if err = w.marks.Claim(c, nil); err == nil {
			// From here on this store's view counts, and it alone.
			w.made, w.holder = maps.Clone(s.knows), s
		}
	}
	return err
}

func (w *world) term() (number int64) {
	w.marks.Locked(func(marks []Mark) {
		for _, m := range marks {
			number = m.Term
		}
	})
	return number
}

// act creates, journaled first as the control plane does, or destroys.
func (w *world) act(s *store) {
	if w.marks.Check(s.fence()) != nil && w.claim(s, false) != nil {
		return
	}
	w.creates++
	s.revision++
	s.knows[w.creates] = true
	if _, err := w.marks.Admit(s.fence()); err != nil {
		return
	}
	w.made[w.creates] = true
	for id := range w.made {
		if !s.knows[id] {
			w.t.Fatalf("%s acts at term %d and does not know of create %d, which it would destroy", s.place, s.fence().Term, id)
		}
	}
	w.holder = s
}

func (w *world) step() {
	s := rapid.SampledFrom(w.stores).Draw(w.t, "store")
	switch rapid.SampledFrom([]string{"act", "act", "act", "begin", "claim", "copy", "backup", "restore", "accept", "kill", "disk"}).Draw(w.t, "step") {
	case "act":
		w.act(s)
	case "begin":
		w.begin(s)
	case "claim":
		if w.claim(s, false) == nil {
			w.holder = s
		}
	case "copy":
		if len(w.stores) < 5 {
			w.places++
			c := s.copyTo(fmt.Sprintf("copy-%d", w.places))
			w.begin(c)
			w.stores = append(w.stores, c)
		}
	case "backup":
		w.backups = append(w.backups, s.copyTo(s.place))
	case "restore":
		// In place, over what is there; the server is started on it.
		for _, b := range w.backups {
			if b.place == s.place {
				if w.holder == s {
					w.holder = nil
				}
				*s = *b.copyTo(b.place)
				w.begin(s)
				break
			}
		}
	case "accept":
		if w.full {
			return // what an operator has confirmed is then open
		}
		w.begin(s)
		if err := w.claim(s, true); err != nil {
			w.t.Fatalf("a confirmed store is refused: %v", err)
		}
	case "kill":
		w.restart()
	case "disk":
		w.full = !w.full
	}
}

// TestStores runs copies, backups, restores, kills and full disks against one
// host. Who acts knows of everything that was made there since an operator last
// confirmed a store, so nobody destroys another's; and who acted last can
// always go on, whatever the others tried.
func TestStores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := &store{place: "original", knows: map[int]bool{}}
		w := &world{t: t, stores: []*store{first}, made: map[int]bool{}}
		w.begin(first)
		w.open()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.step()
			if w.holder == nil || w.full {
				continue
			}
			if err := w.claim(w.holder, false); err != nil {
				t.Fatalf("%s acted last and is locked out: %v", w.holder.place, err)
			}
			if rapid.Bool().Draw(t, "restarted") {
				w.begin(w.holder)
				if err := w.claim(w.holder, false); err != nil {
					t.Fatalf("%s acted last and cannot begin its next term: %v", w.holder.place, err)
				}
			}
		}
	})
}
