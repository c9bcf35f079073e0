package hostsnap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/testkit"
)

// scan looks through a fork's memory, as its process has it, and its disk, for
// what its parent had.
func scan(t *testing.T, f, of *vm) {
	t.Helper()
	pid := f.pid()
	parent := []string{of.token, strings.Split(string(of.cred.KeyPEM), "\n")[1]}
	// The guest agent looks through its own memory after its machine has gone on,
	// which takes an emulated one on a busy host a while.
	var got map[string]int
	testkit.Eventually(t, 3*time.Minute, "nothing of the parent is in the fork's memory", func() bool {
		got = inMemory(t, pid, append([]string{f.token}, parent...))
		left := 0
		for _, s := range parent {
			left += got[s]
		}
		return left == 0
	})
	if got[f.token] == 0 {
		t.Error("the fork's own token was not found: the scan finds nothing")
	}
	inDirectory(t, f.dirOf(), parent)
}

// pid is the process of a machine.
func (v *vm) pid() int {
	v.t.Helper()
	found, err := proc.Named("fuse-" + v.registry + "-")
	if err != nil {
		v.t.Fatal(err)
	}
	for pid, uid := range found {
		if uid == v.ref.UID {
			return pid
		}
	}
	v.t.Fatalf("%s has no process", v.ref.ID)
	return 0
}

func inMemory(t *testing.T, pid int, needles []string) map[string]int {
	t.Helper()
	out := map[string]int{}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	buf := make([]byte, 4<<20)
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		var from, to int64
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil || !strings.HasPrefix(fields[1], "rw") {
			continue
		}
		if to-from < 64<<20 {
			continue // not the guest's
		}
		for at := from; at < to; at += int64(len(buf)) {
			n, _ := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at)
			for _, s := range needles {
				out[s] += bytes.Count(buf[:n], []byte(s))
			}
		}
	}
	return out
}

func inDirectory(t *testing.T, dir string, needles []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a record that has taken its place since
		}
		for i, s := range needles {
			if bytes.Contains(b, []byte(s)) {
				t.Errorf("secret %d of the parent is in %s", i, path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
