package image

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
	"github.com/fusevm/fuse/internal/testkit"
)

// TestPullForAnotherProcess is not a test: the one below runs it in a process
// of its own and kills it.
func TestPullForAnotherProcess(t *testing.T) {
	text, err := os.ReadFile("registry-port")
	if err != nil {
		return // run as a test
	}
	port, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: ".", Fused: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), fmt.Sprintf("127.0.0.1:%d/app:1", port), PullOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A process that is killed in the middle of a pull leaves nothing that looks
// like an image, no lock that anybody waits for, and nothing that stays.
func TestKillInTheMiddleOfAPull(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	ref := r.Push(t, "app:1", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, ocitest.Text("first", "1")),
		ocitest.Layer(t, ocitest.File{Header: tar.Header{Name: "big", Mode: 0o600}, Content: noise(1 << 20)})))
	for try := range 2 {
		r.Set(ocitest.Faults{Delay: 100 * time.Millisecond})
		cmd := exec.Command(os.Args[0], "-test.run=^TestPullForAnotherProcess$")
		cmd.Dir = s.cfg.Dir
		if err := os.WriteFile(filepath.Join(s.cfg.Dir, "registry-port"), []byte(strings.TrimPrefix(r.Host, "127.0.0.1:")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, "the pull is under way", func() bool {
			parts, _ := filepath.Glob(filepath.Join(pulls{s}.ociDir(), tmpPrefix+"*", "layers", "*"))
			return slices.ContainsFunc(parts, func(p string) bool { st, err := os.Stat(p); return err == nil && st.Size() > 0 })
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		if list, err := s.List(); err != nil || len(list) != 0 {
			t.Errorf("a half-made image shows: %v, %v", list, err)
		}
		if _, err := s.Get(ref); err == nil {
			t.Error("a half-made image is found")
		}
		r.Set(ocitest.Faults{})
		if try == 0 { // removed when the images are tidied up
			if gone, err := s.Prune(t.Context(), PruneOptions{}); err != nil || gone.Freed <= 0 {
				t.Errorf("prune: %+v, %v", gone, err)
			}
			clean(t, s, 0)
			continue
		}
		if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil { // or by the next pull
			t.Error(err)
		}
		clean(t, s, 1)
	}
}
