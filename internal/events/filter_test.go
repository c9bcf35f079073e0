package events

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
)

func TestFilter(t *testing.T) {
	e := fleet.Event{EntityType: "task", EntityID: "job", Type: "task.failed", VMID: "fuse-job", HostID: "h1", Owner: "ann"}
	for _, c := range []struct {
		filter fleet.EventFilter
		want   bool
	}{
		{fleet.EventFilter{}, true},
		{fleet.EventFilter{Types: []string{"task.failed"}}, true},
		{fleet.EventFilter{Types: []string{"vm.*", "task.*"}}, true},
		{fleet.EventFilter{Types: []string{"*.failed"}}, true},
		{fleet.EventFilter{Types: []string{"*"}}, true},
		{fleet.EventFilter{Types: []string{"vm.*"}}, false},
		{fleet.EventFilter{Types: []string{"task"}}, false},
		{fleet.EventFilter{Entity: "task"}, true},
		{fleet.EventFilter{Entity: "task/job"}, true},
		{fleet.EventFilter{Entity: "task/jo"}, false},
		{fleet.EventFilter{Entity: "vm"}, false},
		{fleet.EventFilter{VM: "fuse-job", Host: "h1", Owner: "ann"}, true},
		{fleet.EventFilter{VM: "fuse-other"}, false},
		{fleet.EventFilter{Host: "h2"}, false},
		{fleet.EventFilter{Owner: "bob"}, false},
		{fleet.EventFilter{Types: []string{"task.*"}, Owner: "bob"}, false},
	} {
		s, err := Compile(c.filter)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Match(&e); got != c.want {
			t.Errorf("%+v takes %v: %v, want %v", c.filter, e.Type, got, c.want)
		}
	}
}

func TestTypesThatThereAre(t *testing.T) {
	for types, known := range map[string]bool{
		"": true, "*": true, "vm.*": true, "vm.running": true, "*.failed": true, "vm.* host.unreachable": true,
		"vm.runing": false, "vms.*": false, "vm.* nothing.at.all": false, "vm": false, "resync": false,
	} {
		err := CheckTypes(strings.Fields(types))
		if (err == nil) != known || err != nil && fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%q: %v, known %v", types, err, known)
		}
	}
}

func TestFiltersThatAreRefused(t *testing.T) {
	for _, f := range []fleet.EventFilter{
		{Types: []string{""}},
		{Types: []string{"VM.running"}},
		{Types: []string{"vm running"}},
		{Types: []string{strings.Repeat("a", 65)}},
		{Types: make([]string, 33)},
		{Entity: "/x"},
		{Entity: "vm/"},
		{VM: strings.Repeat("x", 201)},
		{Host: strings.Repeat("x", 201)},
		{Owner: strings.Repeat("x", 201)},
	} {
		if _, err := Compile(f); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%.80v: %v", f, err)
		}
	}
}

// The matcher agrees with regular expressions on every pattern.
func TestGlob(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab.*")), 0, 8, -1)
	rapid.Check(t, func(rt *rapid.T) {
		pattern, name := text.Draw(rt, "pattern"), strings.ReplaceAll(text.Draw(rt, "name"), "*", "c")
		rule := "^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$"
		if got, want := glob(pattern, name), regexp.MustCompile(rule).MatchString(name); got != want {
			rt.Fatalf("%q on %q: %v, want %v", pattern, name, got, want)
		}
	})
}
