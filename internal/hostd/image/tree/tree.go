// Package tree is the file system of a container image, put together in
// memory from its layers. Names are resolved here, as in a root of their own,
// and not by the host's kernel: whatever an archive holds, nothing outside the
// spool directory is touched. Contents lie in the spool, one file each, and
// move into a real directory only when all layers are applied.
package tree

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Limits bound what one image may hold.
type Limits struct {
	Bytes   int64 // of all contents
	Entries int   // files, directories and links
	// Memory is of what is kept in memory: names, targets of links, extended
	// attributes, and entryBytes for each entry.
	Memory int64
}

// DefaultLimits are far above any image that is of use.
var DefaultLimits = Limits{Bytes: 256 << 30, Entries: 4 << 20, Memory: 512 << 20}

const (
	maxName = 255  // of one component; ext4's
	maxPath = 3500 // room is left for the directory that it is made in
	maxLink = 4095 // of a symbolic link's target
	maxHops = 40   // of symbolic links on the way to one file, as in the kernel

	entryBytes = 256 // what an entry takes beside its name

	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// Node is one file. A hard link is the same Node at another name.
type Node struct {
	Type   fs.FileMode // of fs.ModeType; zero for a regular file
	Mode   uint32      // permission, setuid, setgid and sticky bits
	UID    int
	GID    int
	Mtime  time.Time
	Target string // of a symbolic link
	Major  uint32
	Minor  uint32
	Xattrs map[string][]byte
	Size   int64
	Spool  string // name of the content in the spool; empty: no content

	children map[string]*entry
}

// entry is a name in a directory and the layer that it came with.
type entry struct {
	node  *Node
	layer int
}

// Tree is the root and what is known of it.
type Tree struct {
	Root   *Node
	limits Limits
	spool  string
	layer  int
	serial int

	bytes   int64
	entries int
	memory  int64
}

// New returns an empty tree that keeps contents in the directory spool.
func New(spool string, limits Limits) *Tree {
	return &Tree{Root: newDir(0o755, time.Unix(0, 0)), limits: limits, spool: spool}
}

func newDir(mode uint32, mtime time.Time) *Node {
	return &Node{Type: fs.ModeDir, Mode: mode, Mtime: mtime, children: map[string]*entry{}}
}

// Bytes is the size of all contents that were spooled, replaced ones too.
func (t *Tree) Bytes() int64 { return t.bytes }

// Entries counts what the archives held.
func (t *Tree) Entries() int { return t.entries }

// Names are the names in a directory, in order.
func (n *Node) Names() []string {
	out := make([]string, 0, len(n.children))
	for name := range n.children {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Child is the node of a name in a directory, nil if there is none.
func (n *Node) Child(name string) *Node {
	if e := n.children[name]; e != nil {
		return e.node
	}
	return nil
}

// IsDir reports whether the node is a directory.
func (n *Node) IsDir() bool { return n.Type == fs.ModeDir }

// Lookup finds a node by its path, following links but the last; nil if there
// is none.
func (t *Tree) Lookup(name string) *Node {
	parts, err := split(name)
	if err != nil {
		return nil
	}
	if len(parts) == 0 {
		return t.Root
	}
	dir, err := t.dir(parts[:len(parts)-1], false)
	if err != nil || dir == nil {
		return nil
	}
	return dir.Child(parts[len(parts)-1])
}

// split checks the name of an archive's entry and takes it apart. Absolute
// names are names below the root.
func split(name string) ([]string, error) {
	if len(name) > maxPath {
		return nil, refused("a name of %d bytes, more than %d", len(name), maxPath)
	}
	if strings.ContainsRune(name, 0) {
		return nil, refused("a name with a NUL byte: %.80q", name)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, refused("a name that leads out of the image: %.200q", name)
		case len(part) > maxName:
			return nil, refused("a name with a part of %d bytes, more than %d", len(part), maxName)
		default:
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// dir walks to a directory, through symbolic links as a root of its own would,
// and makes what is missing if it may; nil without an error means missing.
func (t *Tree) dir(parts []string, may bool) (*Node, error) {
	at := []*Node{t.Root}
	hops := 0
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		here := at[len(at)-1]
		if part == ".." {
			at = at[:max(1, len(at)-1)]
			continue
		}
		e := here.children[part]
		switch {
		case e == nil && !may:
			return nil, nil
		case e == nil:
			e = &entry{newDir(0o755, time.Unix(0, 0)), t.layer}
			if err := t.count(len(part)); err != nil {
				return nil, err
			}
			here.children[strings.Clone(part)] = e // and not the archive's header with it
			at = append(at, e.node)
		case e.node.IsDir():
			at = append(at, e.node)
		case e.node.Type == fs.ModeSymlink:
			if hops++; hops > maxHops {
				return nil, refused("more than %d symbolic links on the way to one file, the last to %.200q", maxHops, e.node.Target)
			}
			if path.IsAbs(e.node.Target) {
				at = at[:1]
			}
			parts = append(targetParts(e.node.Target), parts...)
		default:
			return nil, refused("a file below %.200q, which is no directory", part)
		}
	}
	return at[len(at)-1], nil
}

func targetParts(target string) []string {
	return slices.DeleteFunc(strings.Split(target, "/"), func(s string) bool { return s == "" || s == "." })
}

// count counts one entry more, with a name of so many bytes.
func (t *Tree) count(name int) error {
	if t.entries++; t.entries > t.limits.Entries {
		return tooLarge("entries", int64(t.limits.Entries))
	}
	return t.charge(name + entryBytes)
}

// charge counts what is kept in memory, of replaced entries too.
func (t *Tree) charge(bytes int) error {
	if t.memory += int64(bytes); t.memory > t.limits.Memory {
		return refused("more than %d MiB of names, link targets and extended attributes", t.limits.Memory>>20).
			With(fleet.DetailLimit, fmt.Sprintf("%d bytes of them, and %d more for each entry", t.limits.Memory, entryBytes)).
			With(fleet.DetailRemedy, "make the image of fewer files, or leave out their extended attributes")
	}
	return nil
}

// prune removes what lower layers put below dir and reports whether the
// current one has anything there.
func (t *Tree) prune(dir *Node) (kept bool) {
	for name, e := range dir.children {
		below := e.node.IsDir() && t.prune(e.node)
		if e.layer == t.layer || below {
			kept = true
			continue
		}
		delete(dir.children, name)
	}
	return kept
}

func refused(format string, args ...any) *fleet.Error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "the image has "+format, args...).
		With(fleet.DetailReason, "image_invalid").
		With(fleet.DetailRemedy, "build the image again with a tool that makes valid layers")
}

func tooLarge(what string, limit int64) *fleet.Error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "the image is too large: more than %d %s", limit, what).
		With(fleet.DetailReason, "image_too_large").
		With(fleet.DetailRemedy, "make the image smaller")
}

// EnsureDir makes sure that a name at the root is a directory, which takes the
// place of anything else.
func (t *Tree) EnsureDir(name string, mode uint32) {
	if n := t.Root.Child(name); n == nil || !n.IsDir() {
		t.Root.children[name] = &entry{newDir(mode, time.Unix(0, 0)), t.layer}
	}
}

// EnsurePath makes a directory that may lie deeper, through links as the guest
// will see them. What cannot be made is left as it is.
func (t *Tree) EnsurePath(name string) {
	if parts, err := split(name); err == nil {
		_, _ = t.dir(parts, true)
	}
}
