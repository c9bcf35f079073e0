package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/live"
	"github.com/fusevm/fuse/internal/hostd/qmp"
)

// writer is a QEMU whose disk is written at a command.
type writer struct {
	at       string
	protects bool
	writes   int64
	hear     func(qmp.Event)
	asked    []string
}

func (w *writer) Execute(_ context.Context, command string, _, result any) error {
	if command == w.at {
		w.writes++
	}
	switch command {
	case "query-blockstats":
		doc := fmt.Sprintf(`[{"stats":{"wr_operations":%d,"unmap_operations":2}},{"stats":{}}]`, w.writes)
		return json.Unmarshal([]byte(doc), result)
	case "query-migrate":
		result.(*live.Sent).Status = "completed"
		return nil
	case "stop":
		w.hear(qmp.Event{Name: "STOP", At: time.Unix(1, 0)})
	case "migrate":
		if w.protects {
			w.hear(qmp.Event{Name: "STOP", At: time.Unix(1, 0)})
			w.hear(qmp.Event{Name: "RESUME", At: time.Unix(1, 5e6)})
		}
	case "cont":
		w.hear(qmp.Event{Name: "RESUME", At: time.Unix(1, 5e6)})
	}
	w.asked = append(w.asked, command)
	return nil
}

func (w *writer) ExecuteFile(ctx context.Context, command string, args, result any, _ *os.File) error {
	return w.Execute(ctx, command, args, result)
}

// A machine runs while its memory is made ready unless its disk is written; what
// was written after the disk's moment is never part of a capture.
func TestTheDiskIsOfTheMomentOfTheMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		writtenAt string
		before    bool // the guest's processes are about to stand still
		still     bool
		protected bool
		want      []string
		fails     error
	}{
		"nothing is written":      {protected: true, want: []string{"blockdev-snapshot", "migrate"}},
		"while it stood still":    {protected: true, before: true, want: []string{"stop", "blockdev-snapshot", "migrate"}},
		"while memory is read":    {protected: true, writtenAt: "migrate", want: []string{"blockdev-snapshot", "migrate"}, fails: errWritten},
		"as the disk is frozen":   {protected: true, writtenAt: "blockdev-snapshot", want: []string{"blockdev-snapshot", "migrate"}, fails: errWritten},
		"the second try":          {protected: true, still: true, writtenAt: "migrate", want: []string{"stop", "blockdev-snapshot", "migrate"}},
		"memory is not protected": {want: []string{"stop", "blockdev-snapshot", "migrate", "cont"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &writer{at: tt.writtenAt, protects: tt.protected}
			c := &capture{
				e: &Engine{}, next: 2, still: tt.still, frozeAt: time.Now(), stopped: make(chan time.Time, 1), resumed: make(chan time.Time, 1),
				src: Source{QMP: w, Disk: chain.Chain{Active: 1}, Watch: func(f func(qmp.Event)) { w.hear = f }},
			}
			c.m.Timings.Background = tt.protected
			c.written = 2
			if tt.before {
				w.writes++
			}
			err := c.sendMoment(t.Context())
			if tt.fails == nil && (err != nil || c.m.Timings.Stop != 5*time.Millisecond) {
				t.Errorf("%v, stood still for %s", err, c.m.Timings.Stop)
			}
			if !errors.Is(err, tt.fails) || !slices.Equal(w.asked, tt.want) {
				t.Errorf("error %v, asked for %v, want %v", err, w.asked, tt.want)
			}
		})
	}
}
