package live

import (
	"context"
	"errors"
	"fmt"
	"os"

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

// Flatten copies into the active overlay what the layers below it have, down to
// the image; the machine goes on meanwhile. Then QEMU uses none of them.
func Flatten(ctx context.Context, m Monitor, active int, layers []int, tick func(done, total int64)) error {
	// One that was given up may not have been dismissed.
	_ = m.Execute(ctx, "job-dismiss", args{"id": flattenJob}, nil)
	err := m.Execute(ctx, "block-stream", args{
		"job-id": flattenJob, "device": vmm.Node(active), "base-node": vmm.RootNode, "auto-dismiss": false,
	}, nil)
	if err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		var jobs []struct {
			ID     string `json:"id"`
			Status string `json:"status"`
			Error  string `json:"error"`
			Done   int64  `json:"current-progress"`
			Total  int64  `json:"total-progress"`
		}
		if err := m.Execute(ctx, "query-jobs", nil, &jobs); err != nil {
			return false, err
		}
		for _, j := range jobs {
			if j.ID != flattenJob {
				continue
			}
			if tick != nil {
				tick(j.Done, j.Total)
			}
			if j.Status != "concluded" {
				return false, nil
			}
			err := m.Execute(ctx, "job-dismiss", args{"id": flattenJob}, nil)
			if j.Error != "" {
				err = fmt.Errorf("QEMU's copying of layers: %s", j.Error)
			}
			return true, err
		}
		return false, errors.New("QEMU has forgotten the copying of layers")
	})
	if err != nil {
		if ctx.Err() != nil {
			stop := context.WithoutCancel(ctx)
			_ = m.Execute(stop, "block-job-cancel", args{"device": flattenJob, "force": true}, nil)
		}
		return err
	}
	for _, n := range layers {
		DropOverlay(ctx, m, n)
	}
	return nil
}

// Grow gives the machine a larger disk.
func Grow(ctx context.Context, m Monitor, active int, size int64) error {
	return m.Execute(ctx, "block_resize", args{"node-name": vmm.Node(active), "size": size}, nil)
}
