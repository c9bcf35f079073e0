package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// What was set aside does not grow for ever, and what may be work of somebody, or
// is another installation's, stays.
func TestAsideIsBounded(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		root := filepath.Join(t.TempDir(), "opt", "fuse")
		owned := func(name string, installation model.InstallationID) string {
			project, err := model.ParseProject(name)
			if err != nil {
				t.Fatal(err)
			}
			marker, err := model.Marker{Kind: model.KindPlayground, Installation: installation, Marquee: "mq1", Playground: "p1", Project: project, Epoch: 1}.Encode()
			dir := filepath.Join(root, "playgrounds", name, ".fuse")
			if err != nil || os.MkdirAll(dir, 0o700) != nil || os.WriteFile(filepath.Join(dir, "owner.json"), marker, 0o600) != nil {
				t.Fatal(err)
			}
			return filepath.Join(root, "aside", name)
		}
		put := func(dir, op, file string, age time.Duration) {
			at := filepath.Join(dir, op, file)
			if os.MkdirAll(filepath.Dir(at), 0o700) != nil || os.WriteFile(at, nil, 0o600) != nil {
				t.Fatal(at)
			}
			when := time.Now().Add(-age)
			if err := os.Chtimes(filepath.Join(dir, op), when, when); err != nil {
				t.Fatal(err)
			}
		}
		ours, theirs, nobodys := owned("a--p1", "inst1"), owned("b--p1", "other"), filepath.Join(root, "aside", "c--p1")
		var want []string
		for i := range 25 {
			put(ours, fmt.Sprintf("op%02d", i), "compose.yml", time.Duration(i)*time.Hour)
			if i < 20 {
				want = append(want, fmt.Sprintf("op%02d", i))
			}
		}
		put(ours, "work", "props/app/.git/HEAD", 90*24*time.Hour)
		want = append(want, "work")
		for _, dir := range []string{theirs, nobodys} {
			put(dir, "old", "compose.yml", 90*24*time.Hour)
		}
		young := owned("d--p1", "inst1")
		put(young, "old", "compose.yml", 40*24*time.Hour)
		put(young, "new", "compose.yml", 20*24*time.Hour)
		if _, status := local(t, shell, "reap", root, "inst1", "1"); status != 0 {
			t.Errorf("%s: status %d", shell[0], status)
		}
		for dir, want := range map[string][]string{ours: want, theirs: {"old"}, nobodys: {"old"}, young: {"new"}} {
			entries, err := os.ReadDir(dir)
			var have []string
			for _, e := range entries {
				have = append(have, e.Name())
			}
			if err != nil || !slices.Equal(have, want) {
				t.Errorf("%s: %s has %v, want %v (%v)", shell[0], dir, have, want, err)
			}
		}
	}
}
