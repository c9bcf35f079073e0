package image

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/fusevm/fuse/internal/fleet"
)

func lz4Frame(blocks ...[]byte) []byte {
	out := binary.LittleEndian.AppendUint32(nil, lz4Magic)
	for _, b := range blocks {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(b)))
		out = append(out, b...)
	}
	return out
}

func TestUnLZ4(t *testing.T) {
	long := append([]byte{0xf0, 255, 255, 0}, bytes.Repeat([]byte("z"), 15+255+255)...)
	for _, c := range []struct {
		name string
		in   []byte
		want string
		bad  bool
	}{
		{"literals", lz4Frame([]byte("\x50hello")), "hello", false},
		{"overlapping match", lz4Frame([]byte("\x12a\x01\x00\x10b")), "aaaaaaab", false},
		{"long literals", lz4Frame(long), strings.Repeat("z", 525), false},
		{"two blocks", lz4Frame([]byte("\x10a"), []byte("\x10b")), "ab", false},
		{"size field at the end", append(lz4Frame([]byte("\x10a")), 9, 9, 9, 9), "a", false},
		{"no magic", []byte("hello"), "", true},
		{"match before the start", lz4Frame([]byte("\x10a\x05\x00")), "", true},
		{"zero offset", lz4Frame([]byte("\x10a\x00\x00")), "", true},
		{"cut literals", lz4Frame([]byte("\x50hi")), "", true},
		{"cut length", lz4Frame([]byte("\xf0\xff")), "", true},
		{"cut offset", lz4Frame([]byte("\x10a\x01")), "", true},
	} {
		got, err := unLZ4(c.in, 1<<20)
		if string(got) != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %.40q, %v", c.name, got, err)
		}
	}
	if _, err := unLZ4(lz4Frame([]byte("\x12a\x01\x00\x10b")), 4); err == nil {
		t.Error("the limit was not kept")
	}
}

func FuzzUnLZ4(f *testing.F) {
	f.Add(lz4Frame([]byte("\x12a\x01\x00\x10b")))
	f.Add(lz4Frame([]byte{0xff, 255, 255, 1}))
	f.Fuzz(func(t *testing.T, in []byte) {
		if out, err := unLZ4(in, 1<<16); err == nil && len(out) > 1<<16 {
			t.Errorf("%d bytes of output", len(out))
		}
	})
}

func TestUnpackKnowsEachCompression(t *testing.T) {
	text := strings.Repeat("kernel ", 100)
	var gz, x, zs bytes.Buffer
	gw := gzip.NewWriter(&gz)
	_, _ = gw.Write([]byte(text))
	_ = gw.Close()
	xw, err := xz.NewWriter(&x)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = xw.Write([]byte(text))
	_ = xw.Close()
	zw, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	zenc := zw.EncodeAll([]byte(text), nil)
	for name, in := range map[string][]byte{
		"gzip":          gz.Bytes(),
		"gzip and size": binary.LittleEndian.AppendUint32(gz.Bytes(), uint32(len(text))),
		"xz":            x.Bytes(),
		"zstd":          zenc,
		"zstd and size": binary.LittleEndian.AppendUint32(bytes.Clone(zenc), uint32(len(text))),
		"lz4":           lz4Frame(append([]byte{0xf0, 255, 255, 175}, text...)),
	} {
		if got, err := unpack(in); err != nil || string(got) != text {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if _, err := unpack([]byte("what")); err == nil || !strings.Contains(err.Error(), "77 68 61 74") {
		t.Errorf("unknown compression: %v", err)
	}
}

func bzImage(payload []byte) []byte {
	b := make([]byte, 1024)
	copy(b[0x202:], "HdrS")
	b[0x1f1] = 1
	binary.LittleEndian.PutUint16(b[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(b[0x248:], 0)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return slices.Concat(b, payload)
}

func TestBzPayload(t *testing.T) {
	ok := bzImage([]byte("payload"))
	if got, err := bzPayload(ok); err != nil || string(got) != "payload" {
		t.Errorf("got %q, %v", got, err)
	}
	old := bytes.Clone(ok)
	binary.LittleEndian.PutUint16(old[0x206:], 0x207)
	for name, in := range map[string][]byte{"short": ok[:100], "cut off": ok[:len(ok)-1], "old protocol": old, "no magic": make([]byte, 2048)} {
		if _, err := bzPayload(in); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func FuzzBootable(f *testing.F) {
	f.Add(bzImage([]byte("payload")))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if out, err := bootable(in, fleet.ArchAMD64); err == nil && !isELF(out) {
			t.Error("took a kernel that is no ELF file")
		}
	})
}

func TestPVHNote(t *testing.T) {
	note := func(name string, kind uint32, desc string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(len(name)+1))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
		b = binary.LittleEndian.AppendUint32(b, kind)
		b = append(b, name+"\x00"...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		b = append(b, desc...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		return b
	}
	for name, c := range map[string]struct {
		in   []byte
		want bool
	}{
		"first":       {note("Xen", 18, "addr"), true},
		"after one":   {append(note("GNU", 3, "12345"), note("Xen", 18, "addr")...), true},
		"another":     {note("Xen", 5, "addr"), false},
		"cut":         {note("Xen", 18, "addr")[:14], false},
		"huge length": {[]byte{255, 255, 255, 255, 255, 255, 255, 255, 18, 0, 0, 0, 'X', 'e', 'n', 0}, false},
		"empty":       {nil, false},
	} {
		if got := hasPVHNote(c.in); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestModulesThatAreNotThere(t *testing.T) {
	tree, err := openModules(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tree.order(bootModules, nil); err != nil || len(got) != 0 {
		t.Errorf("a kernel with everything built in: %v, %v", got, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "virtio_pci.ko"), []byte("\x7fELFjunk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if tree, err = openModules(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.order(bootModules, nil); err == nil || !strings.Contains(err.Error(), "virtio_pci") {
		t.Errorf("a damaged module: %v", err)
	}
}
