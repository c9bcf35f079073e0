package tree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Room is asked now and then while contents are written, with the bytes that
// are about to be; its error ends the work.
type Room func(next int64) error

// roomEvery is how many bytes are written between two questions for room.
const roomEvery = 16 << 20

// Apply adds a layer, an uncompressed tar archive, above those there are.
func (t *Tree) Apply(ctx context.Context, r io.Reader, room Room) error {
	t.layer++
	s := &spooler{t: t, ctx: ctx, room: room, buf: make([]byte, 256<<10)}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read layer %d: %w", t.layer, err)
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := t.add(h, tr, s); err != nil {
			return err
		}
	}
}

func (t *Tree) add(h *tar.Header, content io.Reader, s *spooler) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	parts, err := split(h.Name)
	if err != nil {
		return err
	}
	base := ""
	if len(parts) > 0 {
		base = strings.Clone(parts[len(parts)-1]) // and not the archive's header with it
	}
	if err := t.count(len(base)); err != nil {
		return err
	}
	if base == "" {
		if h.Typeflag == tar.TypeDir {
			return t.describe(t.Root, h)
		}
		return nil
	}
	if strings.HasPrefix(base, whiteout) {
		return t.whiteout(parts)
	}
	dir, err := t.dir(parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	node, err := t.node(h, content, s, dir.Child(base))
	if err != nil {
		return err
	}
	dir.children[base] = &entry{node, t.layer}
	return nil
}

// whiteout takes away what lower layers have of a name, or all that they have
// in a directory.
func (t *Tree) whiteout(parts []string) error {
	base := parts[len(parts)-1]
	dir, err := t.dir(parts[:len(parts)-1], false)
	if err != nil || dir == nil {
		return err
	}
	name := strings.TrimPrefix(base, whiteout)
	switch {
	case base == opaque:
		t.prune(dir)
		return nil
	case strings.HasPrefix(name, whiteout): // other notes of AUFS
		return nil
	case name == "" || name == "." || name == "..":
		return refused("a whiteout of no name: %.200q", strings.Join(parts, "/"))
	}
	if e := dir.children[name]; e != nil {
		below := e.node.IsDir() && t.prune(e.node)
		if e.layer != t.layer && !below {
			delete(dir.children, name)
		}
	}
	return nil
}

// node makes what an entry describes. A directory that is there already is
// described anew and keeps what it holds.
func (t *Tree) node(h *tar.Header, content io.Reader, s *spooler, there *Node) (*Node, error) {
	n := &Node{}
	switch h.Typeflag {
	case tar.TypeDir:
		if there != nil && there.IsDir() {
			return there, t.describe(there, h)
		}
		n = newDir(0, h.ModTime)
	case tar.TypeReg, tar.TypeGNUSparse, '\x00':
		var err error
		if n.Spool, n.Size, err = s.write(content, h.Size); err != nil {
			return nil, err
		}
	case tar.TypeLink:
		return t.linked(h)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxLink || strings.ContainsRune(h.Linkname, 0) {
			return nil, refused("a symbolic link with a target of %d bytes at %.200q", len(h.Linkname), h.Name)
		}
		if err := t.charge(len(h.Linkname)); err != nil {
			return nil, err
		}
		n.Type, n.Target = fs.ModeSymlink, strings.Clone(h.Linkname)
	case tar.TypeFifo:
		n.Type = fs.ModeNamedPipe
	case tar.TypeChar, tar.TypeBlock:
		// Never made on the host: the finished file system alone has it.
		n.Type = fs.ModeDevice
		if h.Typeflag == tar.TypeChar {
			n.Type |= fs.ModeCharDevice
		}
		if h.Devmajor < 0 || h.Devmajor > 0xfff || h.Devminor < 0 || h.Devminor > 0xfffff {
			return nil, refused("a device numbered %d:%d at %.200q", h.Devmajor, h.Devminor, h.Name)
		}
		n.Major, n.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	default:
		return nil, refused("an entry of the unknown kind %q at %.200q", h.Typeflag, h.Name)
	}
	return n, t.describe(n, h)
}

// linked finds the file that a hard link is another name of.
func (t *Tree) linked(h *tar.Header) (*Node, error) {
	if _, err := split(h.Linkname); err != nil {
		return nil, refused("a hard link at %.200q to %.200q, which is outside", h.Name, h.Linkname)
	}
	n := t.Lookup(h.Linkname)
	if n == nil || n.IsDir() {
		return nil, refused("a hard link at %.200q to %.200q, which is no file of the image", h.Name, h.Linkname)
	}
	return n, nil
}

// describe takes what an archive says of a file beside its content.
func (t *Tree) describe(n *Node, h *tar.Header) error {
	n.Mode = uint32(h.Mode) & 0o7777
	n.UID, n.GID, n.Mtime = id(h.Uid), id(h.Gid), h.ModTime
	var err error
	if n.Xattrs, err = xattrs(h); err != nil {
		return err
	}
	return t.charge(XattrBytes(n.Xattrs))
}

// id is a user or group that the kernel can have; the rest is nobody's.
func id(v int) int {
	const nobody = 65534
	if v < 0 || int64(v) >= 1<<32-1 {
		return nobody
	}
	return v
}

// spooler writes contents into the spool.
type spooler struct {
	t     *Tree
	ctx   context.Context //nolint:containedctx // of one Apply
	room  Room
	since int64 // written since room was asked
	buf   []byte
}

func (s *spooler) write(r io.Reader, size int64) (name string, n int64, err error) {
	if size == 0 {
		return "", 0, nil
	}
	if s.t.bytes+size > s.t.limits.Bytes {
		return "", 0, tooLarge("bytes", s.t.limits.Bytes)
	}
	if err := s.ask(size); err != nil {
		return "", 0, err
	}
	s.t.serial++
	// Directories of a thousand files each stay quick.
	name = filepath.Join(strconv.Itoa(s.t.serial/1000), strconv.Itoa(s.t.serial))
	path := filepath.Join(s.t.spool, name)
	if s.t.serial%1000 == 0 || s.t.serial == 1 {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", 0, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, err
	}
	n, err = s.copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", 0, err
	}
	if n != size { // the archive ends in the middle of it
		return "", 0, io.ErrUnexpectedEOF
	}
	s.t.bytes += n
	return name, n, nil
}

// copy leaves holes for blocks of zeros.
func (s *spooler) copy(f *os.File, r io.Reader) (n int64, err error) {
	for {
		k, err := io.ReadFull(r, s.buf)
		if k > 0 {
			if rerr := s.ask(int64(k)); rerr != nil {
				return n, rerr
			}
			if !zero(s.buf[:k]) {
				if _, werr := f.WriteAt(s.buf[:k], n); werr != nil {
					return n, werr
				}
			}
			n += int64(k)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if err := s.ctx.Err(); err != nil {
				return n, context.Cause(s.ctx)
			}
			return n, f.Truncate(n)
		}
		if err != nil {
			return n, err
		}
	}
}

func zero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func (s *spooler) ask(next int64) error {
	if s.since += next; s.room == nil || s.since < roomEvery {
		return nil
	}
	s.since = 0
	return s.room(max(next, roomEvery))
}

// Write makes the tree's files in the empty directory dir, moving contents out
// of the spool. Owner, mode and times are the builder's: the finished file
// system gets them. Devices are empty files.
func (t *Tree) Write(ctx context.Context, dir string) error {
	w := &writer{ctx: ctx, spool: t.spool, at: map[*Node]string{}}
	return w.dir(t.Root, dir)
}

type writer struct {
	ctx   context.Context //nolint:containedctx // of one Write
	spool string
	at    map[*Node]string // where a file was made first
}

func (w *writer) dir(n *Node, path string) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	for _, name := range n.Names() {
		if err := w.node(n.Child(name), filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) node(n *Node, path string) error {
	if first, ok := w.at[n]; ok {
		return os.Link(first, path)
	}
	switch {
	case n.IsDir():
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		return w.dir(n, path)
	case n.Type == fs.ModeSymlink:
		if err := os.Symlink(n.Target, path); err != nil {
			return err
		}
	case n.Spool != "":
		if err := os.Rename(filepath.Join(w.spool, n.Spool), path); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
	}
	w.at[n] = path
	return nil
}
