package boot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/guestwire"
)

// newRoot is where the root filesystem is mounted before it becomes the root.
const newRoot = "/newroot"

// resizeFS is EXT4_IOC_RESIZE_FS: _IOW('f', 16, __u64).
const resizeFS = 0x40086610

// mountRoot finds the root disk, mounts it and grows its filesystem.
func (m *Machine) mountRoot(ctx context.Context) error {
	device, err := findDisk(ctx, m.Config.Root)
	if err != nil {
		return fmt.Errorf("find root disk: %w", err)
	}
	if err := os.Mkdir(newRoot, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(device, newRoot, "ext4", 0, ""); err != nil {
		return &os.PathError{Op: "mount", Path: device, Err: err}
	}
	if m.Config.Root.Grow {
		return grow(device, newRoot)
	}
	return nil
}

// Disk returns the device of the disk with a serial, waiting for it to appear.
func Disk(ctx context.Context, serial string) (string, error) {
	return findDisk(ctx, guestwire.BootRoot{Serial: serial})
}

// findDisk returns the device of the root, waiting for it to appear.
func findDisk(ctx context.Context, root guestwire.BootRoot) (string, error) {
	if root.Serial == "" {
		device := root.Device
		if device == "" {
			device = "/dev/vda"
		}
		return device, poll(ctx, device, func() bool {
			_, err := os.Stat(device)
			return err == nil
		})
	}
	var device string
	err := poll(ctx, fmt.Sprintf("a disk with serial %q", root.Serial), func() bool {
		device = bySerial("/sys/block", root.Serial)
		return device != ""
	})
	return device, err
}

func bySerial(sysBlock, serial string) string {
	files, err := filepath.Glob(filepath.Join(sysBlock, "*", "serial"))
	if err != nil {
		return ""
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(data)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(f))
		}
	}
	return ""
}

// GrowRoot extends the root filesystem, which is mounted already, to the size
// of its disk.
func GrowRoot(ctx context.Context, root guestwire.BootRoot) error {
	device, err := findDisk(ctx, root)
	if err != nil {
		return fmt.Errorf("find root disk: %w", err)
	}
	return grow(device, "/")
}

// grow extends the ext4 mounted at dir to the size of its device.
func grow(device, dir string) error {
	disk, err := os.Open(device)
	if err != nil {
		return err
	}
	defer disk.Close()
	size, err := disk.Seek(0, 2)
	if err != nil {
		return err
	}
	super := make([]byte, 1024)
	if _, err := disk.ReadAt(super, 1024); err != nil {
		return fmt.Errorf("read superblock: %w", err)
	}
	have, blockSize, err := ext4Size(super)
	if err != nil {
		return err
	}
	want := uint64(size) / blockSize
	if want <= have {
		return nil
	}
	mount, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer mount.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, mount.Fd(), resizeFS, uintptr(unsafe.Pointer(&want))); errno != 0 {
		return fmt.Errorf("grow root filesystem from %d to %d blocks: %w", have, want, errno)
	}
	return nil
}

// ext4Size reads the number and size of blocks from a superblock.
func ext4Size(super []byte) (blocks, blockSize uint64, err error) {
	le := binary.LittleEndian
	if len(super) < 1024 || le.Uint16(super[56:]) != 0xEF53 {
		return 0, 0, errors.New("the root disk holds no ext4 filesystem")
	}
	log := le.Uint32(super[24:])
	if log > 6 {
		return 0, 0, fmt.Errorf("the root filesystem claims blocks of 2^%d KiB", log)
	}
	blocks = uint64(le.Uint32(super[4:]))
	if le.Uint32(super[96:])&0x80 != 0 { // 64bit
		blocks |= uint64(le.Uint32(super[0x150:])) << 32
	}
	return blocks, 1024 << log, nil
}
