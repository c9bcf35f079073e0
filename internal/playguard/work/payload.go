package work

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"path"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
)

// payload is the archive of a definition as its marquee takes it. What
// containers read may be read by all: they often run as somebody else.
func payload(v records.Version, m model.Marker, login []PackedFile) ([]byte, error) {
	marker, err := m.Encode()
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(data)
		}
	}
	add(tar.Header{Name: ".fuse/", Typeflag: tar.TypeDir, Mode: 0o700}, nil)
	add(tar.Header{Name: ".fuse/owner.json", Mode: 0o600}, marker)
	add(tar.Header{Name: "compose.yml", Mode: 0o600}, v.Compose)
	for _, f := range login {
		add(tar.Header{Name: path.Dir(f.Name) + "/", Typeflag: tar.TypeDir, Mode: 0o700}, nil)
		add(tar.Header{Name: f.Name, Mode: 0o600}, f.Data)
	}
	made := map[string]bool{}
	for _, f := range v.Files {
		for _, dir := range parents(f.Path) {
			if !made[dir] {
				made[dir] = true
				add(tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
			}
		}
		add(tar.Header{Name: f.Path, Mode: int64(f.Mode & 0o777)}, f.Data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("pack definition %.12s: %w", v.Digest, err)
	}
	return buf.Bytes(), nil
}

// parents lists the directories of a path, outermost first.
func parents(p string) []string {
	dir := path.Dir(p)
	if dir == "." {
		return nil
	}
	return append(parents(dir), dir)
}
