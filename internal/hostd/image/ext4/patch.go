package ext4

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/hostd/image/tree"
)

var le = binary.LittleEndian

// Of the on-disk format, as the kernel's documentation of ext4 has it.
const (
	rootInode     = 2
	superOffset   = 1024
	superMagic    = 0xef53
	extentMagic   = 0xf30a
	flagExtents   = 0x80000
	inodeUsed     = tree.InodeFields
	xattrMagic    = 0xea020000
	incompatCsum  = 0x2000 // the checksum seed is stored
	dirTailSize   = 12
	dirTailType   = 0xde
	maxDirBlocks  = 1 << 22
	maxExtentDeep = 5
)

// image is a file system that is being patched.
type image struct {
	f              *os.File
	seed           uint32
	inodes         uint32
	inodesPerGroup uint32
	inodeSize      int
	tables         []int64 // offset of each group's inode table
	done           map[uint32]bool
}

// patch writes what the tree says of each file into its inode, and the same
// time of change into every inode in use.
func patch(ctx context.Context, path string, root *tree.Node) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	img := &image{f: f, done: map[uint32]bool{}}
	err = img.open()
	if err == nil {
		err = img.node(ctx, rootInode, root)
	}
	if err == nil {
		err = img.settle()
	}
	return errors.Join(err, f.Sync(), f.Close())
}

func (m *image) open() error {
	sb := make([]byte, 1024)
	if _, err := m.f.ReadAt(sb, superOffset); err != nil {
		return err
	}
	if le.Uint16(sb[56:]) != superMagic || 1024<<le.Uint32(sb[24:]) != blockSize {
		return errors.New("mke2fs made no ext4 with blocks of 4096 bytes")
	}
	m.inodes, m.inodesPerGroup, m.inodeSize = le.Uint32(sb[0:]), le.Uint32(sb[40:]), int(le.Uint16(sb[88:]))
	m.seed = crc(^uint32(0), sb[104:120])
	if le.Uint32(sb[96:])&incompatCsum != 0 {
		m.seed = le.Uint32(sb[0x270:])
	}
	descSize := int(le.Uint16(sb[254:]))
	if m.inodesPerGroup == 0 || m.inodeSize < inodeUsed || descSize < 64 {
		return errors.New("mke2fs made a file system without the features that were asked for")
	}
	groups := int((m.inodes + m.inodesPerGroup - 1) / m.inodesPerGroup)
	desc := make([]byte, groups*descSize)
	if _, err := m.f.ReadAt(desc, blockSize); err != nil {
		return err
	}
	for d := range slices.Chunk(desc, descSize) {
		block := int64(le.Uint32(d[8:])) | int64(le.Uint32(d[40:]))<<32
		m.tables = append(m.tables, block*blockSize)
	}
	return nil
}

// crc is CRC-32C without the inversions that Go adds at both ends.
func crc(seed uint32, p []byte) uint32 {
	return ^crc32.Update(^seed, castagnoli, p)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (m *image) offset(ino uint32) (int64, error) {
	if ino == 0 || ino > m.inodes {
		return 0, fmt.Errorf("inode %d is out of range", ino)
	}
	g, i := (ino-1)/m.inodesPerGroup, (ino-1)%m.inodesPerGroup
	return m.tables[g] + int64(i)*int64(m.inodeSize), nil
}

func (m *image) read(ino uint32) ([]byte, error) {
	off, err := m.offset(ino)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, m.inodeSize)
	_, err = m.f.ReadAt(raw, off)
	return raw, err
}

// inodeSeed is the start of every checksum of an inode's own blocks.
func (m *image) inodeSeed(ino uint32, raw []byte) uint32 {
	return crc(crc(m.seed, le.AppendUint32(nil, ino)), raw[100:104])
}

func (m *image) write(ino uint32, raw []byte) error {
	off, err := m.offset(ino)
	if err != nil {
		return err
	}
	le.PutUint16(raw[124:], 0)
	le.PutUint16(raw[130:], 0)
	sum := crc(m.inodeSeed(ino, raw), raw)
	le.PutUint16(raw[124:], uint16(sum))
	le.PutUint16(raw[130:], uint16(sum>>16))
	_, err = m.f.WriteAt(raw, off)
	return err
}

// node patches an inode and, of a directory, all below it.
func (m *image) node(ctx context.Context, ino uint32, n *tree.Node) error {
	if m.done[ino] {
		return nil
	}
	m.done[ino] = true
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	raw, err := m.read(ino)
	if err != nil {
		return err
	}
	if n.IsDir() {
		if err := m.dir(ctx, ino, raw, n); err != nil {
			return err
		}
	}
	describe(raw, n)
	if err := putXattrs(raw, n.Xattrs); err != nil {
		return err
	}
	return m.write(ino, raw)
}

// Types of files in an inode's mode and in a directory's entry.
var types = map[fs.FileMode]struct {
	mode  uint16
	entry byte
}{
	0:                                 {0x8000, 1},
	fs.ModeDir:                        {0x4000, 2},
	fs.ModeDevice | fs.ModeCharDevice: {0x2000, 3},
	fs.ModeDevice:                     {0x6000, 4},
	fs.ModeNamedPipe:                  {0x1000, 5},
	fs.ModeSymlink:                    {0xa000, 7},
}

func describe(raw []byte, n *tree.Node) {
	mode := uint16(n.Mode)
	if n.Type == fs.ModeSymlink {
		mode = 0o777
	}
	le.PutUint16(raw[0:], types[n.Type].mode|mode)
	le.PutUint16(raw[2:], uint16(n.UID))
	le.PutUint16(raw[120:], uint16(n.UID>>16))
	le.PutUint16(raw[24:], uint16(n.GID))
	le.PutUint16(raw[122:], uint16(n.GID>>16))
	le.PutUint16(raw[128:], inodeUsed-128)
	sec, extra := stamp(n.Mtime.Unix(), n.Mtime.Nanosecond())
	le.PutUint32(raw[8:], sec) // access
	le.PutUint32(raw[140:], extra)
	le.PutUint32(raw[16:], sec)
	le.PutUint32(raw[136:], extra)
	if special(n) {
		le.PutUint32(raw[32:], le.Uint32(raw[32:])&^flagExtents)
		clear(raw[40:100])
		if n.Type&fs.ModeDevice != 0 {
			if n.Major < 256 && n.Minor < 256 {
				le.PutUint32(raw[40:], n.Major<<8|n.Minor)
			} else {
				le.PutUint32(raw[44:], n.Minor&0xff|n.Major<<8|n.Minor&^0xff<<12)
			}
		}
	}
}

// stamp encodes a time; those that ext4 cannot hold become its nearest.
func stamp(sec int64, nsec int) (low, extra uint32) {
	sec = min(max(sec, -1<<31), 1<<34-1<<31-1)
	epoch := uint32((sec - int64(int32(sec))) >> 32 & 3)
	return uint32(sec), uint32(nsec)<<2 | epoch
}

func special(n *tree.Node) bool { return n.Type&(fs.ModeDevice|fs.ModeNamedPipe) != 0 }

// dir patches what a directory holds, and the kinds in its entries.
func (m *image) dir(ctx context.Context, ino uint32, raw []byte, n *tree.Node) error {
	blocks, err := m.blocks(raw)
	if err != nil {
		return err
	}
	seed := m.inodeSeed(ino, raw)
	block := make([]byte, blockSize)
	for _, b := range blocks {
		if _, err := m.f.ReadAt(block, b*blockSize); err != nil {
			return err
		}
		changed, err := m.entries(ctx, block, n)
		if err != nil {
			return err
		}
		if !changed {
			continue
		}
		tail := block[blockSize-dirTailSize:]
		if tail[7] == dirTailType && le.Uint32(tail) == 0 {
			le.PutUint32(tail[8:], crc(seed, block[:blockSize-dirTailSize]))
		}
		if _, err := m.f.WriteAt(block, b*blockSize); err != nil {
			return err
		}
	}
	return nil
}

func (m *image) entries(ctx context.Context, block []byte, n *tree.Node) (changed bool, err error) {
	for at := 0; at+8 <= len(block); {
		length := int(le.Uint16(block[at+4:]))
		if length < 8 || at+length > len(block) {
			return false, errors.New("a directory block cannot be read")
		}
		e := block[at : at+length]
		at += length
		ino, size := le.Uint32(e), int(e[6])
		if ino == 0 || size == 0 || 8+size > length {
			continue
		}
		child := n.Child(string(e[8 : 8+size]))
		if child == nil { // ".", "..", "lost+found"
			continue
		}
		if want := types[child.Type].entry; e[7] != want {
			e[7], changed = want, true
		}
		if err := m.node(ctx, ino, child); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// blocks are the blocks of a directory, by its extents.
func (m *image) blocks(raw []byte) ([]int64, error) {
	if le.Uint32(raw[32:])&flagExtents == 0 {
		return nil, errors.New("a directory without extents")
	}
	return m.extents(raw[40:100], maxExtentDeep)
}

func (m *image) extents(node []byte, deep int) ([]int64, error) {
	count := int(le.Uint16(node[2:]))
	if le.Uint16(node) != extentMagic || 12+12*count > len(node) || deep == 0 {
		return nil, errors.New("the extents of a directory cannot be read")
	}
	leaf := le.Uint16(node[6:]) == 0
	var out []int64
	for i := range count {
		e := node[12+12*i:]
		if leaf {
			first := int64(le.Uint16(e[6:]))<<32 | int64(le.Uint32(e[8:]))
			for b := range int64(le.Uint16(e[4:])) {
				out = append(out, first+b)
			}
		} else {
			below := make([]byte, blockSize)
			if _, err := m.f.ReadAt(below, (int64(le.Uint16(e[8:]))<<32|int64(le.Uint32(e[4:])))*blockSize); err != nil {
				return nil, err
			}
			more, err := m.extents(below, deep-1)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		if len(out) > maxDirBlocks {
			return nil, errors.New("a directory is too large")
		}
	}
	return out, nil
}

// settle gives every inode in use the same times of change and birth.
func (m *image) settle() error {
	sec, _ := stamp(Epoch.Unix(), 0)
	table := make([]byte, int(m.inodesPerGroup)*m.inodeSize)
	for g, off := range m.tables {
		if _, err := m.f.ReadAt(table, off); err != nil {
			return err
		}
		first := uint32(g)*m.inodesPerGroup + 1
		for i, raw := range slices.Collect(slices.Chunk(table, m.inodeSize)) {
			ino := first + uint32(i)
			if le.Uint16(raw[26:]) == 0 || ino < 11 && ino != rootInode { // free, or the file system's own
				continue
			}
			if !m.done[ino] { // lost+found
				le.PutUint32(raw[8:], sec)
				le.PutUint32(raw[140:], 0)
				le.PutUint32(raw[16:], sec)
				le.PutUint32(raw[136:], 0)
			}
			le.PutUint32(raw[12:], sec)
			le.PutUint32(raw[132:], 0)
			le.PutUint32(raw[144:], sec)
			le.PutUint32(raw[148:], 0)
			if err := m.write(ino, raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// xattrIndex is the number that stands for the start of an attribute's name.
func xattrIndex(name string) byte {
	if strings.HasPrefix(name, "security.") {
		return 6
	}
	return 1 // user.
}

func round4(n int) int { return (n + 3) &^ 3 }

// putXattrs writes attributes behind the fields of the inode.
func putXattrs(raw []byte, attrs map[string][]byte) error {
	if len(attrs) == 0 {
		return nil
	}
	room := raw[inodeUsed:]
	if tree.XattrBytes(attrs) > len(room) {
		return errors.New("extended attributes do not fit")
	}
	clear(room)
	le.PutUint32(room, xattrMagic)
	entries := room[4:]
	at, end := 0, len(entries)
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		index, rest := xattrIndex(name), tree.XattrRest(name)
		value := attrs[name]
		e := entries[at:]
		e[0], e[1] = byte(len(rest)), index
		if len(value) > 0 {
			end -= round4(len(value))
			copy(entries[end:], value)
			le.PutUint16(e[2:], uint16(end))
		}
		le.PutUint32(e[8:], uint32(len(value)))
		copy(e[16:], rest)
		at += 16 + round4(len(rest))
	}
	return nil
}
