package chain

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestNumbersAreNeverUsedAgain takes a disk through a life of captures, some of
// which break off, restores and flattenings.
func TestNumbersAreNeverUsedAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Chain{}
		used := map[int]bool{0: true}
		var captures []Chain
		take := func(n int) int {
			if used[n] {
				t.Fatalf("%d was used before: %+v", n, c)
			}
			used[n] = true
			return n
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0: // captured
				c = c.Frozen(Layer{Digest: "d"}, take(c.Next()))
				captures = append(captures, Chain{Layers: c.Layers})
			case 1: // broken off, at an unknown place
				next := c.Next()
				was := c
				c.Pending = next
				if rapid.Bool().Draw(t, "took place") {
					c = c.Settled(take(next))
					if c.Active != next || c.Layers[len(c.Layers)-1].Number != was.Active || c.Layers[len(c.Layers)-1].Digest != "" {
						t.Fatalf("%+v became %+v", was, c)
					}
				} else if c = c.Settled(was.Active); c.Active != was.Active || c.Pending != 0 || len(c.Layers) != len(was.Layers) {
					t.Fatalf("%+v became %+v", was, c)
				}
			case 2: // restored
				if len(captures) > 0 {
					seed := rapid.SampledFrom(captures).Draw(t, "capture")
					c = Chain{Layers: seed.Layers, Active: take(max(c.Next(), seed.Next()))}
				}
			case 3: // flattened
				c.Layers = nil
			}
			if n := c.Numbers(); len(slices.Compact(slices.Sorted(slices.Values(n)))) != len(n) || n[len(n)-1] != c.Active {
				t.Fatalf("the numbers are %v", n)
			}
		}
	})
}

func TestFilesOfOthersAreLeftAlone(t *testing.T) {
	from, dir := t.TempDir(), t.TempDir()
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(from, File(0)))
	write(filepath.Join(from, File(3)))
	c := Chain{Layers: []Layer{{Number: 0}, {Number: 3}}, Active: 4, Pending: 5}
	for range 2 { // the same link twice is fine
		if err := Link(c.Layers, from, dir); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(from, File(9)))
	write(filepath.Join(dir, File(9)))
	if err := Link([]Layer{{Number: 9}}, from, dir); err == nil {
		t.Error("another layer was taken for the same")
	}
	for _, n := range []string{File(4), File(5), File(7), "base.ext4", "disk.img"} {
		write(filepath.Join(dir, n))
	}
	if err := c.Prune(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"base.ext4", "disk-3.qcow2", "disk-4.qcow2", "disk-5.qcow2", "disk.img", "disk.qcow2"}) {
		t.Errorf("left: %q", got)
	}
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, dir); !slices.Equal(got, []string{"base.ext4", "disk.img"}) {
		t.Errorf("left: %q", got)
	}
	if err := Remove(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
