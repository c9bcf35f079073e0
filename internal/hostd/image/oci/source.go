package oci

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fusevm/fuse/internal/fleet"
)

const (
	resolveTimeout = time.Minute
	maxConfigBytes = 8 << 20
	maxLayers      = 1024
)

func (c Config) options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(c.Transport), remote.WithAuthFromKeychain(c.keychain()),
		remote.WithUserAgent("fuse"),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Jitter: 0.1, Steps: 3}),
	}
}

// Resolve asks the registry which digest a reference stands for now. One that
// names a digest is looked up, too, so that an unknown image shows early.
func Resolve(ctx context.Context, cfg Config, r Reference) (digest string, err error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, resolveTimeout, errStalled)
	defer cancel()
	d, err := remote.Head(r.ref, cfg.options(ctx)...)
	if err != nil { // some registries cannot do it
		var g *remote.Descriptor
		if g, err = remote.Get(r.ref, cfg.options(ctx)...); err != nil {
			return "", remoteError(r, err)
		}
		d = &g.Descriptor
	}
	return d.Digest.String(), nil
}

// Remote finds an image in its registry.
func Remote(ctx context.Context, cfg Config, r Reference) (*Image, error) {
	cfg = cfg.withDefaults()
	find, cancel := context.WithTimeoutCause(ctx, resolveTimeout, errStalled)
	defer cancel()
	desc, err := remote.Get(r.ref, cfg.options(find)...)
	if err != nil {
		return nil, remoteError(r, err)
	}
	var img v1.Image
	if desc.MediaType.IsIndex() {
		idx, ierr := desc.ImageIndex()
		if ierr != nil {
			return nil, remoteError(r, ierr)
		}
		img, err = cfg.choose(idx, r.RepoTag())
	} else {
		img, err = desc.Image()
	}
	if err != nil {
		return nil, remoteError(r, err)
	}
	out, err := cfg.describe(img, r.RepoTag())
	if err != nil {
		return nil, remoteError(r, err)
	}
	out.Resolved = desc.Digest.String()
	repo := r.ref.Context()
	for i := range out.layers {
		l := &out.layers[i]
		l.remote = true
		l.open = func(ctx context.Context) (io.ReadCloser, error) {
			blob, err := remote.Layer(repo.Digest(l.digest.String()), cfg.options(ctx)...)
			if err != nil {
				return nil, err
			}
			return blob.Compressed()
		}
	}
	return out, nil
}

// choose picks the image for the architecture out of an index, which may hold
// indexes.
func (c Config) choose(idx v1.ImageIndex, what string) (v1.Image, error) {
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, err
	}
	var have []string
	for _, d := range m.Manifests {
		switch {
		case d.MediaType.IsIndex():
			below, err := idx.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			if img, err := c.choose(below, what); err == nil {
				return img, nil
			}
		case !d.MediaType.IsImage():
		case d.Platform == nil: // its configuration will tell
			if len(m.Manifests) == 1 {
				return idx.Image(d.Digest)
			}
		case d.Platform.OS != "linux" && d.Platform.OS != "":
		case fleet.NormalizeArch(d.Platform.Architecture) == c.Arch:
			return idx.Image(d.Digest)
		case !slices.Contains(have, d.Platform.Architecture):
			have = append(have, d.Platform.Architecture)
		}
	}
	return nil, wrongArch(what, c.Arch, have)
}

// describe reads an image's manifest and configuration.
func (c Config) describe(img v1.Image, what string) (*Image, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if m.Config.Size > maxConfigBytes || len(m.Layers) > maxLayers {
		return nil, fail(fleet.CodeInvalidArgument, ReasonInvalid, nil, "image %s has %d layers and a configuration of %d bytes, more than are taken", what, len(m.Layers), m.Config.Size)
	}
	out, cfg, err := c.configured(img, what)
	if err != nil {
		return nil, err
	}
	if len(cfg.RootFS.DiffIDs) != len(m.Layers) {
		return nil, fail(fleet.CodeInvalidArgument, ReasonInvalid, nil, "image %s has %d layers, its configuration tells of %d", what, len(m.Layers), len(cfg.RootFS.DiffIDs))
	}
	d, err := img.Digest()
	if err != nil {
		return nil, err
	}
	out.Digest, out.Resolved = d.String(), d.String()
	for i, l := range m.Layers {
		if !l.MediaType.IsLayer() && l.MediaType != types.DockerUncompressedLayer {
			return nil, fail(fleet.CodeInvalidArgument, ReasonInvalid, nil, "image %s has a layer of the kind %s, which is no file system", what, l.MediaType)
		}
		out.Bytes += l.Size
		out.layers = append(out.layers, layer{digest: l.Digest, diffID: cfg.RootFS.DiffIDs[i], size: l.Size})
	}
	return out, nil
}

func (c Config) configured(img v1.Image, what string) (*Image, *v1.ConfigFile, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	if arch := fleet.NormalizeArch(cfg.Architecture); arch != c.Arch && arch != "" || cfg.OS != "linux" && cfg.OS != "" {
		return nil, nil, wrongArch(what, c.Arch, []string{cfg.OS + "/" + cfg.Architecture})
	}
	return &Image{Arch: c.Arch, Created: cfg.Created.Time, Process: processOf(cfg.Config)}, cfg, nil
}

// Layout finds an image in a directory of the OCI image layout. ref picks one
// of several by its annotation org.opencontainers.image.ref.name; empty takes
// the only one.
func Layout(cfg Config, dir, ref string) (*Image, error) {
	cfg = cfg.withDefaults()
	out, err := cfg.layout(dir, ref)
	if err != nil {
		return nil, localError(dir, err)
	}
	return out, nil
}

func (c Config) layout(dir, ref string) (*Image, error) {
	p, err := layout.FromPath(dir)
	if err != nil {
		return nil, err
	}
	idx, err := p.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, err
	}
	list, names := m.Manifests, []string{}
	if ref != "" {
		list = slices.DeleteFunc(slices.Clone(list), func(d v1.Descriptor) bool {
			n := d.Annotations["org.opencontainers.image.ref.name"]
			names = append(names, n)
			return n != ref && d.Digest.String() != ref
		})
		if len(list) == 0 {
			return nil, fail(fleet.CodeInvalidArgument, ReasonUnknown, nil, "%s has no image %q, only %q", dir, ref, names)
		}
	}
	only := idx
	if len(list) == 1 && list[0].MediaType.IsIndex() {
		if only, err = idx.ImageIndex(list[0].Digest); err != nil {
			return nil, err
		}
	}
	var img v1.Image
	if len(list) == 1 && list[0].MediaType.IsImage() {
		img, err = idx.Image(list[0].Digest)
	} else {
		img, err = c.choose(only, dir)
	}
	if err != nil {
		return nil, err
	}
	out, err := c.describe(img, dir)
	if err != nil {
		return nil, err
	}
	for i := range out.layers {
		l := &out.layers[i]
		l.open = func(context.Context) (io.ReadCloser, error) { return p.Blob(l.digest) }
	}
	return out, nil
}

// Archive finds an image in what "docker save" wrote, plain or compressed. tag
// picks one of several; empty takes the only one.
func Archive(cfg Config, path, tag string) (*Image, error) {
	cfg = cfg.withDefaults()
	out, err := cfg.archive(path, tag)
	if err != nil {
		return nil, localError(path, err)
	}
	return out, nil
}

func (c Config) archive(path, tag string) (*Image, error) {
	var want *name.Tag
	if tag != "" {
		t, err := name.NewTag(tag)
		if err != nil {
			return nil, badReference(tag, err)
		}
		want = &t
	}
	img, err := tarball.Image(func() (io.ReadCloser, error) { return openArchive(path) }, want)
	if err != nil {
		return nil, err
	}
	out, cfg, err := c.configured(img, path)
	if err != nil {
		return nil, err
	}
	id, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	out.Digest, out.Resolved = id.String(), id.String()
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	if len(layers) != len(cfg.RootFS.DiffIDs) {
		return nil, fmt.Errorf("%d layers, but the configuration tells of %d", len(layers), len(cfg.RootFS.DiffIDs))
	}
	for i, l := range layers {
		diff := cfg.RootFS.DiffIDs[i]
		out.layers = append(out.layers, layer{
			digest: diff, diffID: diff, size: -1,
			open: func(context.Context) (io.ReadCloser, error) { return l.Uncompressed() },
		})
	}
	return out, nil
}

// openArchive unpacks what gzip packed.
func openArchive(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var magic [2]byte
	n, _ := f.ReadAt(magic[:], 0) // one that cannot be read shows when it is read on
	if n < len(magic) || !bytes.Equal(magic[:], []byte{0x1f, 0x8b}) {
		return f, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &wrapped{z, func() error { return errors.Join(z.Close(), f.Close()) }}, nil
}

type wrapped struct {
	io.Reader
	close func() error
}

func (w *wrapped) Close() error { return w.close() }
