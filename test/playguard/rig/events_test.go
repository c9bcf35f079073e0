package rig

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func event(at time.Time, typ, action, name string) Event {
	e := Event{At: at, Type: typ, Action: action}
	e.Actor.ID = name
	e.Actor.Attributes = map[string]string{"name": name, "com.docker.compose.project": "shop--p1"}
	return e
}

// What an operation may do it may do in the epoch that its marquee has when it
// begins, to its project, while it is at work.
func TestUnexplained(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	later := noon.Add(time.Minute)
	had := Epochs{{Epoch: 1, At: noon.Add(-time.Hour)}, {Epoch: 2, At: noon}}
	removed := event(later.Add(time.Second), "container", "destroy", "web")
	for what, c := range map[string]struct {
		kind    model.OpKind
		epoch   uint64
		from    time.Time
		project string
		event   Event
		want    int
	}{
		"of the epoch":            {model.OpUp, 2, later, "shop--p1", removed, 0},
		"of an overtaken epoch":   {model.OpUp, 1, later, "shop--p1", removed, 1},
		"before it was overtaken": {model.OpUp, 1, noon.Add(-time.Second), "shop--p1", removed, 0},
		"of an epoch to come":     {model.OpUp, 2, noon.Add(-time.Second), "shop--p1", removed, 1},
		"of another project":      {model.OpUp, 2, later, "blog--p2", removed, 1},
		"before it began":         {model.OpUp, 2, later.Add(time.Minute), "shop--p1", removed, 1},
		"files remove nothing":    {model.OpFiles, 2, later, "shop--p1", removed, 1},
		"a branch pauses":         {model.OpBranch, 2, later, "shop--p1", event(later, "container", "pause", "web"), 0},
		"a branch removes":        {model.OpBranch, 2, later, "shop--p1", removed, 1},
		"a branch kills":          {model.OpBranch, 2, later, "shop--p1", event(later, "container", "kill", "web"), 1},
		"a volume of no list":     {model.OpDestroy, 2, later, "shop--p1", event(later, "volume", "destroy", "shop--p1_data"), 1},
		"a volume of its own":     {model.OpDestroy, 2, later, "shop--p1", event(later, "volume", "destroy", "shop--p1_data"), 0},
	} {
		s := Span{Op: "o", Project: c.project, Kind: c.kind, Epoch: c.epoch, Named: what == "a volume of its own", Current: had.At(c.from), From: c.from, To: later.Add(time.Hour)}
		if got := Unexplained([]Event{c.event}, []Span{s}); len(got) != c.want {
			t.Errorf("%s: %q", what, got)
		}
	}
	if had.At(noon.Add(-2*time.Hour)) != 0 || had.At(noon) != 2 {
		t.Error("an epoch is taken for another")
	}
}

// The records on a host tell of operations, and of one that came late.
func TestOnHost(t *testing.T) {
	root := t.TempDir()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for i, what := range []string{"shop--p1 up 1", "shop--p1 stop 2", "shop--p1 destroy 1"} {
		for j, name := range []string{"what", "exit"} {
			at := filepath.Join(root, "ops", "inst1", strconv.Itoa(i), name)
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				t.Fatal(err)
			}
			when := noon.Add(time.Duration(2*i+j) * time.Minute)
			if err := errors.Join(os.WriteFile(at, []byte(what+"\n"), 0o600), os.Chtimes(at, when, when)); err != nil {
				t.Fatal(err)
			}
		}
	}
	spans, who := OnHost(t, root)
	if len(spans) != 3 || !slices.Equal(who, []model.InstallationID{"inst1"}) {
		t.Fatalf("%+v %v", spans, who)
	}
	for i, want := range []int{0, 0, 1} { // the last is of an epoch that was overtaken
		e := event(noon.Add(time.Duration(2*i)*time.Minute+30*time.Second), "container", "stop", "web")
		if got := Unexplained([]Event{e}, spans); len(got) != want {
			t.Errorf("operation %d: %q", i, got)
		}
	}
}
