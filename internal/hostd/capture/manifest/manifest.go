// Package manifest is the record of a capture on the disk: what it holds, with
// the digests of every file, and whether it has been found damaged.
package manifest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/sparse"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/svcdisk"
)

// Files of a capture, beside the layers.
const (
	File    = "snapshot.json"
	Damaged = "damaged.json"
	Base    = "base.ext4" // a hard link to the image
	Memory  = "memory"
	Devices = "devices"
)

// Manifest is everything there is to know of a capture.
type Manifest struct {
	driver.SnapshotInfo
	ImageDigest string              `json:"image_digest"`
	Image       guestwire.BootImage `json:"image,omitzero"` // for the guest's next boot
	DiskSize    int64               `json:"disk_size"`      // that the guest sees, in bytes
	Disk        []chain.Layer       `json:"disk"`           // from the image up
	// Base is sparse's digest of the image's file, which tells more than the
	// image's own: that may be of what it was made of. Empty: an older record.
	Base string `json:"base,omitempty"`
	// Services are the images of services, in the order of their disks.
	Services []Service `json:"services,omitempty"`
	// MemorySum and DevicesSum are of a live one.
	MemorySum  sparse.Content `json:"memory_sum,omitzero"`
	DevicesSum sparse.Content `json:"devices_sum,omitzero"`
	// ThawKey opens the guest that is made of it. It is a secret.
	ThawKey string `json:"thaw_key,omitempty"`
}

// Service is the image of one, and sparse's digest of its file.
type Service struct {
	guestwire.BootServiceImage
	Digest string `json:"digest"`
}

// ServiceSet is what the guest of a machine with these images of services is told
// of them: as captured, or of a disk alone as the store has them now.
func (m Manifest) ServiceSet(store svcdisk.Store, names []string) (svcdisk.Set, error) {
	if !m.hasServices(names) {
		if m.Live() {
			return svcdisk.Set{}, fleet.Errorf(fleet.CodeInvalidArgument, "a machine that goes on from memory has the images of services of its snapshot").
				With(fleet.DetailLimit, strings.Join(m.Source.ServiceImages, ", ")).With(fleet.DetailUsage, strings.Join(names, ", "))
		}
		return svcdisk.Find(store, names)
	}
	var boot []guestwire.BootServiceImage
	for _, s := range m.Services {
		boot = append(boot, s.BootServiceImage)
	}
	return svcdisk.Kept(boot), nil
}

// LinkServices gives a machine with these images of services those of the capture.
func (m Manifest) LinkServices(from, dir string, names []string) error {
	if !m.hasServices(names) {
		return nil
	}
	return svcdisk.Link(len(m.Services), from, dir)
}

func (m Manifest) hasServices(names []string) bool {
	return slices.EqualFunc(m.Services, names, func(s Service, name string) bool { return s.Name == name })
}

// Live says whether there is memory.
func (m Manifest) Live() bool { return m.Kind == fleet.SnapshotKindLive }

// Sum is the digest of the whole.
func (m Manifest) Sum() string {
	h := sha256.New()
	fmt.Fprintf(h, "fuse snapshot 1\nimage %s\ndisk %d\n", m.ImageDigest, m.DiskSize)
	if m.Base != "" {
		fmt.Fprintf(h, "base %s\n", m.Base)
	}
	for _, s := range m.Services {
		fmt.Fprintf(h, "service %s %s\n", s.Name, s.Digest)
	}
	for _, l := range m.Disk {
		fmt.Fprintf(h, "layer %s\n", l.Digest)
	}
	if m.Live() {
		fmt.Fprintf(h, "memory %s %d\ndevices %s\n", m.MemorySum.Digest, m.MemorySum.Size, m.DevicesSum.Digest)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// sealed is the record on the disk, with a checksum over all of it.
type sealed struct {
	Sum      string          `json:"sum"`
	Manifest json.RawMessage `json:"manifest"`
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Write makes a capture one: before, its files are nothing.
func (m Manifest) Write(dir string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if b, err = json.Marshal(sealed{Sum: checksum(b), Manifest: b}); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, File), append(b, '\n'))
}

// Read reads the record of a capture that is not known to be damaged.
func Read(a driver.Artifact) (Manifest, error) {
	var m Manifest
	if b, err := os.ReadFile(filepath.Join(a.Dir, Damaged)); err == nil {
		var d driver.DamagedError
		_ = json.Unmarshal(b, &d) // that it is there says enough
		return m, &driver.DamagedError{ID: a.ID, Why: d.Why}
	}
	b, err := os.ReadFile(filepath.Join(a.Dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("snapshot %s has no record on this host: %w", a.ID, fs.ErrNotExist)
	}
	if err != nil {
		return m, err
	}
	var doc sealed
	if json.Unmarshal(b, &doc) != nil || json.Unmarshal(doc.Manifest, &m) != nil {
		return Manifest{}, Condemn(a, "its record is not readable")
	}
	if doc.Sum != checksum(doc.Manifest) || m.Digest != m.Sum() {
		return Manifest{}, Condemn(a, "its record is not what was written")
	}
	return m, nil
}

// Condemn makes it durable that a capture is damaged, and says so.
func Condemn(a driver.Artifact, why string) error {
	d := &driver.DamagedError{ID: a.ID, Why: why}
	b, err := json.Marshal(d)
	if err == nil {
		err = durable.WriteFile(filepath.Join(a.Dir, Damaged), b)
	}
	if err != nil {
		return errors.Join(d, fmt.Errorf("note that a snapshot is damaged: %w", err))
	}
	return d
}

// Remove removes all files of a capture; what is not there is fine. The record
// goes first, so that half a capture never looks like one.
func Remove(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, name := range append([]string{File, Memory, Devices, Base, Damaged}, svcdisk.Files()...) {
		for _, n := range []string{name, name + ".new"} {
			if err := os.Remove(filepath.Join(dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, chain.Remove(dir))...)
}

// Checker compares files with their digests, and remembers those that have not
// changed since.
type Checker struct {
	mu    sync.Mutex
	known map[stamp]string
}

// stamp tells one content of a file from its others.
type stamp struct {
	dev, ino uint64
	size     int64
	mtime    unix.Timespec // not ctime, which a link changes
}

// maxKnown bounds what is remembered; what is forgotten is read again.
const maxKnown = 4096

func look(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, err
	}
	return stamp{st.Dev, st.Ino, st.Size, st.Mtim}, nil
}

// Check is an error with sparse's digest in it unless the file is as written.
// Anew reads it even if it has not changed.
func (c *Checker) Check(ctx context.Context, path, digest string, anew bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := look(f)
	if err != nil {
		return err
	}
	if !anew && c.get(s) == digest {
		return nil
	}
	got, err := sparse.Read(ctx, f, driver.Tick(ctx, "check"))
	if err != nil {
		return err
	}
	if got.Digest != digest {
		return &MismatchError{File: filepath.Base(path)}
	}
	c.Note(f, digest)
	return nil
}

// Digest is a file's; it is read unless it has not changed since.
func (c *Checker) Digest(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	s, err := look(f)
	if err != nil {
		return "", err
	}
	if known := c.get(s); known != "" {
		return known, nil
	}
	got, err := sparse.Read(ctx, f, driver.Tick(ctx, "disk"))
	if err != nil {
		return "", err
	}
	c.Note(f, got.Digest)
	return got.Digest, nil
}

// settled is how long ago a file must have been changed for another change to
// show in its time: the kernel's clock of files moves in steps.
const settled = 20 * time.Millisecond

// Note remembers what an open file holds, unless that could change unseen.
func (c *Checker) Note(f *os.File, digest string) {
	s, err := look(f)
	if err != nil || time.Since(time.Unix(s.mtime.Unix())) < settled {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxKnown {
		c.known = map[stamp]string{}
	}
	c.known[s] = digest
}

func (c *Checker) get(s stamp) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[s]
}

// MismatchError says that a file is not what was written.
type MismatchError struct{ File string }

func (e *MismatchError) Error() string { return e.File + " is not what was written" }

// Verify compares the files of a capture with its record. The memory of one
// that is to be loaded is compared as it is; anew reads everything. What is
// wrong condemns it.
func (c *Checker) Verify(ctx context.Context, a driver.Artifact, m Manifest, anew bool) error {
	type file struct{ name, digest string }
	var files []file
	for _, l := range m.Disk {
		files = append(files, file{chain.File(l.Number), l.Digest})
	}
	if m.Base != "" {
		files = append(files, file{Base, m.Base})
	}
	for i, s := range m.Services {
		files = append(files, file{svcdisk.File(i), s.Digest})
	}
	if m.Live() {
		files = append(files, file{Devices, m.DevicesSum.Digest})
		if anew && !m.Volatile {
			files = append(files, file{Memory, m.MemorySum.Digest})
		}
	}
	for _, f := range files {
		err := c.Check(ctx, filepath.Join(a.Dir, f.name), f.digest, anew)
		var bad *MismatchError
		switch {
		case errors.As(err, &bad):
			return Condemn(a, bad.Error())
		case errors.Is(err, fs.ErrNotExist):
			return Condemn(a, f.name+" is missing")
		case err != nil:
			return fmt.Errorf("verify snapshot %s: %w", a.ID, err)
		}
	}
	return nil
}

// Taken is the time that a record keeps.
func Taken() time.Time { return time.Now().UTC().Round(time.Millisecond) }
