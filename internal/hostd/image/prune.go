package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/diskspace"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
)

// MinIdle is how long ago an image must have been used to be pruned: a create
// that found it there is to find it a moment later, too.
const MinIdle = 10 * time.Minute

// Entry is an image with what it costs and who needs it.
type Entry struct {
	Meta
	Disk   int64     `json:"disk"`    // bytes that it takes, without holes
	InUse  int       `json:"in_use"`  // VMs and snapshots whose disks are based on it
	UsedAt time.Time `json:"used_at"` // when it was last pulled or booted

	path string
}

// entries does the work of Store.Entries.
func (s keeper) entries() ([]Entry, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	out := make([]Entry, 0, len(list))
	for _, m := range list {
		path := filepath.Join(s.imagesDir(), m.Name, digestFile(m.Digest))
		if m.Origin == OriginPulled {
			path = filepath.Join(s.pulledDir(m.Digest), "rootfs.ext4")
		}
		out = append(out, entryOf(m, path))
	}
	return out, nil
}

func entryOf(m Meta, path string) Entry {
	e := Entry{Meta: m, path: path}
	if st, err := os.Stat(path); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			e.Disk, e.InUse = sys.Blocks*512, int(sys.Nlink)-1
		}
	}
	if st, err := os.Stat(filepath.Join(filepath.Dir(path), "meta.json")); err == nil {
		e.UsedAt = st.ModTime().UTC()
	}
	return e
}

// inspect does the work of Store.Inspect.
func (s keeper) inspect(name string) (Entry, error) {
	img, err := s.Get(name)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(img.Meta, img.Path), nil
}

// keeper is the part of a Store that knows what is used and removes the rest.
type keeper struct{ pulls }

// PruneOptions say what may go. Without any, everything that is not needed
// and was not used for MinIdle.
type PruneOptions struct {
	Unused time.Duration // at least so long; never less than MinIdle
	// MaxBytes and Free end the pruning once pulled images take no more, or
	// the disk has so much room. Zero means that they do not.
	MaxBytes int64
	Free     int64
}

// Pruned is what was removed.
type Pruned struct {
	Images []Entry `json:"images"`
	Freed  int64   `json:"freed"`
}

// prune does the work of Store.Prune.
func (s keeper) prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	out := Pruned{Freed: s.clearPulls()}
	entries, err := s.Entries()
	if err != nil {
		return out, err
	}
	var pulled []Entry
	total := int64(0)
	for _, e := range entries {
		if e.Origin == OriginPulled {
			pulled, total = append(pulled, e), total+e.Disk
		} else {
			out.Freed += s.clearOld(e)
		}
	}
	slices.SortFunc(pulled, func(a, b Entry) int { return cmp.Or(a.UsedAt.Compare(b.UsedAt), cmp.Compare(a.Digest, b.Digest)) })
	for _, e := range pulled {
		if err := ctx.Err(); err != nil {
			return out, context.Cause(ctx)
		}
		if o.MaxBytes > 0 && total <= o.MaxBytes || o.Free > 0 && s.free() >= o.Free {
			break
		}
		if time.Since(e.UsedAt) < max(o.Unused, MinIdle) || !s.removeIdle(e) {
			continue
		}
		total -= e.Disk
		out.Freed += e.Disk
		out.Images = append(out.Images, e)
	}
	s.forgetTags()
	return out, nil
}

// forgetTags removes what tags stood for whose image is gone since.
func (s keeper) forgetTags() {
	files, _ := filepath.Glob(filepath.Join(s.refsDir(), "*.json"))
	for _, path := range files {
		rec, err := readMeta[tagRecord](path)
		if err != nil || time.Since(rec.At) < MinIdle { // a pull writes it last
			continue
		}
		if _, err := os.Stat(s.pulledDir(rec.Digest)); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path)
		}
	}
}

func (s keeper) free() int64 {
	free, _, err := diskspace.Free(s.cfg.Dir)
	if err != nil {
		return 0
	}
	return free
}

// removeIdle removes a pulled image unless it is in use or being pulled.
func (s keeper) removeIdle(e Entry) bool {
	lock, err := tryLock(filepath.Join(s.ociDir(), ".lock-"+hexOf(e.Digest)))
	if err != nil || lock == nil {
		return false
	}
	defer func() {
		_ = os.Remove(lock.Name())
		_ = lock.Close()
	}()
	now := entryOf(e.Meta, e.path)
	if now.InUse != 0 || now.UsedAt.After(e.UsedAt) {
		return false
	}
	return s.discard(s.pulledDir(e.Digest), tmpPrefix+hexOf(e.Digest)) == nil
}

// discard takes a directory out of sight in one step, then removes it.
func (s keeper) discard(dir, tmp string) error {
	aside := filepath.Join(s.ociDir(), tmp)
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := rename(dir, aside); err != nil {
		return err
	}
	return os.RemoveAll(aside)
}

// clearPulls removes what pulls left that did not end: nobody holds their lock.
func (s keeper) clearPulls() (freed int64) {
	left, _ := filepath.Glob(filepath.Join(s.ociDir(), tmpPrefix+"*"))
	for _, path := range left {
		h := strings.TrimPrefix(filepath.Base(path), tmpPrefix)
		lock, err := tryLock(filepath.Join(s.ociDir(), ".lock-"+h))
		if err != nil || lock == nil {
			continue
		}
		freed += diskspace.Used(path)
		_ = os.RemoveAll(path)
		_ = os.Remove(lock.Name())
		_ = lock.Close()
	}
	return freed
}

// clearOld removes contents that a named image no longer has and no VM uses.
func (s keeper) clearOld(e Entry) (freed int64) {
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(e.path), "*.ext4"))
	for _, path := range files {
		old := entryOf(Meta{}, path)
		st, err := os.Stat(path)
		if path == e.path || old.InUse != 0 || err != nil || time.Since(st.ModTime()) < MinIdle {
			continue
		}
		if os.Remove(path) == nil {
			freed += old.Disk
		}
	}
	return freed
}

// removePulled removes an image by reference or digest. One in use is removed
// only by force; the VMs keep their content.
func (s keeper) removePulled(ctx context.Context, given string, force bool) error {
	img, err := s.Get(given)
	if err != nil {
		return err
	}
	if e := entryOf(img.Meta, img.Path); e.InUse > 0 && !force {
		return inUse(given, e.InUse)
	}
	unlock, err := s.lockDigest(ctx, img.Digest, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	if ref, err := oci.Parse(given); err == nil && ref.Digest == "" {
		if err := os.Remove(s.tagPath(ref.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return s.discard(s.pulledDir(img.Digest), tmpPrefix+hexOf(img.Digest))
}

func inUse(name string, n int) error {
	return fleet.Errorf(fleet.CodeConflict, "image %s is in use: %d disks are based on it", name, n).
		With(fleet.DetailUsage, fmt.Sprint(n)).
		With(fleet.DetailRemedy, "destroy the environments first, or force it: they keep their content, and the room is free once they have ended")
}

func copyRange(out, in *os.File, at, n int64) error {
	_, err := io.Copy(io.NewOffsetWriter(out, at), io.NewSectionReader(in, at, n))
	return err
}
