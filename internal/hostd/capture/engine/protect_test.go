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
	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/vmm/reap"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// monitor is a QEMU that answers a capability with refuses.
type monitor struct {
	refuses error
	silent  error  // nothing is answered
	broke   bool   // the last stream did
	asked   []bool // whether the memory was to be protected
}

func (m *monitor) Execute(_ context.Context, command string, args, result any) error {
	if m.silent != nil {
		return m.silent
	}
	if command == "query-status" {
		return json.Unmarshal([]byte(`{"status":"running"}`), result)
	}
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

// A capture that cannot be undone leaves a machine of which nobody knows whether
// it runs.
func TestWhatIsNotUndoneIsSaid(t *testing.T) {
	gone := errors.New("no answer")
	for name, tt := range map[string]struct {
		silent error
		ended  bool
		unsure bool
	}{
		"it answers":   {},
		"it does not":  {silent: gone, unsure: true},
		"it has ended": {silent: gone, ended: true},
	} {
		alive, end := context.WithCancel(t.Context())
		defer end()
		if tt.ended {
			end()
		}
		c := &capture{e: &Engine{Host: Host{Reaper: reap.Reaper{Cgroups: &cgroup.Manager{}, Prefix: "fuse-test-undo-"}}}, src: Source{
			QMP: &monitor{silent: tt.silent}, Alive: alive, Watch: func(func(qmp.Event)) {}, Free: func() error { return nil },
		}, req: driver.SnapshotRequest{To: driver.Artifact{ID: "s", Dir: t.TempDir()}}}
		if err := c.undo(); errors.Is(err, driver.ErrUnsure) != tt.unsure {
			t.Errorf("%s: %v", name, err)
		}
	}
}
