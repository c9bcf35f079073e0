package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fusevm/fuse/internal/testkit"
)

// BinaryEnv names a fuse to run instead of building one; fused must lie beside it.
const BinaryEnv = "FUSE_LAB_BINARY"

// program is what runs in the labs of this process.
var program struct{ fuse string }

// Main builds the programs and runs the tests of a package.
func Main(m *testing.M) {
	remove, err := Build("")
	code := 1
	if err == nil {
		code = m.Run()
		err = remove()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = 1
	}
	os.Exit(code)
}

// Build makes the programs that labs run, in a directory that remove takes away
// again. With a cache, images are kept there for the next time.
func Build(cache string) (remove func() error, err error) {
	r, err := begin() // so that the next one sweeps it if this process is killed
	if err != nil {
		return nil, err
	}
	dir := r.dir
	remove = r.remove
	if cache != "" {
		imageDir = cache
	} else {
		imageDir = filepath.Join(dir, "images-data")
	}
	if program.fuse = os.Getenv(BinaryEnv); program.fuse != "" {
		return remove, nil
	}
	root, err := testkit.ModuleRoot()
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	program.fuse = filepath.Join(dir, "fuse")
	for _, name := range []string{"fuse", "fused"} {
		cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -X main.version=v-lab", "-o", filepath.Join(dir, name), "./cmd/"+name)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, errors.Join(fmt.Errorf("build %s: %w\n%s", name, err, out), remove())
		}
	}
	return remove, nil
}

var imageDir string

// images builds the minimal image once for all hosts.
var images = sync.OnceValues(func() (string, error) {
	return imageDir, command(program.fuse, "image", "build", "minimal", "--data-dir", imageDir)
})
