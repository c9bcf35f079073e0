package engine

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/hostd/capture/live"
	"github.com/fusevm/fuse/internal/hostd/capture/uffd"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// monitor is a QEMU that answers a capability with refuses.
type monitor struct {
	refuses error
	broke   bool   // the last stream did
	asked   []bool // whether the memory was to be protected
}

func (m *monitor) Execute(_ context.Context, command string, args, result any) error {
	if command == "query-migrate" {
		if m.broke {
			result.(*live.Sent).Status = "failed"
		}
		return nil
	}
	if command != "migrate-set-capabilities" {
		return errors.New(command + " is not known")
	}
	doc, err := json.Marshal(args)
	if err != nil {
		return err
	}
	on := strings.Contains(string(doc), `"background-snapshot","state":true`)
	m.asked = append(m.asked, on)
	if on {
		return m.refuses
	}
	return nil
}

func (m *monitor) ExecuteFile(context.Context, string, any, any, *os.File) error { return nil }

// A machine whose memory cannot be protected stands still instead.
func TestWhatCannotBeProtectedStandsStill(t *testing.T) {
	for name, tt := range map[string]struct {
		next       int
		refuses    error
		broke      bool
		background bool
		fails      bool
	}{
		"protected":           {next: 1, background: true},
		"not of this kind":    {next: 1, refuses: errors.New("not compatible with guest memory configuration")},
		"nor was it ever":     {next: 1, refuses: errors.New("not compatible with guest memory configuration"), broke: true},
		"nor when it stops":   {refuses: errors.New("not compatible with guest memory configuration"), broke: true},
		"the process is gone": {next: 1, refuses: qmp.ErrClosed, fails: true},
		"it is to stop":       {},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := os.ReadFile(uffd.Setting)
			if err != nil {
				t.Fatal(err)
			}
			m := &monitor{refuses: tt.refuses, broke: tt.broke}
			c := &capture{e: &Engine{Userfault: uffd.New()}, src: Source{QMP: m}, next: tt.next}
			back, err := c.protect(t.Context())
			if (err != nil) != tt.fails || c.m.Timings.Background != tt.background {
				t.Errorf("background: %v, %v, asked %v", c.m.Timings.Background, err, m.asked)
			}
			if back != nil {
				if err := back(); err != nil {
					t.Error(err)
				}
			}
			if after, err := os.ReadFile(uffd.Setting); err != nil || string(after) != string(before) {
				t.Errorf("the setting was %s and is %s, %v", before, after, err)
			}
		})
	}
}
