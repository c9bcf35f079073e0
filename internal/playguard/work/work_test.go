package work

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Only who said that nothing began is believed: everything else may have begun.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("start: %w", runner.ErrSuperseded), true},
		{fmt.Errorf("start: %w", runner.ErrBusy), true},
		{fmt.Errorf("start: %w", runner.ErrNotOurs), true},
		{fleet.Errorf(fleet.CodeInvalidArgument, "start: no such operation"), true},
		{fleet.Errorf(fleet.CodeUnavailable, "start: no room for the operation"), true},
		{fleet.Errorf(fleet.CodeUnavailable, "start: exit status 124: "), false},
		{&sshx.Error{Ending: observe.EndedWithout, Op: "run", Err: io.ErrUnexpectedEOF}, false},
		{&sshx.Error{Ending: observe.EndedDeadline, Op: "run", Err: errors.New("late")}, false},
	} {
		if got := refused(c.err); got != c.want {
			t.Errorf("%v: refused %v, want %v", c.err, got, c.want)
		}
	}
}

// No call that changes something is made without a lease, or outlives it.
func TestLead(t *testing.T) {
	for _, c := range []struct {
		left time.Duration
		err  error
		ok   bool
		most time.Duration
	}{
		{time.Hour, nil, true, callTime},
		{10 * time.Second, nil, true, 9 * time.Second},
		{leastLease - 1, nil, false, 0},
		{0, errors.New("gone"), false, 0},
	} {
		w := New(Config{Lease: func() (time.Duration, error) { return c.left, c.err }})
		ctx, cancel, err := w.lead(t.Context())
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrLost) {
			t.Errorf("%s left, %v: %v", c.left, c.err, err)
		}
		if err != nil {
			continue
		}
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > c.most {
			t.Errorf("%s left: a call may take %s", c.left, time.Until(at))
		}
		cancel()
	}
}

// People read one line of what Compose wrote.
func TestTelling(t *testing.T) {
	text := " Container a  Creating\n Container a  Error response from daemon: no such image: x:1\n Container b  Created\n"
	if got := clip(telling(text)); got != "Container a  Error response from daemon: no such image: x:1" {
		t.Errorf("%q", got)
	}
	if got := clip(telling("one\ntwo\n")); got != "two" {
		t.Errorf("%q", got)
	}
	if got := clip(telling("")); got != "" {
		t.Errorf("%q", got)
	}
}

// Files come with the directories that lead to them, readable by whoever runs in
// a container; what is Playguard's own is nobody else's.
func TestPayload(t *testing.T) {
	raw, err := payload(records.Version{Compose: []byte("c"), Files: []records.File{
		{Path: "a/b/one", Mode: 0o644, Data: []byte("1")}, {Path: "a/run.sh", Mode: 0o755, Data: []byte("2")},
	}}, model.Marker{Kind: model.KindPlayground}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = fmt.Sprintf("%o", h.Mode)
	}
	want := map[string]string{
		".fuse/": "700", ".fuse/owner.json": "600", "compose.yml": "600", "a/": "755", "a/b/": "755", "a/b/one": "644", "a/run.sh": "755",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What a gate waits for, and what it does not.
func TestHopeless(t *testing.T) {
	c := func(state, restart string, exit int) observe.Container {
		return observe.Container{Service: "web", Name: "web-1", State: state, Restart: restart, Exit: exit}
	}
	for name, x := range map[string]struct {
		c        observe.Container
		why      bool
		restarts bool
	}{
		"runs":                 {c("running", "no", 0), false, false},
		"failed":               {c("exited", "no", 3), true, false},
		"failed, default":      {c("exited", "", 3), true, false},
		"done":                 {c("exited", "no", 0), false, false},
		"is started again":     {c("exited", "always", 3), false, false},
		"in between":           {c("restarting", "always", 3), false, true},
		"of a run by somebody": {observe.Container{Service: "web", State: "exited", Exit: 3, OneOff: true}, false, false},
	} {
		why, restarts := hopeless(decide.Runtime{}, []observe.Container{x.c})
		if (why != "") != x.why || restarts != x.restarts {
			t.Errorf("%s: %q, %v", name, why, restarts)
		}
	}
	if why, _ := hopeless(decide.Runtime{Leftovers: []string{"x"}}, []observe.Container{c("exited", "no", 3)}); why != "" {
		t.Errorf("in the middle of a recreate: %q", why)
	}
}
