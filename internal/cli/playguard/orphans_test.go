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
