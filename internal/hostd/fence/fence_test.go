package fence

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
)

var base = Fence{FleetID: "f", Term: 5, ClaimToken: "token-5", Fingerprint: "store"}

func with(change func(*Fence)) Fence {
	f := base
	change(&f)
	return f
}

func silent(Mark) func() error { return func() error { return nil } }

// claimed returns marks after one claim of base.
func claimed(t *testing.T) *Marks {
	t.Helper()
	marks := NewMarks(silent)
	if err := marks.Claim(Claim{Fence: base}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := marks.Admit(with(func(f *Fence) { f.Revision = 40 })); err != nil {
		t.Fatal(err)
	}
	return marks
}

var (
	proof = Proof{Term: 5, Token: "token-5", Revision: 40}
	later = with(func(f *Fence) { f.Term, f.ClaimToken = 6, "token-6" })
)

// TestClaims: every claim after base's own. A refused one changes nothing, an
// admitted one admits its changes and refuses base's.
func TestClaims(t *testing.T) {
	for _, test := range []struct {
		name   string
		claim  Claim
		want   error // nil: admitted
		reason string
	}{
		{"the holder again", Claim{Fence: base}, nil, ""},
		{"the next term", Claim{Fence: later, Proof: proof}, nil, ""},
		{"the next term, which went on", Claim{Fence: later, Proof: Proof{5, "token-5", 99}}, nil, ""},
		{"the first term of another fleet", Claim{Fence: with(func(f *Fence) { f.FleetID = "g" })}, nil, ""},
		{"an earlier term", Claim{Fence: with(func(f *Fence) { f.Term = 4 })}, fleet.ErrStaleTerm, "stale_term"},
		{"an earlier term with a proof", Claim{Fence: with(func(f *Fence) { f.Term = 1 }), Proof: proof}, fleet.ErrStaleTerm, "stale_term"},
		{"another token", Claim{Fence: with(func(f *Fence) { f.ClaimToken = "token-x" })}, fleet.ErrStaleTerm, "claimed_by_another"},
		{"a later term without a proof", Claim{Fence: later}, hostwire.ErrNeedProof, "need_proof"},
		{"a proof of another term", Claim{Fence: later, Proof: Proof{4, "token-4", 40}}, hostwire.ErrNeedProof, "need_proof"},
		{"a term that the store does not know", Claim{Fence: later, Proof: Proof{Term: 5}}, fleet.ErrFenced, "older_store"},
		{"a wrong token", Claim{Fence: later, Proof: Proof{5, "token-x", 40}}, fleet.ErrFenced, "older_store"},
		{"a store that is behind", Claim{Fence: later, Proof: Proof{5, "token-5", 39}}, fleet.ErrFenced, "older_store"},
		{"a copy", Claim{Fence: with(func(f *Fence) { f.Fingerprint = "copy" })}, fleet.ErrFenced, "other_store"},
		{"a copy with all proofs", Claim{
			Fence: with(func(f *Fence) { f.Fingerprint, f.Term, f.ClaimToken = "copy", 6, "token-6" }), Proof: proof,
		}, fleet.ErrFenced, "other_store"},
		{"a store in memory", Claim{Fence: with(func(f *Fence) { f.Volatile, f.Term = true, 6 }), Proof: proof}, fleet.ErrFenced, "other_kind"},
		{"a confirmed copy", Claim{Fence: with(func(f *Fence) { f.Fingerprint, f.Term, f.ClaimToken = "copy", 6, "c" }), AcceptTerm: 5}, nil, ""},
		{"a confirmed copy in an earlier term", Claim{Fence: with(func(f *Fence) { f.Fingerprint, f.Term, f.ClaimToken = "copy", 3, "c" }), AcceptTerm: 5}, nil, ""},
		{"a confirmed backup in its place", Claim{Fence: later, AcceptTerm: 5}, nil, ""},
		{"a confirmed leader that has been followed", Claim{Fence: with(func(f *Fence) { f.Term, f.ClaimToken = 4, "token-4" }), AcceptTerm: 5}, fleet.ErrStaleTerm, "stale_term"},
		{"a confirmation that came late", Claim{Fence: with(func(f *Fence) { f.Fingerprint, f.Term = "copy", 6 }), AcceptTerm: 4}, fleet.ErrFenced, "mark_moved"},
	} {
		t.Run(test.name, func(t *testing.T) {
			marks := claimed(t)
			err := marks.Claim(test.claim, nil)
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("claim: %v, want %v", err, test.want)
			}
			if err == nil {
				if err := marks.Check(test.claim.Fence); err != nil {
					t.Errorf("a claimed fence is not admitted: %v", err)
				}
				if moved := test.claim.FleetID == base.FleetID && !(Mark{Term: 5, Token: "token-5", Fingerprint: "store"}).held(test.claim.Fence); moved == (marks.Check(base) == nil) {
					t.Errorf("the earlier holder: %v", marks.Check(base))
				}
				return
			}
			var fe *fleet.Error
			if !errors.As(err, &fe) || fe.Code != fleet.CodeConflict || fe.Details[fleet.DetailReason] != test.reason || fe.Details[DetailMarkTerm] != "5" {
				t.Errorf("refused with %+v", fe)
			}
			if strings.Contains(err.Error(), "token-") {
				t.Errorf("the refusal tells a token: %v", err)
			}
			if err := marks.Check(base); err != nil {
				t.Errorf("a refused claim locked the holder out: %v", err)
			}
			if marks.Check(test.claim.Fence) == nil {
				t.Error("a refused claim admits changes")
			}
		})
	}
}

func TestChecks(t *testing.T) {
	for name, test := range map[string]struct {
		fence Fence
		want  error
	}{
		"the holder":      {base, nil},
		"an earlier term": {with(func(f *Fence) { f.Term = 4 }), fleet.ErrStaleTerm},
		"another token":   {with(func(f *Fence) { f.ClaimToken = "x" }), fleet.ErrStaleTerm},
		"another store":   {with(func(f *Fence) { f.Fingerprint = "copy" }), hostwire.ErrUnclaimed},
		"a later term":    {later, hostwire.ErrUnclaimed},
		"another fleet":   {with(func(f *Fence) { f.FleetID = "g" }), hostwire.ErrUnclaimed},
	} {
		if err := claimed(t).Check(test.fence); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// Stores of one volatile fleet follow each other in the order of their terms.
func TestVolatileStores(t *testing.T) {
	marks := NewMarks(silent)
	first := with(func(f *Fence) { f.Volatile = true })
	second := with(func(f *Fence) { f.Volatile, f.Term, f.ClaimToken, f.Fingerprint = true, 6, "m", "memory-2" })
	for _, f := range []Fence{first, second} {
		if err := errors.Join(marks.Claim(Claim{Fence: f}, nil), marks.Check(f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := marks.Claim(Claim{Fence: first}, nil); !errors.Is(err, fleet.ErrStaleTerm) {
		t.Errorf("claim of the earlier start: %v", err)
	}
	twin := second
	twin.ClaimToken = "n"
	if err := marks.Claim(Claim{Fence: twin}, nil); !errors.Is(err, fleet.ErrStaleTerm) {
		t.Errorf("claim of the same term by another: %v", err)
	}
}

func TestMarksAreBounded(t *testing.T) {
	marks := NewMarks(silent)
	for i := range maxMarks {
		if err := marks.Claim(Claim{Fence: with(func(f *Fence) { f.FleetID = fmt.Sprint("f", i) })}, nil); err != nil {
			t.Fatal(err)
		}
	}
	next := Claim{Fence: base}
	if err := marks.Claim(next, nil); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("one fleet too many: %v", err)
	}
	if err := marks.Claim(next, func(id string) bool { return id != "f7" }); err != nil {
		t.Errorf("in the place of one without environments: %v", err)
	}
	marks.Locked(func(all []Mark) {
		has := func(id string) bool { return slices.ContainsFunc(all, func(m Mark) bool { return m.FleetID == id }) }
		if len(all) != maxMarks || has("f7") || !has("f") {
			t.Errorf("%d fleets", len(all))
		}
	})
}

func TestSeenSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marks := NewMarks(silent)
		marks.Restore(Mark{FleetID: "f", Term: 1, Token: "x"})
		ago := func(d time.Duration) bool { return marks.SeenSince("f", time.Now().Add(-d)) }
		<-time.After(time.Hour)
		if ago(59*time.Minute) || !ago(2*time.Hour) || marks.SeenSince("g", time.Time{}) {
			t.Error("a mark read back counts as seen at the start, and no later")
		}
		if term := marks.Look("f"); term != 1 || !ago(time.Second) || marks.Look("g") != 0 {
			t.Errorf("after a look: term %d", term)
		}
	})
}

func TestBadFences(t *testing.T) {
	marks := NewMarks(silent)
	for name, f := range map[string]Fence{
		"no fleet":   with(func(f *Fence) { f.FleetID = "" }),
		"odd fleet":  with(func(f *Fence) { f.FleetID = "a b" }),
		"no term":    with(func(f *Fence) { f.Term = 0 }),
		"no token":   with(func(f *Fence) { f.ClaimToken = "" }),
		"long token": with(func(f *Fence) { f.ClaimToken = strings.Repeat("x", 300) }),
	} {
		for what, err := range map[string]error{"claim": marks.Claim(Claim{Fence: f}, nil), "check": marks.Check(f)} {
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}

func TestUnkeptClaimIsAnError(t *testing.T) {
	full := errors.New("disk full")
	marks := NewMarks(func(Mark) func() error { return func() error { return full } })
	if err := marks.Claim(Claim{Fence: base}, nil); !errors.Is(err, full) {
		t.Errorf("claim: %v", err)
	}
	// It is not admitted either: a restart would not know it.
	if err := marks.Check(base); !errors.Is(err, hostwire.ErrUnclaimed) {
		t.Errorf("check of a claim that was not kept: %v", err)
	}
}

// A claim that could not be kept is kept by its repeat: until then a restart
// would forget it.
func TestARepeatKeepsWhatWasNotKept(t *testing.T) {
	full := errors.New("disk full")
	kept, fail := 0, full
	marks := NewMarks(func(Mark) func() error { return func() error { kept++; return fail } })
	for range 2 {
		if err := marks.Claim(Claim{Fence: base}, nil); !errors.Is(err, full) {
			t.Errorf("claim on a full disk: %v", err)
		}
	}
	fail = nil
	for range 2 {
		if err := marks.Claim(Claim{Fence: base}, nil); err != nil {
			t.Errorf("claim: %v", err)
		}
	}
	if kept != 3 {
		t.Errorf("the mark was written %d times, want 3", kept)
	}
	restored := NewMarks(func(Mark) func() error { return func() error { kept++; return nil } })
	restored.Locked(func(ms []Mark) {
		if len(ms) != 0 {
			t.Errorf("marks of nothing: %v", ms)
		}
	})
	marks.Locked(func(ms []Mark) {
		for _, m := range ms {
			restored.Restore(m)
		}
	})
	if err := restored.Claim(Claim{Fence: base}, nil); err != nil || kept != 3 {
		t.Errorf("claim of a mark read back: %v, written %d times", err, kept)
	}
}

// What the holder before has shown never counts for the store that was
// confirmed in its place, however the two meet.
func TestAnAdmissionAndAConfirmationDoNotMix(t *testing.T) {
	old := with(func(f *Fence) { f.Revision = 1 << 40 })
	next := with(func(f *Fence) { f.Term, f.ClaimToken, f.Fingerprint = 6, "token-6", "restored" })
	for range 50 {
		marks := claimed(t)
		begin, done := make(chan struct{}), make(chan struct{}, 16)
		for range cap(done) {
			go func() {
				defer func() { done <- struct{}{} }()
				<-begin
				for {
					m, err := marks.Admit(old)
					if err != nil {
						return
					}
					if m.Term != old.Term {
						t.Errorf("a change of term %d was admitted under the mark of term %d", old.Term, m.Term)
					}
				}
			}()
		}
		close(begin)
		for range 20 {
			runtime.Gosched() // let them be in the middle of it
		}
		if err := marks.Claim(Claim{Fence: next, AcceptTerm: base.Term}, nil); err != nil {
			t.Fatal(err)
		}
		for range cap(done) {
			<-done
		}
		marks.Locked(func(ms []Mark) {
			if len(ms) != 1 || ms[0].Term != 6 || ms[0].Revision != 0 {
				t.Fatalf("the mark is %+v", ms)
			}
		})
	}
}
