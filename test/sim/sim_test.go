package sim

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/history"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// seedEnv plays one seed alone and logs everything.
const seedEnv = "FUSE_SIM_SEED"

// memoryDir is a directory without a disk below it where there is one.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fuse-sim")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// play is one run and what is wrong with it.
func play(t *testing.T, seed uint64, log io.Writer, b broken) (problems []string) {
	t.Helper()
	dir := memoryDir(t)
	var ops []history.Op
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, dir, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo})), b)
		w.run(w.badDay)
		ops, problems = w.wit.clients.Ops(), w.problems
	})
	undecided, problem := history.Check(ops, 10*time.Second)
	if problem != "" {
		problems = append(problems, problem)
	}
	if undecided {
		t.Log("the search for an order was given up")
	}
	return problems
}

// Bad days of a whole fleet, each another one. Nothing that a client was told
// is lost, nothing ends that nobody ended, nothing is left over.
func TestBadDays(t *testing.T) {
	if text := os.Getenv(seedEnv); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		none(t, play(t, seed, os.Stderr, broken{}))
		return
	}
	for seed := range testkit.Count(200, 5000) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			if none(t, play(t, uint64(seed), io.Discard, broken{})); t.Failed() {
				t.Logf("play it again: %s=%d go test -run TestBadDays ./test/sim", seedEnv, seed)
			}
		})
	}
}
