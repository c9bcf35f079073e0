package idempotency

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

func open(t *testing.T, journal *memory.Journal) *state.Store {
	t.Helper()
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return store
}

func setup(t *testing.T) (*Keeper, *state.Store) {
	t.Helper()
	store := open(t, memory.New(memory.Options{}))
	return New(store), store
}

func call(policy Unfinished) Call {
	return Call{Owner: "o", Key: "k", BodyHash: "h", Method: "POST", Path: "/v1/x", Unfinished: policy}
}

// counted runs a request that answers and counts how often it ran.
type counted struct {
	runs   int
	answer Answer
	err    error
}

func (c *counted) run(context.Context, *state.Idempotency) (Answer, error) {
	c.runs++
	return c.answer, c.err
}

func TestRepeatGetsTheFirstAnswer(t *testing.T) {
	for _, policy := range []Unfinished{RunAgain, Refuse} {
		k, _ := setup(t)
		code := 7
		first := &counted{answer: Answer{Status: 200, ResourceID: "r", ExitCode: &code}}
		for i := range 3 {
			got, err := k.Do(t.Context(), call(policy), first.run)
			want := first.answer
			want.Replayed = i > 0
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v %v", err, diff)
			}
		}
		if first.runs != 1 {
			t.Errorf("policy %d: it ran %d times", policy, first.runs)
		}
	}
}

func TestWithoutAKeyNothingIsKept(t *testing.T) {
	k, store := setup(t)
	c := call(Refuse)
	c.Key = ""
	r := &counted{}
	for range 2 {
		if _, err := k.Do(t.Context(), c, r.run); err != nil {
			t.Fatal(err)
		}
	}
	if rev, _ := store.Head(); r.runs != 2 || rev != 0 {
		t.Errorf("%d runs, revision %d", r.runs, rev)
	}
}

func TestAnotherRequestWithTheKeyIsRefused(t *testing.T) {
	k, _ := setup(t)
	r := &counted{}
	if _, err := k.Do(t.Context(), call(RunAgain), r.run); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Call){
		"body":   func(c *Call) { c.BodyHash = "x" },
		"method": func(c *Call) { c.Method = "DELETE" },
		"path":   func(c *Call) { c.Path = "/v1/y" },
	} {
		c := call(RunAgain)
		change(&c)
		_, err := k.Do(t.Context(), c, r.run)
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Code != fleet.CodeConflict || fe.Details[fleet.DetailReason] != ReasonReused {
			t.Errorf("another %s: %v", what, err)
		}
	}
	c := call(RunAgain)
	c.Owner = "other"
	if _, err := k.Do(t.Context(), c, r.run); err != nil || r.runs != 2 {
		t.Errorf("another principal's key: %v, %d runs", err, r.runs)
	}
}

func TestKeys(t *testing.T) {
	k, _ := setup(t)
	for key, ok := range map[string]bool{"a b~": true, strings.Repeat("a", 200): true, strings.Repeat("a", 201): false, "a\n": false, "é": false} {
		c := call(RunAgain)
		c.Key = key
		_, err := k.Do(t.Context(), c, (&counted{}).run)
		if (err == nil) != ok || !ok && fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%.20q: %v", key, err)
		}
	}
}

func TestAnErrorIsNotKept(t *testing.T) {
	unknown := fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "no answer")
	for name, tt := range map[string]struct {
		policy Unfinished
		err    error
		again  bool // a repeat runs
	}{
		"of what may repeat":               {RunAgain, unknown, true},
		"a command that was refused":       {Refuse, fleet.Errorf(fleet.CodeConflict, "draining: %w", fleet.ErrVMNotRunning), true},
		"a command of unknown outcome":     {Refuse, unknown, false},
		"a command whose guest went away":  {Refuse, fleet.Wrap(fleet.CodeUnavailable, fleet.ErrGuestUnavailable, "no answer"), false},
		"a command that ran out of time":   {Refuse, fleet.Errorf(fleet.CodeDeadlineExceeded, "late"), false},
		"a command whose caller left":      {Refuse, context.Canceled, false},
		"a command with an internal error": {Refuse, errors.New("boom"), false},
	} {
		t.Run(name, func(t *testing.T) {
			k, _ := setup(t)
			r := &counted{err: tt.err}
			if _, err := k.Do(t.Context(), call(tt.policy), r.run); !errors.Is(err, tt.err) {
				t.Fatalf("got %v", err)
			}
			r.err = nil
			_, err := k.Do(t.Context(), call(tt.policy), r.run)
			var fe *fleet.Error
			if tt.again && (err != nil || r.runs != 2) || !tt.again && (!errors.As(err, &fe) || fe.Code != fleet.CodeConflict || fe.Details[fleet.DetailReason] != ReasonUnknownOutcome || r.runs != 1) {
				t.Errorf("the repeat got %v after %d runs", err, r.runs)
			}
		})
	}
}

func TestARepeatWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := setup(t)
		release := make(chan struct{})
		runs := 0
		slow := func(context.Context, *state.Idempotency) (Answer, error) {
			runs++
			<-release
			return Answer{Status: 201}, nil
		}
		answers := make(chan Answer)
		for range 5 {
			go func() {
				a, err := k.Do(t.Context(), call(RunAgain), slow)
				if err != nil {
					t.Error(err)
				}
				answers <- a
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := k.Do(ctx, call(RunAgain), slow); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("one that cannot wait: %v", err)
		}
		close(release)
		replayed := 0
		for range 5 {
			if a := <-answers; a.Replayed {
				replayed++
			}
		}
		if runs != 1 || replayed != 4 {
			t.Errorf("%d runs, %d replayed", runs, replayed)
		}
	})
}

func TestAnAnswerIsKeptForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := setup(t)
		r := &counted{}
		for _, later := range []time.Duration{0, 23 * time.Hour, 2 * time.Hour} {
			<-time.NewTimer(later).C
			if _, err := k.Do(t.Context(), call(RunAgain), r.run); err != nil {
				t.Fatal(err)
			}
		}
		if r.runs != 2 {
			t.Errorf("it ran %d times", r.runs)
		}
	})
}

// The process dies while a command runs; after the restart it is not run again.
func TestARestartDoesNotRepeatACommand(t *testing.T) {
	journal := memory.New(memory.Options{})
	k := New(open(t, journal))
	var after *Keeper
	_, _ = k.Do(t.Context(), call(Refuse), func(context.Context, *state.Idempotency) (Answer, error) {
		after = New(open(t, journal)) // takes the lease over
		return Answer{Status: 200}, nil
	})
	r := &counted{}
	if _, err := after.Do(t.Context(), call(Refuse), r.run); fleet.CodeOf(err) != fleet.CodeConflict || r.runs != 0 {
		t.Errorf("got %v after %d runs", err, r.runs)
	}
}

// A create records itself: its repeat gets the life it made while that lives.
func TestByLife(t *testing.T) {
	k, store := setup(t)
	life := func(uid string) func(context.Context, *state.Idempotency) (Answer, error) {
		return func(ctx context.Context, rec *state.Idempotency) (Answer, error) {
			_, err := store.Update(ctx, func(tx *state.Tx) error {
				claim := *rec
				claim.ResourceID, claim.Status = uid, 201
				return errors.Join(tx.PutIdempotency(claim), tx.PutVM(fleet.VM{ID: "fuse-t", UID: uid, State: fleet.VMStateProvisioning}))
			})
			return Answer{Status: 201, ResourceID: uid}, err
		}
	}
	if _, err := k.Do(t.Context(), call(ByLife), life("u1")); err != nil {
		t.Fatal(err)
	}
	got, err := k.Do(t.Context(), call(ByLife), life("u2"))
	if diff := cmp.Diff(Answer{Status: 201, ResourceID: "u1", Replayed: true}, got); err != nil || diff != "" {
		t.Error("while it lives:", err, diff)
	}
	if _, err := store.Update(t.Context(), func(tx *state.Tx) error { return tx.DeleteVM("fuse-t") }); err != nil {
		t.Fatal(err)
	}
	got, err = k.Do(t.Context(), call(ByLife), life("u3"))
	if diff := cmp.Diff(Answer{Status: 201, ResourceID: "u3"}, got); err != nil || diff != "" {
		t.Error("once it is over:", err, diff)
	}
}
