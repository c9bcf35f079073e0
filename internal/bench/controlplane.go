package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

// ControlPlane measures creates and reads at growing fleet sizes.
type ControlPlane struct {
	Target Target
	Sizes  []int
	Serial int // creates in a row, a size
	Burst  int // creates by 16 workers, a size
	Reads  int // repeats of each read
	Out    io.Writer
	// DataDir is a directory on the server's disk, whose fsync is measured
	// first; empty where that disk is elsewhere.
	DataDir string
	// JournalRate measures the store alone, by the same commits a create
	// makes; nil leaves that out.
	JournalRate func(ctx context.Context, n int) (Latency, error)
	// Clean destroys what was made once all is measured.
	Clean bool
	// Usage reads what the measured processes have taken so far.
	Usage func(ctx context.Context) ([]Usage, error)
}

// Workers is how many creates run at once in the parallel measurement.
const Workers = 16

// Run prints one block a fleet size. The fleet must be empty.
func (b ControlPlane) Run(ctx context.Context) error {
	if n, err := b.Target.ListAll(ctx); err != nil || n > 0 {
		return errors.Join(err, notEmpty(n))
	}
	if err := b.disk(ctx); err != nil {
		return err
	}
	have := 0
	for _, size := range b.Sizes {
		var err error
		if have, err = b.fill(ctx, have, size); err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "at %d environments\n", size)
		if err := b.at(ctx, size); err != nil {
			return err
		}
	}
	if !b.Clean {
		return nil
	}
	_, err := Each(ctx, have, Workers, func(ctx context.Context, i int) error { return b.Target.Destroy(ctx, fillID(i)) })
	return err
}

func fillID(i int) string { return fmt.Sprintf("fill-%d", i) }

func notEmpty(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("the server has %d environments: measure one that has none", n)
}

// disk measures what everything durable rests on.
func (b ControlPlane) disk(ctx context.Context) error {
	if b.DataDir != "" {
		fsync, err := FsyncRate(ctx, b.DataDir, 200)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "fsync of the data directory's disk (4 KiB)  %s\n", fsync)
	}
	if b.JournalRate == nil {
		return nil
	}
	journal, err := b.JournalRate(ctx, 500)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(b.Out, "journal alone, two commits as of a create   %s\n", journal)
	return err
}

func (b ControlPlane) fill(ctx context.Context, have, size int) (int, error) {
	_, err := Each(ctx, size-have, Workers, func(ctx context.Context, i int) error {
		return b.Target.Create(ctx, fillID(have+i))
	})
	return max(size, have), err
}

func (b ControlPlane) at(ctx context.Context, size int) error {
	for _, m := range []struct{ n, workers int }{{b.Serial, 1}, {b.Burst, Workers}} {
		id := func(i int) string { return fmt.Sprintf("b%d-%d-%d", size, m.workers, i) }
		how := "one at a time"
		if m.workers > 1 {
			how = fmt.Sprintf("%d at a time", m.workers)
		}
		for _, op := range []struct {
			name string
			call func(context.Context, string) error
		}{{"create", b.Target.Create}, {"destroy", b.Target.Destroy}} {
			before, err := b.Usage(ctx)
			if err != nil {
				return err
			}
			l, err := Each(ctx, m.n, m.workers, func(ctx context.Context, i int) error { return op.call(ctx, id(i)) })
			if err != nil {
				return err
			}
			after, err := b.Usage(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintf(b.Out, "  %-24s %s  cpu each%s\n", op.name+", "+how, l, spent(before, after, m.n))
		}
	}
	return b.reads(ctx, size)
}

func (b ControlPlane) reads(ctx context.Context, size int) error {
	get := func(path string) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			_, err := b.Target.Call(ctx, http.MethodGet, path, nil)
			return err
		}
	}
	full := func(ctx context.Context, _ int) error {
		rows, err := b.Target.ListAll(ctx)
		if err == nil && rows != size {
			err = fmt.Errorf("the listing has %d rows, not %d", rows, size)
		}
		return err
	}
	for _, m := range []struct {
		name string
		n    int
		f    func(context.Context, int) error
	}{
		{"page of 200", b.Reads, get("/v1/environments?limit=200")},
		{"full listing", max(b.Reads/10, 3), full},
		{"/ready", b.Reads, get("/ready")},
	} {
		l, err := Each(ctx, m.n, 1, m.f)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "  %-24s %s\n", m.name, l)
	}
	usages, err := b.Usage(ctx)
	if err == nil {
		_, err = fmt.Fprintf(b.Out, "  %-24s %s\n", "resident memory", describe(usages))
	}
	return err
}

// FsyncRate measures writing and syncing 4 KiB in dir, the floor under every
// durable commit there.
func FsyncRate(ctx context.Context, dir string, n int) (Latency, error) {
	f, err := os.CreateTemp(dir, "fsync-*")
	if err != nil {
		return Latency{}, fmt.Errorf("measure fsync: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	return Each(ctx, n, 1, func(context.Context, int) error {
		if _, err := f.Write(block); err != nil {
			return err
		}
		return f.Sync()
	})
}
