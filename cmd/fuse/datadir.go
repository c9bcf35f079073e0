package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/fusevm/fuse/internal/cli"
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
	raw, err := os.ReadFile(path) //nolint:gosec // a name of ours
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
	tmp, err := os.CreateTemp(string(d), "."+name+"-*") // 0600 from the start
	if err != nil {
		return "", fmt.Errorf("keep a secret: %w", err)
	}
	_, err = tmp.WriteString(s + "\n")
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("keep a secret: %w", err), os.Remove(tmp.Name()))
	}
	return s, nil
}

// writeContext makes the command line work at once in another terminal.
func writeContext(name, url, tokenFile string) (path string, err error) {
	path, err = cli.DefaultConfigPath()
	if err != nil {
		return "", err
	}
	c, err := cli.LoadConfig(path)
	if err != nil {
		return "", err
	}
	c.Set(cli.Context{Name: name, BaseURL: url, TokenFile: tokenFile})
	c.CurrentContext = name
	return path, c.Save(path)
}

// openLog logs to a file of the data directory, so that the terminal stays
// readable; warnings and errors go to stderr as well.
func openLog(path string, level slog.Level) (*slog.Logger, func() error, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // a name of ours
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	h := teeHandler{
		slog.NewTextHandler(f, &slog.HandlerOptions{Level: level}),
		slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}),
	}
	return slog.New(h), f.Close, nil
}
