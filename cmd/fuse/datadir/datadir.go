// Package datadir is the directory in which a server or host keeps everything of
// its own.
package datadir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fusevm/fuse/internal/durable"
)

// Dir is where a server or host keeps everything of its own.
type Dir string

// Default is /var/lib/fuse for root and ~/.local/share/fuse for others.
func Default() string {
	if os.Geteuid() == 0 {
		return "/var/lib/fuse"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "fuse")
	}
	return "fuse-data"
}

// Open makes the directory if need be, for its owner only.
func Open(dir string) (Dir, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", fmt.Errorf("make the data directory (choose another with --data-dir): %w", err)
	}
	return Dir(abs), nil
}

// Path is the path of something in the directory.
func (d Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Secret returns the secret kept in a file of the directory, making a random
// one on first use.
func (d Dir) Secret(name string) (string, error) {
	path := d.Path(name)
	raw, err := os.ReadFile(path)
	if err == nil {
		if s := strings.TrimSpace(string(raw)); s != "" {
			return s, nil
		}
		return "", fmt.Errorf("%s is empty: remove it, and a new secret is made", path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read a secret: %w", err)
	}
	s := strings.ToLower(rand.Text() + rand.Text())
	return s, d.Keep(name, s)
}

// Keep writes a secret to a file that its owner alone can read.
func (d Dir) Keep(name, secret string) error {
	if err := durable.WriteFile(d.Path(name), []byte(secret+"\n")); err != nil {
		return fmt.Errorf("keep a secret: %w", err)
	}
	return nil
}
