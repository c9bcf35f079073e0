// Package ext4 makes the immutable root file system of an image. mke2fs lays
// it out and copies the contents; what a host's file system cannot hold or
// must not (owners without root, setuid bits, devices, times of change) is
// then written into the inodes directly. The bytes depend on the tree alone.
package ext4

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/tree"
)

// Config is one file system to make.
type Config struct {
	Tree *tree.Tree
	Dir  string // an empty directory on the file system of Path
	Path string // of the image to make
	Name string // what its UUID is made of
	// Run runs mke2fs with arguments.
	Run func(ctx context.Context, args ...string) error
}

// Epoch is the time of change of every file: a host cannot set it, and equal
// trees are to make equal bytes.
var Epoch = time.Unix(1_700_000_000, 0)

const (
	blockSize = 4096
	journalMB = 16
	// maxBlocks is what the guest can grow the file system to: 2 TiB.
	maxBlocks = 1 << 29
	minBytes  = 64 << 20
	// bytesPerInode is mke2fs's own for ordinary disks: what a group has, the
	// groups that growing adds will have, too.
	bytesPerInode = 16384
)

// Estimate is how many bytes the image of a tree takes, holes left out.
func Estimate(t *tree.Tree) int64 {
	c := counted(t)
	return c.blocks*blockSize + int64(c.inodes)*int64(c.inodeSize()) + (journalMB+8)<<20
}

// Make writes the file system. What it leaves behind when it fails is in Dir
// and at Path.
func Make(ctx context.Context, cfg Config) error {
	c := counted(cfg.Tree)
	if err := cfg.Tree.Write(ctx, cfg.Dir); err != nil {
		return fmt.Errorf("lay out the root: %w", err)
	}
	// A tenth is left for what the guest writes before it grows the file system.
	size := int64(float64(Estimate(cfg.Tree))*1.1) + 16<<20
	size = max(size, minBytes)
	size = (size + 1<<20 - 1) >> 20 << 20
	inodes := max(int64(c.inodes)*5/4+1024, size/bytesPerInode)
	if inodes > math.MaxInt32 {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the image has %d files, more than a file system takes", c.inodes).
			With(fleet.DetailReason, "image_too_large").With(fleet.DetailLimit, "1.7 billion files").
			With(fleet.DetailRemedy, "make the image smaller")
	}
	sum := sha256.Sum256([]byte("fuse image " + cfg.Name))
	uuid := fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	err := cfg.Run(ctx, "-q", "-F", "-t", "ext4", "-b", fmt.Sprint(blockSize), "-I", fmt.Sprint(c.inodeSize()), "-m", "0",
		"-N", fmt.Sprint(inodes),
		"-O", "^huge_file,^orphan_file,64bit,metadata_csum,resize_inode", "-J", fmt.Sprintf("size=%d", journalMB),
		"-U", uuid, "-L", "fuse-root", "-d", cfg.Dir,
		"-E", fmt.Sprintf("hash_seed=%s,lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0,resize=%d", uuid, maxBlocks),
		cfg.Path, fmt.Sprintf("%dM", size>>20))
	if err != nil {
		return err
	}
	if err := patch(ctx, cfg.Path, cfg.Tree.Root); err != nil {
		return fmt.Errorf("write owners and modes: %w", err)
	}
	return nil
}

// count is what a tree needs of a file system.
type count struct {
	inodes int
	blocks int64
	xattrs int // bytes of the largest set
}

func counted(t *tree.Tree) count {
	var c count
	seen := map[*tree.Node]bool{}
	c.add(t.Root, seen)
	return c
}

func (c *count) add(n *tree.Node, seen map[*tree.Node]bool) {
	if seen[n] {
		return
	}
	c.inodes++
	c.xattrs = max(c.xattrs, tree.XattrBytes(n.Xattrs))
	if !n.IsDir() {
		seen[n] = true
		c.blocks += (n.Size + blockSize - 1) / blockSize
		if len(n.Target) >= 60 { // shorter ones lie in the inode
			c.blocks++
		}
		return
	}
	bytes := 0
	for _, name := range n.Names() {
		bytes += len(name) + 16
		c.add(n.Child(name), seen)
	}
	c.blocks += int64(bytes)/blockSize*5/4 + 1
}

// inodeSize leaves room for extended attributes within the inodes.
func (c count) inodeSize() int {
	size := 256
	for size < 2048 && c.xattrs > size-inodeUsed {
		size *= 2
	}
	return size
}
