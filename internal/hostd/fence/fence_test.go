package fence

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
)

var base = Fence{FleetID: "f", Term: 5, ClaimToken: "token-5", Fingerprint: "store"}

func with(change func(*Fence)) Fence {
	f := base
	change(&f)
	return f
}

func TestClaimAndCheck(t *testing.T) {
	for _, test := range []struct {
		name         string
		fence        Fence
		claim, check error // nil: admitted
	}{
		{"the holder", base, nil, nil},
		{"an earlier term", with(func(f *Fence) { f.Term = 4 }), fleet.ErrStaleTerm, fleet.ErrStaleTerm},
		{"an earlier term with the right token", with(func(f *Fence) { f.Term = 1 }), fleet.ErrStaleTerm, fleet.ErrStaleTerm},
		{"another token", with(func(f *Fence) { f.ClaimToken = "token-x" }), fleet.ErrStaleTerm, fleet.ErrStaleTerm},
		{"another store", with(func(f *Fence) { f.Fingerprint = "copy" }), fleet.ErrStaleTerm, fleet.ErrStaleTerm},
		{"a later term", with(func(f *Fence) { f.Term, f.ClaimToken = 6, "token-6" }), nil, hostwire.ErrUnclaimed},
		{"another fleet", with(func(f *Fence) { f.FleetID = "g" }), nil, hostwire.ErrUnclaimed},
	} {
		t.Run(test.name, func(t *testing.T) {
			kept := 0
			marks := NewMarks(func(Mark) func() error { return func() error { kept++; return nil } })
			if err := marks.Claim(base); err != nil || kept != 1 {
				t.Fatalf("first claim: %v, %d marks kept", err, kept)
			}
			if err := marks.Check(test.fence); !errors.Is(err, test.check) || (err == nil) != (test.check == nil) {
				t.Errorf("check: %v, want %v", err, test.check)
			}
			err := marks.Claim(test.fence)
			if !errors.Is(err, test.claim) || (err == nil) != (test.claim == nil) {
				t.Errorf("claim: %v, want %v", err, test.claim)
			}
			if err != nil && fleet.CodeOf(err) != fleet.CodeConflict {
				t.Errorf("code %s", fleet.CodeOf(err))
			}
			if err == nil && marks.Check(test.fence) != nil {
				t.Error("a claimed fence is not admitted")
			}
		})
	}
}

func TestBadFences(t *testing.T) {
	marks := NewMarks(func(Mark) func() error { return func() error { return nil } })
	for name, f := range map[string]Fence{
		"no fleet":   with(func(f *Fence) { f.FleetID = "" }),
		"odd fleet":  with(func(f *Fence) { f.FleetID = "a b" }),
		"no term":    with(func(f *Fence) { f.Term = 0 }),
		"no token":   with(func(f *Fence) { f.ClaimToken = "" }),
		"long token": with(func(f *Fence) { f.ClaimToken = strings.Repeat("x", 300) }),
	} {
		for what, err := range map[string]error{"claim": marks.Claim(f), "check": marks.Check(f)} {
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}

func TestUnkeptClaimIsAnError(t *testing.T) {
	full := errors.New("disk full")
	marks := NewMarks(func(Mark) func() error { return func() error { return full } })
	if err := marks.Claim(base); !errors.Is(err, full) {
		t.Errorf("claim: %v", err)
	}
}

// A claim that could not be kept is kept by its repeat: until then a restart
// would forget it.
func TestARepeatKeepsWhatWasNotKept(t *testing.T) {
	full := errors.New("disk full")
	kept, fail := 0, full
	marks := NewMarks(func(Mark) func() error { return func() error { kept++; return fail } })
	for range 2 {
		if err := marks.Claim(base); !errors.Is(err, full) {
			t.Errorf("claim on a full disk: %v", err)
		}
	}
	fail = nil
	for range 2 {
		if err := marks.Claim(base); err != nil {
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
	if err := restored.Claim(base); err != nil || kept != 3 {
		t.Errorf("claim of a mark read back: %v, written %d times", err, kept)
	}
}

// TestTermsOnlyRise checks, over any order of claims and checks, that nothing
// is admitted that is older than a claim that was admitted before.
func TestTermsOnlyRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		marks := NewMarks(func(Mark) func() error { return func() error { return nil } })
		var held Fence
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			f := Fence{
				FleetID: "f", Term: rapid.Int64Range(1, 6).Draw(t, "term"), Fingerprint: "s",
				ClaimToken: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "token"),
			}
			if rapid.Bool().Draw(t, "claim") {
				if marks.Claim(f) == nil {
					if f.Term < held.Term || f.Term == held.Term && f != held {
						t.Fatalf("claim of %+v while %+v holds", f, held)
					}
					held = f
				}
			} else if marks.Check(f) == nil && f != held {
				t.Fatalf("%+v admitted while %+v holds", f, held)
			}
		}
	})
}
