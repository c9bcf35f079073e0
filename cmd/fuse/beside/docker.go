package beside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/bench/snapshots"
	"github.com/fusevm/fuse/internal/hostd/image"
)

// dockerName is the name of what was imported, while it is measured.
const dockerName = "fuse-bench-root"

// Docker runs a first program of an image's root in a container. The image that
// it imports for that is removed by the function that it returns.
func Docker(ctx context.Context, store *image.Store, name, dir string) (snapshots.Beside, func(context.Context) error) {
	out := snapshots.Beside{Name: "docker run, to the end of its first program"}
	none := func(context.Context) error { return nil }
	if _, err := docker(ctx, "version", "--format", "{{.Server.Version}}"); err != nil {
		out.Why = "no Docker daemon answers: " + err.Error()
		return out, none
	}
	img, err := store.Get(name)
	if err == nil {
		err = importRoot(ctx, img.Path, dir)
	}
	if err != nil {
		out.Why = "the image's root cannot be imported: " + err.Error()
		return out, none
	}
	out.Once = func(ctx context.Context, s snapshots.Shape) (time.Duration, error) {
		begun := time.Now()
		_, err := docker(ctx, "run", "--rm", "--memory", fmt.Sprintf("%dm", s.RAMMB), dockerName, "/bin/true")
		return time.Since(begun), err
	}
	return out, func(ctx context.Context) error {
		_, err := docker(ctx, "rmi", "--force", dockerName)
		return err
	}
}

// importRoot makes an image of Docker's of what an ext4 image holds.
func importRoot(ctx context.Context, path, dir string) (err error) {
	at := filepath.Join(dir, "root")
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(at)) }()
	if _, err := run(ctx, "mount", "-o", "ro,loop,noload", path, at); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(at, 0)) }()
	tar := filepath.Join(dir, "root.tar")
	defer func() { err = errors.Join(err, os.Remove(tar)) }()
	if _, err := run(ctx, "tar", "-C", at, "-cf", tar, "."); err != nil {
		return err
	}
	_, err = docker(ctx, "import", tar, dockerName)
	return err
}

func docker(ctx context.Context, args ...string) (string, error) { return run(ctx, "docker", args...) }

func run(ctx context.Context, program string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %.300s", program, args[0], err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}
