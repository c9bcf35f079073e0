package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ControlPlane measures creates and reads at growing fleet sizes, the goals of
// docs/operate/performance.md.
type ControlPlane struct {
	Target  Target
	Sizes   []int
	Serial  int // creates in a row, a size
	Burst   int // creates by 16 workers, a size
	Reads   int // repeats of each read
	DataDir string
	Out     io.Writer
	// JournalRate measures the store alone, by the same commits a create makes.
	JournalRate func(ctx context.Context, n int) (Latency, error)
}

// Workers is how many creates run at once in the parallel measurement.
const Workers = 16

// Run prints one block a fleet size.
func (b ControlPlane) Run(ctx context.Context) error {
	fsync, err := FsyncRate(b.DataDir, 200)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.Out, "fsync of the data directory's disk (4 KiB)  %s\n", fsync)
	journal, err := b.JournalRate(ctx, 500)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.Out, "journal alone, one commit at a time         %s\n", journal)
	have := 0
	for _, size := range b.Sizes {
		if have, err = b.fill(ctx, have, size); err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "\nat %d environments\n", size)
		if err := b.at(ctx, size); err != nil {
			return err
		}
	}
	return nil
}

func (b ControlPlane) fill(ctx context.Context, have, size int) (int, error) {
	_, err := Each(ctx, size-have, Workers, func(ctx context.Context, i int) error {
		return b.Target.Create(ctx, fmt.Sprintf("fill-%d", have+i))
	})
	return size, err
}

func (b ControlPlane) at(ctx context.Context, size int) error {
	for _, m := range []struct {
		name    string
		n       int
		workers int
	}{
		{"create, one at a time", b.Serial, 1},
		{fmt.Sprintf("create, %d at a time", Workers), b.Burst, Workers},
	} {
		l, err := Each(ctx, m.n, m.workers, func(ctx context.Context, i int) error {
			return b.Target.Create(ctx, fmt.Sprintf("b%d-%d-%d", size, m.workers, i))
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "  %-24s %s\n", m.name, l)
		l, err = Each(ctx, m.n, m.workers, func(ctx context.Context, i int) error {
			return b.Target.Destroy(ctx, fmt.Sprintf("b%d-%d-%d", size, m.workers, i))
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "  %-24s %s\n", strings.Replace(m.name, "create", "destroy", 1), l)
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
	if rss, err := RSS(); err == nil {
		fmt.Fprintf(b.Out, "  %-24s %d MB (server, sim host and this client in one process)\n", "resident memory", rss>>20)
	}
	return nil
}

// FsyncRate measures writing and syncing 4 KiB in dir, the floor under every
// durable commit there.
func FsyncRate(dir string, n int) (Latency, error) {
	f, err := os.CreateTemp(dir, "fsync-*")
	if err != nil {
		return Latency{}, fmt.Errorf("measure fsync: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	return Each(context.Background(), n, 1, func(context.Context, int) error {
		if _, err := f.Write(block); err != nil {
			return err
		}
		return f.Sync()
	})
}

// RSS is this process's resident memory in bytes.
func RSS() (int64, error) {
	raw, err := os.ReadFile(filepath.Join("/proc/self", "statm"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm has %d fields", len(fields))
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, err
	}
	return pages * int64(os.Getpagesize()), nil
}
