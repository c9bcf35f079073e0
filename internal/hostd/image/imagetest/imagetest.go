// Package imagetest gives tests that boot real VMs their images. They are made
// once and kept below the temporary directory, so that only the first test of
// a machine pays for the download.
package imagetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/hostd/image"
)

// buildTimeout bounds the download and the build of everything, on a machine that
// is busy with other tests.
const buildTimeout = 10 * time.Minute

var once = sync.OnceValues(build)

// Store is a store that has the minimal image, Debian's kernel and an
// initramfs with the guest agent of this source tree. It is shared by all test
// processes of a user: do not change it.
func Store(tb testing.TB) *image.Store {
	tb.Helper()
	s, err := once()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// generation rises when a kernel's modules are to be made anew.
const generation = 2

// Dir is where images are kept between runs.
func Dir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("fuse-test-%d.%d", os.Getuid(), generation))
}

func build() (*image.Store, error) {
	dir := Dir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	fused, err := Fused(ctx, dir)
	if err != nil {
		return nil, err
	}
	s, err := image.Open(image.Config{Dir: dir, Fused: fused})
	if err != nil {
		return nil, err
	}
	_, err = s.Build(ctx, "minimal", nil)
	return s, err
}

// Fused builds the guest agent into dir and returns its path. It is the same for
// the same source, whatever state its repository is in: captures are of one agent.
func Fused(ctx context.Context, dir string) (string, error) {
	tmp, err := os.MkdirTemp(dir, "fused-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "fused")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "github.com/fusevm/fuse/cmd/fused")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build fused: %w: %s", err, text)
	}
	path := filepath.Join(dir, "fused")
	return path, os.Rename(out, path)
}
