// Package image keeps what VMs boot from: root filesystems and kernels.
//
//	DIR/images/NAME/meta.json         names the digest that is current
//	DIR/images/NAME/DIGEST.ext4       immutable, the backing file of overlays
//	DIR/kernels/VERSION/meta.json
//	DIR/kernels/VERSION/vmlinux       what QEMU enters directly
//	DIR/kernels/VERSION/modules.cpio  modules, decompressed, in load order
//	DIR/kernels/VERSION/initramfs-DIGEST.cpio  modules.cpio and fused as /init
//	DIR/cache/debs/                   packages as apt verified them
//	DIR/oci/DIGEST/                   rootfs.ext4 and meta.json of a pulled image
//	DIR/oci/refs/                     what tags stood for when they were pulled
//
// Everything is written beside its place, synced and renamed, under one file
// lock, so a half-built image is never seen and two builders do the work once.
// meta.json is renamed into place last: what it names is complete. Pulled
// images have a lock each, and their directory is renamed into place whole.
// A VM has a hard link to the file that its disk is based on: the number of
// links says whether an image is in use, and no removal takes it from a VM.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
)

// Config says where a Store keeps its files and what it builds from.
type Config struct {
	Dir   string // the host's data directory
	Fused string // path of the guest agent; empty: "fused" beside this executable
	// Kernel is a bzImage, vmlinux or arm64 Image to boot instead of Debian's;
	// Modules is its lib/modules/VERSION directory, empty if it needs none.
	Kernel  string
	Modules string
	// Env is added to the environment of the tools that are run.
	Env []string
	// MinFree is how many bytes of the disk a pull leaves free; 1 GiB.
	MinFree int64
	// MaxImageBytes bounds the contents of one image; 256 GiB.
	MaxImageBytes int64
}

// Meta describes one image; it is the content of meta.json.
type Meta struct {
	Name string `json:"name"`
	// Digest identifies the content: of the filesystem image, or of the
	// manifest of an image that was pulled or imported.
	Digest   string            `json:"digest"`
	Size     int64             `json:"size"` // of the filesystem in bytes, holes included
	Arch     string            `json:"arch"`
	Env      map[string]string `json:"env"`
	Workdir  string            `json:"workdir"`
	Recipe   string            `json:"recipe"` // what built it; another recipe rebuilds it
	Packages []string          `json:"packages"`
	Created  time.Time         `json:"created"`

	// Of images that were pulled or imported.
	Origin     string   `json:"origin,omitempty"`
	Resolved   string   `json:"resolved,omitempty"` // digest of the index that it was chosen from
	Content    int64    `json:"content,omitempty"`  // bytes of all its files
	User       string   `json:"user,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
}

// Image is an image that is present: its description and its root filesystem.
type Image struct {
	Meta
	Path string
}

// Store is the images and kernels of one data directory.
type Store struct {
	cfg   Config
	arch  string
	tools toolbox
	fused fusedCache
}

// pulls is the part of a Store that keeps images from registries.
type pulls struct{ *Store }

// kernels is the part of a Store that keeps kernels.
type kernels struct{ *Store }

var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// Open returns the store of cfg.Dir, making its directories.
func Open(cfg Config) (*Store, error) {
	if cfg.Fused == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the guest agent: %w", err)
		}
		cfg.Fused = filepath.Join(filepath.Dir(exe), "fused")
	}
	s := &Store{cfg: cfg, tools: toolbox{cfg.Env}, arch: fleet.NormalizeArch(runtime.GOARCH)}
	for _, dir := range []string{s.imagesDir(), s.kernelsDir(), s.debsDir(), pulls{s}.refsDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make image store: %w", err)
		}
	}
	return s, nil
}

func (s *Store) imagesDir() string  { return filepath.Join(s.cfg.Dir, "images") }
func (s *Store) kernelsDir() string { return filepath.Join(s.cfg.Dir, "kernels") }
func (s *Store) debsDir() string    { return filepath.Join(s.cfg.Dir, "cache", "debs") }

// Build makes the named image and the kernel it boots with, or finds them
// present. progress is told of each thing that takes time. Errors name what
// is missing and the remedy.
func (s *Store) Build(ctx context.Context, name string, progress func(string)) (Meta, error) {
	if progress == nil {
		progress = func(string) {}
	}
	recipe, ok := recipes[name]
	if !ok {
		return Meta{}, fleet.Errorf(fleet.CodeInvalidArgument, "no recipe builds image %q; known: %s", name, strings.Join(recipeNames(), ", "))
	}
	if _, err := s.Kernel(ctx, progress); err != nil {
		return Meta{}, err
	}
	unlock, err := s.lock(ctx, progress)
	if err != nil {
		return Meta{}, err
	}
	defer unlock()
	if img, err := s.Get(name); err == nil && img.Recipe == recipe.id {
		return img.Meta, nil
	}
	return s.buildRoot(ctx, name, recipe, progress)
}

// List returns the images present: named ones, then pulled ones.
func (s *Store) List() ([]Meta, error) {
	entries, err := os.ReadDir(s.imagesDir())
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []Meta
	for _, e := range entries {
		m, err := readMeta[Meta](filepath.Join(s.imagesDir(), e.Name(), "meta.json"))
		if err == nil && e.IsDir() && m.Name == e.Name() {
			out = append(out, m)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return append(out, pulls{s}.listPulled()...), nil
}

// Get returns an image that is present, by its name, by a reference or by the
// digest of one that was pulled. For any other the error lists those that are,
// and the command that builds one.
func (s *Store) Get(name string) (Image, error) {
	switch {
	case validDigest(name):
		return pulls{s}.byDigest(name, name)
	case oci.IsReference(name):
		ref, err := oci.Parse(name)
		if err != nil {
			return Image{}, err
		}
		return pulls{s}.pulled(ref)
	}
	if nameRule.MatchString(name) {
		dir := filepath.Join(s.imagesDir(), name)
		m, err := readMeta[Meta](filepath.Join(dir, "meta.json"))
		if err == nil {
			img := Image{Meta: m, Path: filepath.Join(dir, digestFile(m.Digest))}
			if st, err := os.Stat(img.Path); err == nil && st.Size() == m.Size {
				return img, nil
			}
			return Image{}, damaged(name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return Image{}, fmt.Errorf("image %s: %w", name, err)
		}
	}
	return Image{}, s.unknown(name)
}

// At returns the root filesystem of a digest that some image had, so that a
// VM keeps the one it was created with after a rebuild.
func (s *Store) At(name, digest string) (string, error) {
	if !nameRule.MatchString(name) || !strings.HasPrefix(digest, "sha256:") || strings.ContainsAny(digest, "/.") {
		return "", s.unknown(name)
	}
	path := filepath.Join(s.imagesDir(), name, digestFile(digest))
	if _, err := os.Stat(path); err != nil {
		return "", fleet.Wrap(fleet.CodeNotFound, err, fmt.Sprintf("image %s no longer has the content %s", name, digest))
	}
	return path, nil
}

// Remove deletes an image. One that VMs run from is removed only by force, and
// they keep it; it is an error to remove one that is not there.
func (s *Store) Remove(ctx context.Context, name string, force bool) error {
	if oci.IsReference(name) {
		return keeper{pulls{s}}.removePulled(ctx, name, force)
	}
	unlock, err := s.lock(ctx, func(string) {})
	if err != nil {
		return err
	}
	defer unlock()
	img, err := s.Get(name)
	if err != nil && !errors.Is(err, errDamaged) {
		return err
	}
	if e := entryOf(img.Meta, img.Path); err == nil && e.InUse > 0 && !force {
		return inUse(name, e.InUse)
	}
	dir := filepath.Join(s.imagesDir(), name)
	if err := os.Remove(filepath.Join(dir, "meta.json")); err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	return os.RemoveAll(dir)
}

// Pull makes sure that the image of a reference is there. One that names a
// digest, and a tag that was pulled before, are found without the registry.
func (s *Store) Pull(ctx context.Context, given string, o PullOptions) (Image, error) {
	return pulls{s}.pull(ctx, given, o)
}

// Import makes an image of an OCI layout directory or an archive of docker
// save and gives it a name on this host. which picks one of several images.
func (s *Store) Import(ctx context.Context, path, name, which string, o PullOptions) (Image, error) {
	return pulls{s}.importNamed(ctx, path, name, which, o)
}

// Hold gives a VM its own name for an image's file, by which the image is in
// use until that name is removed, whatever happens to the store. An image
// that is gone is fs.ErrNotExist.
func (s *Store) Hold(img Image, path string) error { return pulls{s}.hold(img, path) }

// Entries returns all images, named ones first.
func (s *Store) Entries() ([]Entry, error) { return keeper{pulls{s}}.entries() }

// Inspect returns one image by name, reference or digest.
func (s *Store) Inspect(name string) (Entry, error) { return keeper{pulls{s}}.inspect(name) }

// Prune removes pulled images that nothing uses, the longest unused first, what
// a rebuild of a named image left, and what a crash left of pulls. An image in
// use stays, whatever is asked for.
func (s *Store) Prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	return keeper{pulls{s}}.prune(ctx, o)
}

var errDamaged = errors.New("its file is missing or has another size than it was made with")

func damaged(name string) error {
	remedy := "remove it and put it there again"
	if _, ok := recipes[name]; ok {
		remedy = "fuse image build " + name
	}
	return fleet.Errorf(fleet.CodeUnavailable, "image %q of this host is damaged: %w", name, errDamaged).
		With(fleet.DetailRemedy, remedy)
}

func (s *Store) unknown(name string) error {
	have := "none"
	if list, err := s.List(); err == nil && len(list) > 0 {
		var names []string
		for _, m := range list {
			if m.Origin != OriginPulled {
				names = append(names, m.Name)
			}
		}
		if len(names) > 0 {
			have = strings.Join(names, ", ")
		}
	}
	remedy := "name an image that the host has"
	switch _, ok := recipes[name]; {
	case ok:
		remedy = "on the host: fuse image build " + name
	case have == "none":
		remedy = "on the host: fuse image build minimal"
	}
	return fleet.Errorf(fleet.CodeInvalidArgument, "image %q is not on this host; it has: %s", name, have).
		With(fleet.DetailRemedy, remedy)
}

func digestFile(digest string) string { return strings.TrimPrefix(digest, "sha256:") + ".ext4" }

func readMeta[T any](path string) (T, error) {
	var v T
	b, err := os.ReadFile(path)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("read %s: %w", path, err)
	}
	return v, nil
}
