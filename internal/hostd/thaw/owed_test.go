package thaw

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// late is a guest that is busy until some moment.
type late struct {
	*guest
	until time.Time
}

func (l *late) Thaw(ctx context.Context, key, generation string) (int, time.Duration, error) {
	if time.Now().Before(l.until) {
		return 0, 0, busy
	}
	return l.guest.Thaw(ctx, key, generation)
}

var busy = fleet.Errorf(fleet.CodeUnavailable, "busy")

// What counts is let go on for as long as it takes, however long its renewal
// took, and that it is to go on is on the disk from before it counts.
func TestWhatCountsGoesOnAtLast(t *testing.T) {
	dir := t.TempDir()
	there := func() bool { _, err := os.Stat(filepath.Join(dir, File)); return err == nil }
	synctest.Test(t, func(t *testing.T) {
		g := &late{guest: &guest{slow: tries - 1}}
		r := request()
		r.VM.Dir, r.Files = dir, nil
		r.Renewed = func(context.Context) error { <-time.After(Limit - 7*time.Second); return nil }
		noted := false
		r.Keep = func(context.Context) error {
			noted = there()
			g.until = time.Now().Add(Limit - time.Second)
			return nil
		}
		if _, err := Do(t.Context(), g, r); err != nil || !g.runs || !noted || there() {
			t.Errorf("runs: %v, noted before: %v, after: %v: %v", g.runs, noted, there(), err)
		}
		no := &guest{thawErr: errors.New("no")}
		r.Keep = func(context.Context) error { return nil }
		if _, err := Do(t.Context(), no, r); err == nil || no.calls[len(no.calls)-2] == "thaw" || !there() {
			t.Errorf("a refusal: %v, calls %v", err, no.calls)
		}
	})
}

// asked is a guest of a machine whose agent died.
type asked struct {
	frozen bool
	deaf   int // calls that it does not answer
	key    string
}

func (a *asked) Info(context.Context) (fleet.GuestInfo, error) {
	if a.deaf > 0 {
		a.deaf--
		return fleet.GuestInfo{}, busy
	}
	return fleet.GuestInfo{Frozen: a.frozen}, nil
}

func (a *asked) Thaw(_ context.Context, key, generation string) (int, time.Duration, error) {
	if key != a.key || generation == "" {
		return 0, 0, fleet.Errorf(fleet.CodeUnauthorized, "another key")
	}
	a.frozen = false
	return 1, 0, nil
}

func TestTheNextAgentLetsItGoOn(t *testing.T) {
	for name, tt := range map[string]struct {
		guest  asked
		frozen bool
		fails  bool
	}{
		"stands still":                   {guest: asked{frozen: true, key: "key"}},
		"answers later":                  {guest: asked{frozen: true, key: "key", deaf: 50}},
		"runs":                           {guest: asked{}},
		"stands still for another cause": {guest: asked{frozen: true, key: "another"}, frozen: true, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := request()
			r.VM.Dir = dir
			if err := r.owe("generation"); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				if err := Settle(t.Context(), dir, &tt.guest); (err != nil) != tt.fails || tt.guest.frozen != tt.frozen {
					t.Errorf("frozen: %v, %v", tt.guest.frozen, err)
				}
			})
			if _, err := os.Stat(filepath.Join(dir, File)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the note: %v", err)
			}
			if err := Settle(t.Context(), dir, nil); err != nil {
				t.Errorf("nothing to do: %v", err)
			}
		})
	}
}

func TestNobodyLetsItGoOnInVain(t *testing.T) {
	dir := t.TempDir()
	r := request()
	r.VM.Dir = dir
	if err := r.owe("generation"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := Settle(ctx, dir, &asked{deaf: 1 << 30}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, File)); err != nil {
		t.Errorf("the note is gone: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, File), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Settle(t.Context(), dir, nil); err == nil {
		t.Error("a damaged note was read")
	}
}
