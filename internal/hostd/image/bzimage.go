package image

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxKernel bounds an unpacked kernel.
const maxKernel = 512 << 20

// bootable returns the form of a kernel that the machine boots fastest: on
// amd64 the ELF vmlinux inside a bzImage (entered by PVH, it skips the
// decompressor, about 2 s under TCG), on arm64 the uncompressed Image.
func bootable(kernel []byte, arch string) ([]byte, error) {
	if isELF(kernel) {
		return kernel, checkPVH(kernel, arch)
	}
	if arch == fleet.ArchARM64 {
		if bytes.HasPrefix(kernel, []byte{0x1f, 0x8b}) {
			return unpack(kernel)
		}
		return kernel, nil
	}
	payload, err := bzPayload(kernel)
	if err != nil {
		return nil, err
	}
	out, err := unpack(payload)
	if err != nil {
		return nil, fmt.Errorf("unpack bzImage: %w", err)
	}
	if !isELF(out) {
		return nil, fmt.Errorf("unpack bzImage: the payload is no ELF file")
	}
	return out, checkPVH(out, arch)
}

// bzPayload finds the compressed kernel by the fields payload_offset and
// payload_length of the x86 boot protocol (2.08 and newer).
func bzPayload(b []byte) ([]byte, error) {
	if len(b) < 0x260 || string(b[0x202:0x206]) != "HdrS" {
		return nil, fmt.Errorf("the kernel is neither an ELF file nor a bzImage")
	}
	if v := binary.LittleEndian.Uint16(b[0x206:]); v < 0x208 {
		return nil, fmt.Errorf("the bzImage has boot protocol %#x, 0x208 or newer is needed", v)
	}
	setup := int64(b[0x1f1])
	if setup == 0 {
		setup = 4
	}
	from := (setup+1)*512 + int64(binary.LittleEndian.Uint32(b[0x248:]))
	to := from + int64(binary.LittleEndian.Uint32(b[0x24c:]))
	if to > int64(len(b)) || from >= to {
		return nil, fmt.Errorf("the bzImage is cut off: its payload ends at %d, the file at %d", to, len(b))
	}
	return b[from:to], nil
}

// unpack undoes whichever compression b starts with.
func unpack(b []byte) ([]byte, error) {
	var r io.Reader
	var err error
	switch {
	case bytes.HasPrefix(b, []byte{0x02, 0x21, 0x4c, 0x18}):
		return unLZ4(b, maxKernel)
	case bytes.HasPrefix(b, []byte{0x1f, 0x8b}):
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			z.Multistream(false) // the kernel appends a size field
			r = z
		}
	case bytes.HasPrefix(b, []byte("\xfd7zXZ\x00")):
		r, err = xz.ReaderConfig{SingleStream: true}.NewReader(bytes.NewReader(b))
	case bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(bytes.NewReader(zstdFrame(b)), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxKernel)); err == nil {
			defer z.Close()
			r = z
		}
	case bytes.HasPrefix(b, []byte("BZh")):
		r = bzip2.NewReader(bytes.NewReader(b))
	default:
		return nil, fmt.Errorf("unknown compression (starts with % x)", b[:min(len(b), 4)])
	}
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(r, maxKernel))
	if err != nil {
		return nil, err
	}
	return out, nil
}

// zstdFrame cuts the four-byte size that the kernel's build appends and that a
// strict decoder would take for another frame.
func zstdFrame(b []byte) []byte {
	var h zstd.Header
	if h.Decode(b) == nil && h.HasFCS && len(b) > 4 && uint64(binary.LittleEndian.Uint32(b[len(b)-4:])) == h.FrameContentSize {
		return b[:len(b)-4]
	}
	return b
}

func isELF(b []byte) bool { return bytes.HasPrefix(b, []byte(elf.ELFMAG)) }

// checkPVH refuses an x86 kernel that QEMU could not enter directly.
func checkPVH(b []byte, arch string) error {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("read vmlinux: %w", err)
	}
	if arch != fleet.ArchAMD64 {
		return nil
	}
	if f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("the kernel is built for %s, this host needs x86-64", f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		if note, err := io.ReadAll(io.LimitReader(p.Open(), 1<<20)); err == nil && hasPVHNote(note) {
			return nil
		}
	}
	return fmt.Errorf("the kernel has no PVH entry (CONFIG_PVH)")
}

// hasPVHNote looks for XEN_ELFNOTE_PHYS32_ENTRY, the note that holds the PVH
// entry point.
func hasPVHNote(note []byte) bool {
	for len(note) >= 12 {
		nameLen := int64(binary.LittleEndian.Uint32(note))
		descLen := int64(binary.LittleEndian.Uint32(note[4:]))
		kind := binary.LittleEndian.Uint32(note[8:])
		next := 12 + (nameLen+3)&^3 + (descLen+3)&^3
		if next > int64(len(note)) {
			return false
		}
		if kind == 18 && nameLen == 4 && string(note[12:15]) == "Xen" {
			return true
		}
		note = note[next:]
	}
	return false
}
