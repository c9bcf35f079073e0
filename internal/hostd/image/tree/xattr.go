package tree

import (
	"archive/tar"
	"fmt"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// MaxXattrs is how many bytes the extended attributes of one file may take as
// XattrBytes counts them: they lie in its inode of 2 KiB, behind its fields.
const MaxXattrs = 2048 - InodeFields

// InodeFields is what the fields of an inode take: the old ones and those of the
// larger format that are used.
const InodeFields = 128 + 32

const (
	xattrPrefix  = "SCHILY.xattr."
	maxXattrName = 255 // behind the first dot
)

// xattrs are those of a file that mean something in a guest.
func xattrs(h *tar.Header) (map[string][]byte, error) {
	var out map[string][]byte
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, xattrPrefix)
		// Those of the builder's own overlay or policy mean nothing here.
		if !ok || !strings.HasPrefix(name, "user.") && name != "security.capability" || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		if rest := len(XattrRest(name)); rest == 0 || rest > maxXattrName {
			return nil, refused("an extended attribute with a name of %d bytes behind its first dot at %.200q", rest, h.Name).
				With(fleet.DetailLimit, fmt.Sprintf("1 to %d bytes", maxXattrName))
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[strings.Clone(name)] = []byte(v)
	}
	if got := XattrBytes(out); got > MaxXattrs {
		return nil, refused("extended attributes of %d bytes at %.200q, more than %d", got, h.Name, MaxXattrs).
			With(fleet.DetailLimit, fmt.Sprintf("%d bytes for one file, names and 16 bytes for each included", MaxXattrs)).
			With(fleet.DetailRemedy, "build the image without them, or keep them in a file")
	}
	return out, nil
}

// XattrRest is the part of an attribute's name that is written out: what is
// before it is a number on the disk.
func XattrRest(name string) string {
	_, rest, _ := strings.Cut(name, ".")
	return rest
}

// XattrBytes is what attributes take in an inode.
func XattrBytes(attrs map[string][]byte) int {
	if len(attrs) == 0 {
		return 0
	}
	size := 4 + 4 // magic, and the end of the entries
	for name, v := range attrs {
		size += 16 + round4(len(XattrRest(name))) + round4(len(v))
	}
	return size
}

func round4(n int) int { return (n + 3) &^ 3 }
