package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
)

// deb is one package file as apt's signed lists describe it.
type deb struct {
	name   string // of the file
	sha256 string
}

// fetchDeb returns the path of a Debian package in the cache, downloading it
// if need be. Its hash is the one in apt's signed lists.
func (s *Store) fetchDeb(ctx context.Context, pkg string, progress func(string)) (string, error) {
	out, err := s.tools.run(ctx, "", "apt-get", "download", "--print-uris", "-q", pkg)
	if err != nil {
		return "", aptError(pkg, err)
	}
	d, err := parseURI(out)
	if err != nil {
		return "", aptError(pkg, err)
	}
	path := filepath.Join(s.debsDir(), d.name)
	if sum, err := fileDigest(path); err == nil && sum == d.sha256 {
		return path, nil
	}
	progress("downloading " + pkg)
	tmp, err := os.MkdirTemp(s.debsDir(), tmpPrefix)
	if err != nil {
		return "", fmt.Errorf("download %s: %w", pkg, err)
	}
	defer os.RemoveAll(tmp)
	if _, err := s.tools.run(ctx, tmp, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", pkg); err != nil {
		return "", aptError(pkg, err)
	}
	if err := failpoint.Hit("image.download"); err != nil {
		return "", err
	}
	got, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(got) != 1 {
		return "", fmt.Errorf("download %s: apt-get left %d files, want one", pkg, len(got))
	}
	if sum, err := fileDigest(got[0]); err != nil || sum != d.sha256 {
		return "", errors.Join(fmt.Errorf("download %s: the file's sha256 is %s, apt's lists say %s", pkg, sum, d.sha256), err)
	}
	if err := syncPath(got[0]); err != nil {
		return "", fmt.Errorf("download %s: %w", pkg, err)
	}
	if err := rename(got[0], path); err != nil {
		return "", fmt.Errorf("download %s: %w", pkg, err)
	}
	return path, nil
}

// parseURI reads a line of "apt-get download --print-uris":
// 'URL' FILE SIZE SHA256:HEX.
func parseURI(out string) (deb, error) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "'") {
			continue
		}
		sum, ok := strings.CutPrefix(f[3], "SHA256:")
		if !ok || len(sum) != 64 || f[1] == "" || strings.ContainsRune(f[1], '/') {
			return deb{}, fmt.Errorf("apt-get names no SHA256 for %s", f[1])
		}
		return deb{name: f[1], sha256: sum}, nil
	}
	return deb{}, errors.New("apt-get knows no file for it")
}

func aptError(pkg string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || fleet.CodeOf(err) == fleet.CodeUnavailable {
		return err
	}
	return fleet.Errorf(fleet.CodeUnavailable, "get Debian package %s: %w", pkg, err).
		With(fleet.DetailRemedy, "run apt-get update as root and check that the network reaches the Debian mirror")
}

// unpackDeb extracts the files of a package into dir.
func (t toolbox) unpackDeb(ctx context.Context, path, dir string) error {
	_, err := t.run(ctx, "", "dpkg-deb", "-x", path, dir)
	return err
}

// debName is the package file's name without its suffix, for the record.
func debName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".deb") }
