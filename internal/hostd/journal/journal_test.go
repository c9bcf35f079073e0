package journal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/journal"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// book is a small user of the log: the last value of each key.
type book struct {
	mu   sync.Mutex
	j    *journal.Journal
	vals map[string]string
	pad  string
}

type entry struct{ K, V, Pad string }

func open(t testing.TB, path string) (*book, int) {
	t.Helper()
	b := &book{vals: map[string]string{}}
	j, damaged, err := journal.Open(path, func(doc []byte) error {
		var e entry
		if err := json.Unmarshal(doc, &e); err != nil {
			return err
		}
		b.vals[e.K] = e.V
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.j = j
	j.Snapshot = func() ([]any, []*journal.Ticket) {
		b.mu.Lock()
		defer b.mu.Unlock()
		var all []any
		for k, v := range b.vals {
			all = append(all, entry{K: k, V: v})
		}
		return all, j.Take()
	}
	return b, damaged
}

func (b *book) set(k, v string, durable bool) *journal.Ticket {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.vals[k] = v
	return b.j.Append(entry{k, v, b.pad}, durable)
}

func (b *book) close(t testing.TB) {
	t.Helper()
	if err := b.j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReopenGivesWhatWasAppended(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		path := filepath.Join(dir, "log")
		want := map[string]string{}
		for range rapid.IntRange(1, 4).Draw(rt, "opens") {
			b, damaged := open(t, path)
			if damaged != 0 || fmt.Sprint(b.vals) != fmt.Sprint(want) {
				rt.Fatalf("opened %v with %d damaged lines, want %v", b.vals, damaged, want)
			}
			for range rapid.IntRange(0, 20).Draw(rt, "appends") {
				k := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "key")
				want[k] = rapid.String().Draw(rt, "value")
				// A text that is no valid UTF-8 would come back changed.
				want[k] = strings.ToValidUTF8(want[k], "?")
				if err := b.set(k, want[k], rapid.Bool().Draw(rt, "durable")).Wait(); err != nil {
					rt.Fatal(err)
				}
			}
			b.close(t)
		}
	})
}

func TestTornEndIsCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	b, _ := open(t, path)
	for i := range 3 {
		b.set(fmt.Sprint(i), "v", true)
	}
	b.close(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for cut := last; cut < len(whole); cut++ {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		b, damaged := open(t, path)
		if damaged != 0 || len(b.vals) != 2 {
			t.Errorf("cut at %d of %d: %v, %d damaged", cut, len(whole), b.vals, damaged)
		}
		if err := b.set("next", "v", true).Wait(); err != nil {
			t.Fatal(err)
		}
		b.close(t)
		if b, damaged := open(t, path); damaged != 0 || len(b.vals) != 3 {
			t.Errorf("after an append: %v, %d damaged", b.vals, damaged)
			b.close(t)
		} else {
			b.close(t)
		}
	}
}

func TestDamagedLineCostsItselfAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	b, _ := open(t, path)
	for i := range 3 {
		b.set(fmt.Sprint(i), "value", true)
	}
	b.close(t)
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{3, 8, 12, 25} { // checksum, space, text of the first line
		bad := slices.Clone(doc)
		bad[i] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		b, damaged := open(t, path)
		if damaged != 1 || len(b.vals) != 2 || b.vals["0"] != "" {
			t.Errorf("byte %d: %v, %d damaged", i, b.vals, damaged)
		}
		b.close(t)
	}
}

func TestRewriteKeepsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	b, _ := open(t, path)
	b.pad = strings.Repeat("x", 8<<10)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 300 {
				if err := b.set(fmt.Sprintf("w%d-%d", w, i%10), fmt.Sprint(i), false).Wait(); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	wg.Wait()
	b.close(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// 2,400 records of 8 KiB went in.
	if info.Size() > 10<<20 {
		t.Errorf("the log has %d bytes", info.Size())
	}
	again, damaged := open(t, path)
	defer again.close(t)
	if damaged != 0 || len(again.vals) != 80 {
		t.Fatalf("%d keys, %d damaged", len(again.vals), damaged)
	}
	for w := range 8 {
		for i := range 10 {
			if got := again.vals[fmt.Sprintf("w%d-%d", w, i)]; got != fmt.Sprint(290+i) {
				t.Errorf("w%d-%d is %q", w, i, got)
			}
		}
	}
}

// TestFullDisk fills a real, tiny file system. The append that does not fit
// is refused and leaves no trace; once there is room it goes on.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a tmpfs (as root): %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "log")
	b, _ := open(t, path)
	if err := b.set("first", "v", true).Wait(); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 56<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	b.pad = strings.Repeat("x", 10<<10)
	err := b.set("big", "v", true).Wait()
	var fe *fleet.Error
	if !errors.Is(err, unix.ENOSPC) || !errors.As(err, &fe) || fe.Details[fleet.DetailReason] != "disk_full" || fe.Details[fleet.DetailRemedy] == "" {
		t.Fatalf("append to a full disk: %v", err)
	}
	b.pad = ""
	if err := b.set("small", "v", true).Wait(); err != nil {
		t.Errorf("what still fits: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := b.set("after", "v", true).Wait(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	b.close(t)
	again, damaged := open(t, path)
	defer again.close(t)
	if damaged != 0 || len(again.vals) != 3 || again.vals["big"] != "" {
		t.Errorf("reopened: %v, %d damaged", again.vals, damaged)
	}
}

func TestAppendAfterClose(t *testing.T) {
	b, _ := open(t, filepath.Join(t.TempDir(), "log"))
	b.close(t)
	if err := b.set("a", "b", true).Wait(); err == nil {
		t.Error("a closed log took a record")
	}
	if err := journal.Done().Wait(); err != nil {
		t.Error(err)
	}
}

// BenchmarkAppend shows what group commit gives: records per fsync.
func BenchmarkAppend(b *testing.B) {
	book, _ := open(b, filepath.Join(b.TempDir(), "log"))
	defer book.close(b)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := book.set("k", "v", true).Wait(); err != nil {
				b.Error(err)
			}
		}
	})
}
