package engine

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// A capture whose disk was written is made once more, of the disk as the first
// try left it, and nobody else gets its id in between.
func TestACaptureIsMadeOnceMore(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []int{0, 1} {
		f, err := disk.CreateOn(filepath.Join(dir, chain.File(n)), filepath.Join(dir, "base"), "raw", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e := &Engine{Host: Host{Room: func() error { return nil }}}
	src := Source{VM: driver.VM{Dir: dir}, Alive: t.Context()}
	req := driver.SnapshotRequest{To: driver.Artifact{ID: "s", Dir: filepath.Join(dir, "s")}, Live: true}
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		fails []error // of the tries
		want  error
	}{
		"at once":         {fails: []error{nil}},
		"the second time": {fails: []error{errors.Join(errWritten, broken), nil}},
		"never":           {fails: []error{errWritten, broken}, want: broken},
		"another error":   {fails: []error{broken}, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			var tries []*capture
			var begun time.Time
			_, err := e.snapshot(t.Context(), src, req, func(_ context.Context, c *capture) error {
				keep := map[string]bool{}
				if e.keepBusy(keep); !keep[nameTemplate+"s"] || !keep[nameHolder+"s"] {
					t.Error("a sweep would take what the capture has")
				}
				if _, err := e.begin(src, req); fleet.CodeOf(err) != fleet.CodeConflict {
					t.Errorf("another capture by the same id: %v", err)
				}
				if len(tries) == 0 {
					begun = c.begun
				}
				if c.still != (len(tries) > 0) || c.src.Disk.Active != len(tries) || c.begun != begun {
					t.Errorf("try %d: stands still %v, on %+v", len(tries), c.still, c.src.Disk)
				}
				tries = append(tries, c)
				c.src.Disk = c.src.Disk.Frozen(chain.Layer{}, c.src.Disk.Next())
				return tt.fails[len(tries)-1]
			})
			if !errors.Is(err, tt.want) || len(tries) != len(tt.fails) {
				t.Errorf("error %v after %d tries", err, len(tries))
			}
			if len(tries) > 1 && tries[0].m.ThawKey == tries[1].m.ThawKey {
				t.Error("the key of the dropped capture opens the other one")
			}
			if len(e.busy) > 0 {
				t.Errorf("busy with %v afterwards", e.busy)
			}
		})
	}
}
