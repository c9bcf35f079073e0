package rooted

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Packed is what went into an archive or came out of one.
type Packed struct {
	Entries, Bytes int64
	// Skipped are sockets, pipes and devices, which are not packed.
	Skipped int64
}

// copyChunk is how much of a file is in memory at a time, in bytes.
const copyChunk = 64 << 10

// packer writes one archive.
type packer struct {
	ctx   context.Context //nolint:containedctx // of the one call
	dir   *os.Root
	out   *tar.Writer
	links map[[2]uint64]string // files with several names, by device and number
	buf   []byte
	done  Packed
}

// maxLinks bounds the files with several names whose names are remembered;
// those beyond are packed once more.
const maxLinks = 1 << 16

// Pack writes an archive of what is at name in dir. A directory's entries have
// names relative to it; a file has its own. Owners, modes, times and links are
// kept; a file that changes meanwhile is cut or filled up to its size.
func Pack(ctx context.Context, dir *os.Root, name string, w io.Writer) (Packed, error) {
	p := &packer{ctx: ctx, dir: dir, out: tar.NewWriter(w), links: map[[2]uint64]string{}, buf: make([]byte, copyChunk)}
	info, err := dir.Lstat(name)
	if err != nil {
		return Packed{}, err
	}
	if info.IsDir() {
		sub, err := dir.OpenRoot(name)
		if err != nil {
			return Packed{}, err
		}
		defer sub.Close()
		p.dir = sub
		err = p.tree(".")
		if err != nil {
			return p.done, err
		}
	} else if err := p.add(name, info); err != nil {
		return p.done, err
	}
	return p.done, p.out.Close()
}

func (p *packer) tree(name string) error {
	info, err := p.dir.Lstat(name)
	if err != nil {
		return err
	}
	if err := p.add(name, info); err != nil {
		return err
	}
	f, err := p.dir.Open(name)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	err = errors.Join(err, f.Close())
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		full := path.Join(name, n)
		info, err := p.dir.Lstat(full)
		switch {
		case errors.Is(err, fs.ErrNotExist): // gone meanwhile
			continue
		case err != nil:
			return err
		case info.IsDir():
			err = p.tree(full)
		default:
			err = p.add(full, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) add(name string, info fs.FileInfo) error {
	if err := p.ctx.Err(); err != nil {
		return context.Cause(p.ctx)
	}
	target := ""
	switch mode := info.Mode(); {
	case mode.IsRegular(), mode.IsDir():
	case mode.Type() == fs.ModeSymlink:
		var err error
		if target, err = p.dir.Readlink(name); err != nil {
			return err
		}
	default:
		p.done.Skipped++
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Format = name, "", "", tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && info.Mode().IsRegular() && st.Nlink > 1 {
		key := [2]uint64{uint64(st.Dev), st.Ino} //nolint:unconvert // other widths elsewhere
		if first, seen := p.links[key]; seen {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else if len(p.links) < maxLinks {
			p.links[key] = name
		}
	}
	p.done.Entries++
	if h.Typeflag != tar.TypeReg {
		return p.out.WriteHeader(h)
	}
	return p.file(name, h)
}

func (p *packer) file(name string, h *tar.Header) error {
	f, err := p.dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(onlyWriter{p.out}, onlyReader{io.LimitReader(f, h.Size)}, p.buf)
	p.done.Bytes += n
	if err == nil && n < h.Size { // it shrank
		clear(p.buf)
		for left := h.Size - n; left > 0 && err == nil; {
			var m int
			m, err = p.out.Write(p.buf[:min(left, int64(len(p.buf)))])
			left -= int64(m)
		}
	}
	return err
}

// onlyReader and onlyWriter hide methods that would take other ways.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }

// EntryError is an entry of an archive that is not unpacked, and ends it.
type EntryError struct {
	Name, Why string
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("archive entry %.200q is refused: %s", e.Name, e.Why)
}

// ErrArchive says that what should be an archive is none, or breaks off.
var ErrArchive = errors.New("this is no whole tar archive")

// maxDirs bounds the directories of one archive, whose modes are set last.
const maxDirs = 1 << 20

// Unpack unpacks an archive into dir. Files that are there are replaced.
// Entries that would lie outside, devices and pipes are refused, and so are
// names that a link leads outside.
func Unpack(ctx context.Context, dir *os.Root, r io.Reader, opts UnpackOptions) (done Packed, err error) {
	u := &unpacker{dir: dir, UnpackOptions: opts, buf: make([]byte, copyChunk)}
	in := tar.NewReader(r)
	for {
		if ctx.Err() != nil {
			return u.done, context.Cause(ctx)
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return u.done, u.finish()
		}
		if err != nil {
			return u.done, fmt.Errorf("%w: %w", ErrArchive, err)
		}
		if err := u.entry(h, in); err != nil {
			return u.done, err
		}
	}
}

// UnpackOptions say what an archive may do.
type UnpackOptions struct {
	Owners bool     // files get the owners of the archive
	Setuid bool     // and its setuid and setgid bits
	Keep   []string // names below which nothing is unpacked, whatever links there are
}

type unpacker struct {
	UnpackOptions
	dir  *os.Root
	buf  []byte
	dirs []*tar.Header
	done Packed
}

// mayChange refuses what is kept, by where the entry's directory really is, or
// will be; a directory itself by where a link in its place leads.
func (u *unpacker) mayChange(h *tar.Header) error {
	if len(u.Keep) == 0 {
		return nil
	}
	top, err := realDir(u.dir, ".")
	if err != nil {
		return err
	}
	dir, rest := h.Name, ""
	at, err := realDir(u.dir, dir)
	if h.Typeflag != tar.TypeDir || err != nil { // its name is what changes
		dir, rest = path.Dir(h.Name), path.Base(h.Name)
		at, err = realDir(u.dir, dir)
	}
	for ; dir != "." && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)); at, err = realDir(u.dir, dir) {
		dir, rest = path.Dir(dir), path.Join(path.Base(dir), rest)
	}
	if err != nil {
		return err
	}
	full := path.Join(at, rest)
	for _, kept := range u.Keep {
		if kept = path.Join(top, kept); full == kept || strings.HasPrefix(full, kept+"/") {
			return &EntryError{h.Name, "it is not the archive's to change"}
		}
	}
	return nil
}

// realDir is where a directory is, by the kernel's own account.
func realDir(root *os.Root, name string) (string, error) {
	dir, err := root.OpenRoot(name)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return Real(f)
}

// entryName checks a name and makes it relative.
func entryName(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return "", &EntryError{name, "its name is absolute"}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", &EntryError{name, "its name climbs out of the archive"}
		}
	}
	if strings.ContainsRune(name, 0) || name == "" {
		return "", &EntryError{name, "it has no proper name"}
	}
	return path.Clean(name), nil
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	h.Name = name
	if err := u.mayChange(h); err != nil {
		return err
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(h)
	case tar.TypeReg:
		err = u.file(h, r)
	case tar.TypeSymlink:
		if err = u.clear(name); err == nil {
			err = u.dir.Symlink(h.Linkname, name)
		}
		if err == nil && u.Owners {
			err = u.dir.Lchown(name, h.Uid, h.Gid)
		}
	case tar.TypeLink:
		err = u.link(h)
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return &EntryError{name, "only files, directories and links are unpacked"}
	}
	u.done.Entries++
	return err
}

// parents makes a directory and those on the way to it. None is made where a link
// leads that is there: nobody has looked whose that place is.
func (u *unpacker) parents(name string) error {
	info, err := u.dir.Stat(name)
	if err == nil && info.IsDir() {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	err = u.dir.Mkdir(name, 0o755)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	switch info, lerr := u.dir.Lstat(name); {
	case lerr != nil:
		return lerr
	case info.IsDir(): // somebody was faster
		return nil
	case info.Mode().Type() == fs.ModeSymlink:
		return &EntryError{name, "it is a link that leads nowhere"}
	}
	return err
}

// clear removes what is in an entry's place; a directory only if it is empty.
func (u *unpacker) clear(name string) error {
	if name == "." {
		return &EntryError{name, "it would replace the directory itself"}
	}
	if err := u.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (u *unpacker) directory(h *tar.Header) error {
	if info, err := u.dir.Stat(h.Name); err != nil || !info.IsDir() {
		if err := u.clear(h.Name); err != nil {
			return err
		}
		if err := u.dir.Mkdir(h.Name, 0o700); err != nil {
			return err
		}
	}
	if len(u.dirs) == maxDirs {
		return &EntryError{h.Name, fmt.Sprintf("the archive has more than %d directories", maxDirs)}
	}
	u.dirs = append(u.dirs, h)
	return nil
}

func (u *unpacker) file(h *tar.Header, r io.Reader) error {
	if err := u.clear(h.Name); err != nil {
		return err
	}
	f, err := u.dir.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(onlyWriter{f}, onlyReader{r}, u.buf)
	u.done.Bytes += n
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if err == nil && u.Owners {
		err = f.Chown(h.Uid, h.Gid)
	}
	if err == nil {
		err = f.Chmod(u.bits(h))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.dir.Chtimes(h.Name, time.Time{}, h.ModTime)
}

// bits are those of an entry's mode that are kept.
func (u *unpacker) bits(h *tar.Header) fs.FileMode {
	kept := fs.ModePerm | fs.ModeSticky
	if u.Setuid {
		kept |= fs.ModeSetuid | fs.ModeSetgid
	}
	return h.FileInfo().Mode() & kept
}

// link gives a file that is below the directory another name.
func (u *unpacker) link(h *tar.Header) error {
	target, err := entryName(h.Linkname)
	if err != nil {
		return &EntryError{h.Name, "it is a link to something outside of the archive"}
	}
	if info, err := u.dir.Lstat(target); err != nil || !info.Mode().IsRegular() {
		return &EntryError{h.Name, "it is a link to what is no file of the archive"}
	}
	if err := u.clear(h.Name); err != nil {
		return err
	}
	return u.dir.Link(target, h.Name)
}

// finish gives directories their modes and times, the innermost first.
func (u *unpacker) finish() error {
	for _, h := range slices.Backward(u.dirs) {
		if err := u.mayChange(h); err != nil { // a link has taken its place
			return err
		}
		if u.Owners {
			if err := u.dir.Chown(h.Name, h.Uid, h.Gid); err != nil {
				return err
			}
		}
		if err := u.dir.Chmod(h.Name, u.bits(h)); err != nil {
			return err
		}
		if err := u.dir.Chtimes(h.Name, time.Time{}, h.ModTime); err != nil {
			return err
		}
	}
	return nil
}
