package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fusevm/fuse/internal/hostd/vmm"
)

func set(number int) string { return fmt.Sprintf("/dev/fdset/%d", vmm.Set(number)) }

// addFile gives QEMU one more descriptor for an overlay.
func addFile(ctx context.Context, m Monitor, number int, f *os.File) error {
	return m.ExecuteFile(ctx, "add-fd", args{"fdset-id": vmm.Set(number)}, nil, f)
}

// AddOverlay makes an empty overlay known to a running machine, with its file
// once more for the time when it will only be read.
func AddOverlay(ctx context.Context, m Monitor, number int, write, read *os.File) error {
	node := vmm.Node(number)
	return errors.Join(
		addFile(ctx, m, number, write),
		addFile(ctx, m, number, read),
		m.Execute(ctx, "blockdev-add", args{"driver": "file", "node-name": node + "-file", "filename": set(number), "discard": "unmap"}, nil),
		m.Execute(ctx, "blockdev-add", args{"driver": "qcow2", "node-name": node, "file": node + "-file", "backing": nil, "discard": "unmap"}, nil))
}

// DropOverlay forgets an overlay that nothing uses; errors only mean that it
// was not known.
func DropOverlay(ctx context.Context, m Monitor, number int) {
	node := vmm.Node(number)
	_ = m.Execute(ctx, "blockdev-del", args{"node-name": node}, nil)
	_ = m.Execute(ctx, "blockdev-del", args{"node-name": node + "-file"}, nil)
	_ = m.Execute(ctx, "remove-fd", args{"fdset-id": vmm.Set(number)}, nil)
}

// Rotate freezes the overlay active and lets next take the writes.
func Rotate(ctx context.Context, m Monitor, active, next int) error {
	return m.Execute(ctx, "blockdev-snapshot", args{"node": vmm.Node(active), "overlay": vmm.Node(next)}, nil)
}

// Written counts what a machine's disks were told to change, from the start of
// its process on. Whatever is under way counts once it has ended, which it has
// for a machine that was stopped. Nothing depends on discards, which not every
// device counts: what is read of a discarded block is promised to nobody.
func Written(ctx context.Context, m Monitor) (int64, error) {
	var disks []struct {
		Stats struct {
			Writes        int64 `json:"wr_operations"`
			Failed        int64 `json:"failed_wr_operations"`
			Discards      int64 `json:"unmap_operations"`
			FailedDiscard int64 `json:"failed_unmap_operations"`
		} `json:"stats"`
	}
	if err := m.Execute(ctx, "query-blockstats", nil, &disks); err != nil {
		return 0, err
	}
	var n int64
	for _, d := range disks {
		n += d.Stats.Writes + d.Stats.Failed + d.Stats.Discards + d.Stats.FailedDiscard
	}
	return n, nil
}

// Top is the overlay that takes the writes.
func Top(ctx context.Context, m Monitor, candidates ...int) (int, error) {
	var blocks []struct {
		Inserted struct {
			Node string `json:"node-name"`
		} `json:"inserted"`
	}
	if err := m.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return 0, err
	}
	for _, b := range blocks {
		for _, n := range candidates {
			if b.Inserted.Node == vmm.Node(n) {
				return n, nil
			}
		}
	}
	return 0, errors.New("QEMU has none of the VM's overlays as its disk")
}

const flattenJob = "flatten"

// endLimit bounds the wait for a copying that was told to end.
const endLimit = 10 * time.Second

// job is one of QEMU's background jobs.
type job struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Error  string `json:"error"`
	Done   int64  `json:"current-progress"`
	Total  int64  `json:"total-progress"`
}

// flattening is the copying of layers; nil when QEMU has none.
func flattening(ctx context.Context, m Monitor) (*job, error) {
	var jobs []job
	if err := m.Execute(ctx, "query-jobs", nil, &jobs); err != nil {
		return nil, err
	}
	for i := range jobs {
		if jobs[i].ID == flattenJob {
			return &jobs[i], nil
		}
	}
	return nil, nil
}

// Flatten copies into the active overlay what the layers below it have, down to
// the image; the machine goes on meanwhile. Then QEMU uses none of them. When
// it fails or ctx ends, no copying is under way any more.
func Flatten(ctx context.Context, m Monitor, active int, layers []int, tick func(done, total int64)) error {
	// The agent may have been killed during one.
	if err := endFlatten(ctx, m); err != nil {
		return err
	}
	if err := flatten(ctx, m, active, tick); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		return errors.Join(err, endFlatten(stop, m))
	}
	for _, n := range layers {
		DropOverlay(ctx, m, n)
	}
	return nil
}

func flatten(ctx context.Context, m Monitor, active int, tick func(done, total int64)) error {
	err := m.Execute(ctx, "block-stream", args{
		"job-id": flattenJob, "device": vmm.Node(active), "base-node": vmm.RootNode, "auto-dismiss": false,
	}, nil)
	if err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		j, err := flattening(ctx, m)
		switch {
		case err != nil:
			return false, err
		case j == nil:
			return false, errors.New("QEMU has forgotten the copying of layers")
		}
		if tick != nil {
			tick(j.Done, j.Total)
		}
		if j.Status != "concluded" {
			return false, nil
		}
		if j.Error != "" {
			return true, fmt.Errorf("QEMU's copying of layers: %s", j.Error)
		}
		return true, m.Execute(ctx, "job-dismiss", args{"id": flattenJob}, nil)
	})
}

// endFlatten ends the copying of layers, if one is under way, and waits for
// that: until then QEMU takes no other of the same disk.
func endFlatten(ctx context.Context, m Monitor) error {
	told := false
	return poll(ctx, func() (bool, error) {
		j, err := flattening(ctx, m)
		switch {
		case err != nil || j == nil:
			return j == nil, err
		case j.Status == "concluded":
			return true, m.Execute(ctx, "job-dismiss", args{"id": flattenJob}, nil)
		case !told:
			told = true
			// It may end by itself just now.
			_ = m.Execute(ctx, "block-job-cancel", args{"device": flattenJob, "force": true}, nil)
		}
		return false, nil
	})
}

// Grow gives the machine a larger disk.
func Grow(ctx context.Context, m Monitor, active int, size int64) error {
	return m.Execute(ctx, "block_resize", args{"node-name": vmm.Node(active), "size": size}, nil)
}
