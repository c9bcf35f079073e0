package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/diskspace"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/ext4"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
	"github.com/fusevm/fuse/internal/hostd/image/tree"
)

// ReasonMissing is the detail "reason" of an image that a host would first
// have to pull.
const ReasonMissing = "image_missing"

// Origins of an image, in Meta.Origin; empty means one of the recipes.
const (
	OriginPulled   = "pulled"
	OriginImported = "imported"
)

// PullOptions say how an image is pulled or imported.
type PullOptions struct {
	// Auth is the login; its zero value takes the machine's docker configuration.
	Auth oci.Auth
	// OCI says how registries are read; Arch and Auth are set here.
	OCI oci.Config
	// Progress is told how far it is; may be nil. It is called from another
	// goroutine.
	Progress func(oci.Progress)
	// Again asks the registry even if the image of the tag is there.
	Again bool
}

func (o PullOptions) say(p oci.Progress) {
	if o.Progress != nil {
		o.Progress(p)
	}
}

func (s pulls) ociDir() string                 { return filepath.Join(s.cfg.Dir, "oci") }
func (s pulls) refsDir() string                { return filepath.Join(s.ociDir(), "refs") }
func (s pulls) pulledDir(digest string) string { return filepath.Join(s.ociDir(), hexOf(digest)) }

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func validDigest(digest string) bool {
	h, ok := strings.CutPrefix(digest, "sha256:")
	return ok && len(h) == 64 && strings.Trim(h, "0123456789abcdef") == ""
}

// tagRecord says what a reference stood for when it was last pulled.
type tagRecord struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	At        time.Time `json:"at"`
}

func (s pulls) tagPath(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(s.refsDir(), hex.EncodeToString(sum[:16])+".json")
}

// pull does the work of Store.Pull.
func (s pulls) pull(ctx context.Context, given string, o PullOptions) (Image, error) {
	ref, err := oci.Parse(given)
	if err != nil {
		return Image{}, err
	}
	if img, err := s.pulled(ref); err == nil && (ref.Digest != "" || !o.Again) {
		return img, nil
	}
	o.OCI.Arch, o.OCI.Auth = s.arch, o.Auth
	o.say(oci.Progress{Phase: "asking " + ref.Registry()})
	found, err := oci.Remote(ctx, o.OCI, ref)
	if err != nil {
		return Image{}, err
	}
	m := metaOf(found, s.arch)
	m.Name, m.Origin, m.Resolved = ref.RepoTag(), OriginPulled, found.Resolved
	img, err := s.once(ctx, found, o, &m, oci.Job{What: ref})
	if err != nil {
		return Image{}, err
	}
	if ref.Digest == "" {
		err = writeMeta(s.tagPath(ref.Name), tagRecord{ref.Name, img.Digest, time.Now().UTC()})
	}
	return img, err
}

func metaOf(found *oci.Image, arch string) Meta {
	p := found.Process
	return Meta{
		Digest: found.Digest, Arch: arch, Created: time.Now().UTC().Truncate(time.Second),
		Env: p.Env, Workdir: p.Workdir, User: p.User, Entrypoint: p.Entrypoint, Cmd: p.Cmd,
	}
}

// once makes the image of a digest unless another process does or has: the
// lock is the digest's.
func (s pulls) once(ctx context.Context, found *oci.Image, o PullOptions, m *Meta, job oci.Job) (Image, error) {
	unlock, err := s.lockDigest(ctx, m.Digest, func() { o.say(oci.Progress{Phase: "waiting for another pull of this image"}) })
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if img, err := s.readPulled(m.Digest); err == nil {
		if m.Resolved == img.Resolved || m.Resolved == img.Digest {
			return img, nil
		}
		img.Resolved = m.Resolved // another index with the same image
		return img, writeMeta(filepath.Join(s.pulledDir(m.Digest), "meta.json"), img.Meta)
	}
	tmp := filepath.Join(s.ociDir(), tmpPrefix+hexOf(m.Digest))
	if err := errors.Join(os.RemoveAll(tmp), os.RemoveAll(s.pulledDir(m.Digest)), os.Mkdir(tmp, 0o700)); err != nil {
		return Image{}, fmt.Errorf("pull image: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := s.fill(ctx, found, o, m, job, tmp); err != nil {
		return Image{}, s.diskError(err)
	}
	if err := failpoint.Hit("image.publish"); err != nil {
		return Image{}, err
	}
	for _, left := range []string{"spool", "root", "layers"} {
		if err := os.RemoveAll(filepath.Join(tmp, left)); err != nil {
			return Image{}, err
		}
	}
	if err := errors.Join(os.Chmod(tmp, 0o755), syncPath(tmp), rename(tmp, s.pulledDir(m.Digest))); err != nil {
		return Image{}, s.diskError(err)
	}
	return s.readPulled(m.Digest)
}

// fill makes rootfs.ext4 and meta.json of a found image in dir.
func (s pulls) fill(ctx context.Context, found *oci.Image, o PullOptions, m *Meta, job oci.Job, dir string) error {
	if err := s.room(ctx, 2*found.Bytes); err != nil {
		return err
	}
	for _, sub := range []string{"spool", "root", "layers"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	t := tree.New(filepath.Join(dir, "spool"), s.limits())
	job.Tree, job.Dir, job.Progress = t, filepath.Join(dir, "layers"), o.say
	job.Room = func(next int64) error { return s.room(ctx, next) }
	if err := found.Apply(ctx, o.OCI, job); err != nil {
		return err
	}
	prepare(t, found.Process.Workdir)
	return s.fileSystem(ctx, t, o, m, dir)
}

// fileSystem makes the ext4 of a tree in dir and describes it.
func (s pulls) fileSystem(ctx context.Context, t *tree.Tree, o PullOptions, m *Meta, dir string) error {
	o.say(oci.Progress{Phase: "making the file system"})
	if err := s.room(ctx, ext4.Estimate(t)); err != nil {
		return err
	}
	path := filepath.Join(dir, "rootfs.ext4")
	err := ext4.Make(ctx, ext4.Config{
		Tree: t, Dir: filepath.Join(dir, "root"), Path: path, Name: m.Digest,
		Run: func(ctx context.Context, args ...string) error {
			_, err := s.tools.run(ctx, "", "mke2fs", args...)
			return err
		},
	})
	if err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	m.Size, m.Content = st.Size(), t.Bytes()
	if err := errors.Join(os.Chmod(path, 0o444), syncPath(path)); err != nil {
		return err
	}
	return writeMeta(filepath.Join(dir, "meta.json"), m)
}

// prepare gives the tree what a machine mounts over, and the directory that
// its processes begin in.
func prepare(t *tree.Tree, workdir string) {
	for name, mode := range map[string]uint32{"dev": 0o755, "proc": 0o555, "sys": 0o555, "run": 0o755, "fuse": 0o755, "etc": 0o755} {
		t.EnsureDir(name, mode)
	}
	if t.Root.Child("tmp") == nil {
		t.EnsureDir("tmp", 0o1777)
	}
	if workdir != "" {
		t.EnsurePath(workdir)
	}
}

func (s pulls) limits() tree.Limits {
	l := tree.DefaultLimits
	if s.cfg.MaxImageBytes > 0 {
		l.Bytes = s.cfg.MaxImageBytes
	}
	return l
}

// room refuses to go on when the bytes to come would leave the disk too full.
// Images that nobody uses make way first.
func (s pulls) room(ctx context.Context, next int64) error {
	for range 2 {
		free, _, err := diskspace.Free(s.cfg.Dir)
		if err != nil {
			return err
		}
		need := next + s.minFree()
		if free >= need {
			return nil
		}
		if _, err := s.Prune(ctx, PruneOptions{Free: need}); err != nil {
			return err
		}
	}
	return s.full(next)
}

func (s pulls) minFree() int64 {
	if s.cfg.MinFree > 0 {
		return s.cfg.MinFree
	}
	return 1 << 30
}

func (s pulls) full(next int64) error {
	free, total, _ := diskspace.Free(s.cfg.Dir)
	const mib = 1 << 20
	return fleet.Errorf(fleet.CodeUnavailable, "%w: the host's disk has no room for the image", fleet.ErrNoCapacity).
		With(fleet.DetailScope, "disk").With(fleet.DetailReason, "image_no_room").
		With(fleet.DetailLimit, fmt.Sprintf("%d MiB must stay free", s.minFree()/mib)).
		With(fleet.DetailUsage, fmt.Sprintf("%d MiB of %d MiB are free, %d MiB more are needed", free/mib, total/mib, next/mib)).
		With(fleet.DetailRemedy, "run fuse image prune on the host, destroy environments, or use a smaller image")
}

func (s pulls) diskError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errors.Join(s.full(0), err)
	}
	return err
}

// readPulled returns the pulled image of a manifest's digest.
func (s pulls) readPulled(digest string) (Image, error) {
	dir := s.pulledDir(digest)
	m, err := readMeta[Meta](filepath.Join(dir, "meta.json"))
	if err != nil {
		return Image{}, err
	}
	img := Image{Meta: m, Path: filepath.Join(dir, "rootfs.ext4")}
	st, err := os.Stat(img.Path)
	if err != nil || st.Size() != m.Size || m.Digest != digest {
		return Image{}, fmt.Errorf("image %s: %w", digest, errDamaged)
	}
	return img, nil
}

// pulled finds the image that a reference stands for on this host.
func (s pulls) pulled(ref oci.Reference) (Image, error) {
	digest := ref.Digest
	if digest == "" {
		rec, err := readMeta[tagRecord](s.tagPath(ref.Name))
		digest = rec.Digest
		if err != nil || rec.Reference != ref.Name { // it was pulled by its digest
			named := slices.DeleteFunc(s.listPulled(), func(m Meta) bool { return m.Name != ref.Given })
			if len(named) == 0 {
				return Image{}, s.missing(ref.Given)
			}
			digest = slices.MaxFunc(named, func(a, b Meta) int { return a.Created.Compare(b.Created) }).Digest
		}
	}
	return s.byDigest(digest, ref.Given)
}

// byDigest finds a pulled image by its manifest's digest, or by that of the
// index it was chosen from.
func (s pulls) byDigest(digest, given string) (Image, error) {
	if !validDigest(digest) {
		return Image{}, s.missing(given)
	}
	if img, err := s.readPulled(digest); err == nil {
		return img, nil
	}
	for _, m := range s.listPulled() {
		if m.Resolved == digest {
			return s.readPulled(m.Digest)
		}
	}
	return Image{}, s.missing(given)
}

func (s pulls) missing(given string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "image %s has not been pulled to this host", given).
		With(fleet.DetailReason, ReasonMissing).
		With(fleet.DetailRemedy, "on the host: fuse image pull "+given)
}

func (s pulls) listPulled() []Meta {
	entries, err := os.ReadDir(s.ociDir())
	if err != nil {
		return nil
	}
	var out []Meta
	for _, e := range entries {
		if len(e.Name()) != 64 {
			continue
		}
		if m, err := readMeta[Meta](filepath.Join(s.ociDir(), e.Name(), "meta.json")); err == nil && hexOf(m.Digest) == e.Name() {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Meta) int { return strings.Compare(a.Name+a.Digest, b.Name+b.Digest) })
	return out
}

// Held is what a host says it has: the names of images, and of pulled ones the
// digests that a reference may stand for.
func Held(list []Meta) []string {
	out := []string{}
	for _, m := range list {
		switch {
		case m.Origin != OriginPulled:
			out = append(out, m.Name)
		case m.Resolved != "" && m.Resolved != m.Digest:
			out = append(out, m.Resolved, m.Digest)
		default:
			out = append(out, m.Digest)
		}
	}
	return out
}

// lockDigest takes the lock of one digest, which serialises its pulls in this
// process and in others. The kernel drops it when a process dies.
func (s pulls) lockDigest(ctx context.Context, digest string, waiting func()) (unlock func(), err error) {
	path := filepath.Join(s.ociDir(), ".lock-"+hexOf(digest))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; {
		f, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock image: %w", err)
		}
		if f != nil {
			return func() {
				_ = os.Remove(path)
				_ = f.Close()
			}, nil
		}
		if !told {
			waiting()
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another pull: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// tryLock returns nil without an error while another holds the lock. Holders
// remove the file, so the one that was locked must still be the one there is.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		mine, e1 := f.Stat()
		there, e2 := os.Stat(path)
		if e1 == nil && e2 == nil && os.SameFile(mine, there) {
			return f, nil
		}
	}
	_ = f.Close()
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	return nil, err
}

// importNamed does the work of Store.Import.
func (s pulls) importNamed(ctx context.Context, path, name, which string, o PullOptions) (Image, error) {
	if !nameRule.MatchString(name) {
		return Image{}, fleet.Errorf(fleet.CodeInvalidArgument, "an image cannot be named %q", name).
			With(fleet.DetailLimit, nameRule.String())
	}
	if _, ok := recipes[name]; ok {
		return Image{}, fleet.Errorf(fleet.CodeConflict, "%s is the name of a built-in image", name).With(fleet.DetailRemedy, "choose another name")
	}
	o.OCI.Arch = s.arch
	st, err := os.Stat(path)
	if err != nil {
		return Image{}, fleet.Errorf(fleet.CodeInvalidArgument, "import image: %w", err)
	}
	find := oci.Archive
	if st.IsDir() {
		find = oci.Layout
	}
	found, err := find(o.OCI, path, which)
	if err != nil {
		return Image{}, err
	}
	unlock, err := s.lock(ctx, func(msg string) { o.say(oci.Progress{Phase: msg}) })
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if img, err := s.Get(name); err == nil && img.Digest == found.Digest {
		return img, nil
	}
	tmp, err := os.MkdirTemp(s.imagesDir(), tmpPrefix)
	if err != nil {
		return Image{}, s.diskError(err)
	}
	defer os.RemoveAll(tmp)
	m := metaOf(found, s.arch)
	m.Name, m.Origin = name, OriginImported
	if err := s.fill(ctx, found, o, &m, oci.Job{Path: path}, tmp); err != nil {
		return Image{}, s.diskError(err)
	}
	if err := s.place(filepath.Join(tmp, "rootfs.ext4"), &m); err != nil {
		return Image{}, s.diskError(err)
	}
	return s.Get(name)
}

// hold does the work of Store.Hold.
func (s pulls) hold(img Image, path string) error {
	s.touch(img)
	err := os.Link(img.Path, path)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMLINK) {
		return copySparse(img.Path, path) // the host's data lies on another disk
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// touch notes that an image is used.
func (s pulls) touch(img Image) {
	now := time.Now()
	_ = os.Chtimes(filepath.Join(filepath.Dir(img.Path), "meta.json"), now, now) // for the order of pruning only
}

func copySparse(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			_ = os.Remove(to)
		}
	}()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	for at := int64(0); ; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return out.Truncate(st.Size())
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := copyRange(out, in, data, end-data); err != nil {
			return err
		}
		at = end
	}
}
