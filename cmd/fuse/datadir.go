package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/durable"
)

// dataDir is where a server or host keeps everything of its own.
type dataDir string

// defaultDataDir is /var/lib/fuse for root and ~/.local/share/fuse for others.
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/fuse"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "fuse")
	}
	return "fuse-data"
}

// openDataDir makes the directory if need be, for its owner only.
func openDataDir(dir string) (dataDir, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", fmt.Errorf("make the data directory (choose another with --data-dir): %w", err)
	}
	return dataDir(abs), nil
}

func (d dataDir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// secret returns the secret kept in a file of the directory, making a random
// one on first use.
func (d dataDir) secret(name string) (string, error) {
	path := d.path(name)
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
	return s, d.keep(name, s)
}

// keep writes a secret to a file that its owner alone can read.
func (d dataDir) keep(name, secret string) error {
	if err := durable.WriteFile(d.path(name), []byte(secret+"\n")); err != nil {
		return fmt.Errorf("keep a secret: %w", err)
	}
	return nil
}

// writeContext makes the command line work at once in another terminal. It
// changes no other context of the file; before is the one that was in use.
func writeContext(name, url, tokenFile string) (path, before string, err error) {
	path, err = cli.DefaultConfigPath()
	if err != nil {
		return "", "", err
	}
	c, err := cli.LoadConfig(path)
	if err != nil {
		return "", "", err
	}
	before = c.CurrentContext
	x, _ := c.Find(name)
	x.Name, x.BaseURL, x.Token, x.TokenFile = name, url, "", tokenFile
	c.Set(x)
	c.CurrentContext = name
	return path, before, c.Save(path)
}
