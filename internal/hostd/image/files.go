package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
)

// tmpPrefix marks what is being built. Under the lock nobody builds, so what
// carries it then was left by a crash.
const tmpPrefix = ".tmp-"

// lock takes the store's file lock; it serialises builders of this process
// and of others. The kernel drops it when a process dies.
func (s *Store) lock(ctx context.Context, progress func(string)) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.imagesDir(), ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.clearTemp()
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock image store: %w", err)
		}
		if !told {
			progress("another build is in progress; waiting for it")
			told = true
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for another image build: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (s *Store) clearTemp() {
	for _, pattern := range []string{s.imagesDir() + "/", s.imagesDir() + "/*/", s.kernelsDir() + "/", s.kernelsDir() + "/*/", s.debsDir() + "/"} {
		left, _ := filepath.Glob(pattern + tmpPrefix + "*")
		for _, path := range left {
			_ = os.RemoveAll(path)
		}
	}
}

// writeFile writes a file in one step that survives a crash.
func writeFile(path string, mode os.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), tmpPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = write(f)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return rename(f.Name(), path)
}

func writeMeta(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, 0o644, func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
}

// rename moves a synced file or directory into place and makes that durable.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncPath(filepath.Dir(to))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func fileDigest(path string) (hexDigest string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// packageOf names the Debian package that has each tool.
var packageOf = map[string]string{
	"apt-get":   "apt",
	"apt-cache": "apt",
	"dpkg-deb":  "dpkg",
	"mke2fs":    "e2fsprogs",
	"debugfs":   "e2fsprogs",

	"mmdebstrap": "mmdebstrap",
}

// toolPath finds a tool also where an ordinary user's PATH does not look.
func toolPath(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", fleet.Errorf(fleet.CodeUnavailable, "%s is not installed on this host", name).
		With(fleet.DetailRemedy, "apt-get install "+packageOf[name])
}

// toolbox runs Debian's tools.
type toolbox struct{ env []string }

// run runs a tool to its end and returns what it printed; the error holds the
// end of its stderr.
func (t toolbox) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	path, err := toolPath(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", fmt.Sprintf("E2FSPROGS_FAKE_TIME=%d", epoch.Unix())), t.env...)
	cmd.WaitDelay = 5 * time.Second
	if os.Geteuid() != 0 && name == "mke2fs" {
		asRoot(cmd)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s: %w", name, ctx.Err())
		}
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, lastLines(stderr.String()))
	}
	return stdout.String(), nil
}

// asRoot runs cmd in a user namespace in which the caller's files are root's,
// so that an image built without root has root's files in it.
func asRoot(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
}

func lastLines(text string) string {
	text = strings.TrimSpace(text)
	if len(text) > 600 {
		text = "…" + text[len(text)-600:]
	}
	return strings.ReplaceAll(text, "\n", "; ")
}
