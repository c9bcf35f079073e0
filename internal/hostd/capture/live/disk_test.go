package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// streamer is a QEMU whose copying of layers ends only some looks after it was
// told to, as the real one's does. It refuses a second one of the same disk.
type streamer struct {
	t       *testing.T
	running bool
	looks   int // until it is concluded
	failure string
	cancels int
	dropped []string
	onLook  func()
}

func (s *streamer) ExecuteFile(ctx context.Context, command string, args, result any, _ *os.File) error {
	return s.Execute(ctx, command, args, result)
}

func (s *streamer) Execute(ctx context.Context, command string, a, result any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch command {
	case "block-stream":
		if s.running {
			return errors.New("Node 'disk-8' is busy: block device is in use by block job: stream")
		}
		s.running, s.looks, s.failure = true, 5, ""
	case "query-jobs":
		return s.look(result)
	case "block-job-cancel":
		s.cancels++
		s.failure = "cancelled"
	case "job-dismiss":
		if !s.running || s.looks > 0 {
			return errors.New("job is not concluded")
		}
		s.running = false
	case "blockdev-del", "remove-fd":
		s.dropped = append(s.dropped, fmt.Sprint(command, a))
	case "query-named-block-nodes", "query-fdsets":
	default:
		s.t.Errorf("asked for %s", command)
	}
	return nil
}

func (s *streamer) look(result any) error {
	list := []job{{ID: "another", Status: "running"}}
	if s.running {
		status := "running"
		if s.looks--; s.looks <= 0 {
			s.looks, status = 0, "concluded"
		}
		list = append(list, job{ID: flattenJob, Status: status, Error: s.failure, Done: 1, Total: 2})
	}
	if s.onLook != nil {
		s.onLook()
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, result)
}

// A copying that is given up at any look, or was left by an agent that was
// killed, is over before the next begins.
func TestFlattenLeavesNothingUnderWay(t *testing.T) {
	for given := range 6 {
		synctest.Test(t, func(t *testing.T) {
			q := &streamer{t: t}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			looks := 0
			q.onLook = func() {
				if looks++; looks == given+1 {
					cancel()
				}
			}
			if err := Flatten(ctx, q, 8, []int{6, 7}, nil); !errors.Is(err, context.Canceled) {
				t.Fatalf("given up at look %d: %v", given, err)
			}
			if q.running {
				t.Errorf("given up at look %d: it goes on", given)
			}
			if len(q.dropped) != 0 {
				t.Errorf("given up at look %d: dropped %q", given, q.dropped)
			}
			q.onLook = nil
			if err := Flatten(t.Context(), q, 8, []int{6, 7}, nil); err != nil {
				t.Errorf("given up at look %d, then again: %v", given, err)
			}
			if all := strings.Join(q.dropped, " "); q.running || !strings.Contains(all, "disk-6") || !strings.Contains(all, "disk-7") {
				t.Errorf("after it: under way %t, dropped %q", q.running, q.dropped)
			}
		})
	}
}

func TestFlattenEndsWhatAKilledAgentLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &streamer{t: t, running: true, looks: 4}
		var done []int64
		err := Flatten(t.Context(), q, 8, nil, func(d, _ int64) { done = append(done, d) })
		if err != nil || q.running || q.cancels != 1 {
			t.Errorf("%v; under way %t, told to end %d times, want once", err, q.running, q.cancels)
		}
		if !slices.Contains(done, 1) {
			t.Errorf("no progress was told: %v", done)
		}
	})
}

func TestFlattenTellsQEMUsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &streamer{t: t}
		q.onLook = func() { q.failure = "No space left on device" }
		err := Flatten(t.Context(), q, 8, []int{7}, nil)
		if err == nil || !strings.Contains(err.Error(), "No space left on device") || q.running {
			t.Errorf("%v; under way %t", err, q.running)
		}
		if len(q.dropped) != 0 {
			t.Errorf("dropped %q although the copying failed", q.dropped)
		}
	})
}
