package playguard

import (
	"io"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// What a sweep set aside can be brought back once there is a record of it, which a
// rescan that adopts nothing does not make.
func TestRescanTellsHowToRestore(t *testing.T) {
	for adopt, want := range map[bool]string{
		true:  "fuse marquee sweep restore old--p1 brings it back\n",
		false: "fuse marquee sweep restore old--p1 brings it back, after a rescan with --adopt-all if the records were lost\n",
	} {
		var said strings.Builder
		a := marquees{&app{Tools: kit.Tools{
			Out: io.Discard, Err: &said, Cell: func(s string) string { return s },
			Format:     func() (string, error) { return "", nil },
			ListFormat: func() (string, error) { return "", nil },
			Table:      func(io.Writer, []string, [][]string) error { return nil },
		}}}
		if err := a.showRescan(gen.MarqueeRescan{Installation: "inst1", Aside: []string{"old--p1"}}, nil, adopt); err != nil {
			t.Error(err)
		}
		if !strings.HasSuffix(said.String(), want) {
			t.Errorf("adopt %v: %q", adopt, said.String())
		}
	}
}

// Whom a rescan takes over without a name is the only one there, and never beside
// what is ours.
func TestLeftBehind(t *testing.T) {
	for what, c := range map[string]struct {
		there []string
		ours  bool
		aside bool
		want  string
	}{
		"nobody":             {there: []string{"inst1"}},
		"one other":          {there: []string{"inst1", "inst2"}, want: "inst2"},
		"one, and not ours":  {there: []string{"inst2"}, want: "inst2"},
		"two others":         {there: []string{"inst1", "inst2", "inst3"}},
		"ours too":           {there: []string{"inst1", "inst2"}, ours: true},
		"ours was set aside": {there: []string{"inst1", "inst2"}, aside: true},
	} {
		r := gen.MarqueeRescan{Installation: "inst1", Installations: c.there}
		if c.ours {
			r.Projects = []gen.FoundProject{{Project: "shop--p1"}}
		}
		if c.aside {
			r.Aside = []string{"shop--p1"}
		}
		if got := leftBehind(r); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
