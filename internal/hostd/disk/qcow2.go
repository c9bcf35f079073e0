// Package disk makes the disks of VMs: qcow2 overlays over an immutable root
// filesystem, and looks at the room there is for them.
package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Geometry of an overlay. Clusters of 64 KiB are qemu-img's default.
const (
	clusterBits = 16
	cluster     = 1 << clusterBits
	l2Covers    = cluster / 8 * cluster // bytes that one L1 entry stands for
	headerSize  = 104
	maxBacking  = 1023 // of the format
	// MaxSize is the largest disk, in bytes: what the root filesystem can
	// grow to.
	MaxSize = 2 << 40
)

// Formats of what an overlay lies on.
const (
	Raw   = "raw"
	Qcow2 = "qcow2"
)

// CreateOverlay writes an empty qcow2 of size bytes at path whose contents are
// those of the raw file backing. It is not synced: a disk whose VM never ran
// is worth nothing.
func CreateOverlay(path, backing string, size int64) (*os.File, error) {
	return CreateOn(path, backing, Raw, size)
}

// CreateOn is CreateOverlay over a file of any format.
func CreateOn(path, backing, format string, size int64) (*os.File, error) {
	head, l1Clusters, err := overlayHeader(backing, format, size)
	if err != nil {
		return nil, fmt.Errorf("create disk: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create disk: %w", err)
	}
	refTable := binary.BigEndian.AppendUint64(nil, 2*cluster)
	var refs []byte
	for range 3 + l1Clusters {
		refs = binary.BigEndian.AppendUint16(refs, 1)
	}
	_, e1 := f.WriteAt(head, 0)
	_, e2 := f.WriteAt(refTable, cluster)
	_, e3 := f.WriteAt(refs, 2*cluster)
	e4 := f.Truncate((3 + l1Clusters) * cluster) // the L1 table is empty
	if err := errors.Join(e1, e2, e3, e4); err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return nil, fmt.Errorf("create disk: %w", err)
	}
	return f, nil
}

// overlayHeader is the first cluster: the header, the extension that names
// the backing file's format, and its path.
func overlayHeader(backing, format string, size int64) (head []byte, l1Clusters int64, err error) {
	if size <= 0 || size > MaxSize || size%512 != 0 {
		return nil, 0, fmt.Errorf("a size of %d bytes is not between 512 and %d", size, int64(MaxSize))
	}
	if !filepath.IsAbs(backing) || len(backing) > maxBacking {
		return nil, 0, fmt.Errorf("the path of the root filesystem must be absolute and at most %d bytes long: %s", maxBacking, backing)
	}
	l1 := (size + l2Covers - 1) / l2Covers
	l1Clusters = (l1*8 + cluster - 1) / cluster
	be := binary.BigEndian
	b := []byte("QFI\xfb")
	b = be.AppendUint32(b, 3)
	b = be.AppendUint64(b, headerSize+24) // backing file name: offset
	b = be.AppendUint32(b, uint32(len(backing)))
	b = be.AppendUint32(b, clusterBits)
	b = be.AppendUint64(b, uint64(size))
	b = be.AppendUint32(b, 0) // no encryption
	b = be.AppendUint32(b, uint32(l1))
	b = be.AppendUint64(b, 3*cluster)
	b = be.AppendUint64(b, cluster)
	b = be.AppendUint32(b, 1) // refcount table: clusters
	b = be.AppendUint32(b, 0) // snapshots
	b = be.AppendUint64(b, 0)
	b = be.AppendUint64(b, 0) // incompatible, compatible, autoclear features
	b = be.AppendUint64(b, 0)
	b = be.AppendUint64(b, 0)
	b = be.AppendUint32(b, 4) // refcounts of 16 bits
	b = be.AppendUint32(b, headerSize)
	b = be.AppendUint32(b, 0xe2792aca) // extension: format of the backing file
	b = be.AppendUint32(b, uint32(len(format)))
	b = append(b, (format + "\x00\x00\x00\x00\x00\x00\x00")[:8]...)
	b = be.AppendUint64(b, 0) // end of extensions
	return append(b, backing...), l1Clusters, nil
}

// Size is the size in bytes of the disk that an overlay is.
func Size(f *os.File) (int64, error) {
	var head [32]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0, fmt.Errorf("read the header of a disk: %w", err)
	}
	if string(head[:4]) != "QFI\xfb" {
		return 0, fmt.Errorf("%s is no disk of ours", f.Name())
	}
	return int64(binary.BigEndian.Uint64(head[24:])), nil
}
