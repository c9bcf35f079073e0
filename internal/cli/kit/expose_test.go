package kit

import (
	"testing"

	"github.com/fusevm/fuse/internal/api/gen"
)

func TestParseExpose(t *testing.T) {
	for text, want := range map[string]gen.Expose{
		"80":              {Port: 80},
		"53/udp":          {Port: 53, Protocol: "udp"},
		"web=80":          {As: "web", Port: 80},
		"web=20080:80":    {As: "web", HostPort: 20080, Port: 80},
		"20053:53/udp":    {HostPort: 20053, Port: 53, Protocol: "udp"},
		"a-b=1:2/anybody": {As: "a-b", HostPort: 1, Port: 2, Protocol: "anybody"}, // the server judges
	} {
		if got, err := ParseExpose([]string{text}); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "web", "web=", "80:", ":80", "80-90", "1:2:3", "/udp"} {
		if got, err := ParseExpose([]string{bad}); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}
