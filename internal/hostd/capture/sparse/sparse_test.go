package sparse

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// draw makes a content of runs that are nothing, zero or data.
func draw(t *rapid.T) (data []byte, holes [][2]int) {
	for range rapid.IntRange(0, 12).Draw(t, "runs") {
		n := rapid.OneOf(rapid.IntRange(1, 3*page), rapid.Just(page), rapid.Just(block), rapid.IntRange(block, 3*block)).Draw(t, "length")
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			holes = append(holes, [2]int{len(data), n})
			data = append(data, make([]byte, n)...)
		case 1:
			data = append(data, make([]byte, n)...)
		default:
			data = append(data, bytes.Repeat([]byte{byte(rapid.IntRange(1, 255).Draw(t, "byte"))}, n)...)
		}
	}
	return data, holes
}

func write(t interface{ Fatal(...any) }, dir, name string, data []byte, holes [][2]int) *os.File {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.Write(data)
	}
	for _, h := range holes {
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(h[0]), int64(h[1]))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCopiesAndDigestsTellContentsAndNothingElse(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	rapid.Check(t, func(t *rapid.T) {
		data, holes := draw(t)
		f := write(t, dir, "with-holes", data, holes)
		defer f.Close()
		plain := write(t, dir, "plain", data, nil)
		defer plain.Close()
		a, err1 := Read(ctx, f, nil)
		b, err2 := Read(ctx, plain, nil)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if a != b {
			t.Fatalf("holes tell: %+v, %+v", a, b)
		}
		out := write(t, dir, "copy", nil, nil)
		defer out.Close()
		c, err := Copy(ctx, out, f, nil)
		if err != nil || c != a {
			t.Fatalf("copied %+v, want %+v (%v)", c, a, err)
		}
		got, err := os.ReadFile(out.Name())
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("the copy differs (%v)", err)
		}
		if err := Punch(ctx, plain); err != nil {
			t.Fatal(err)
		}
		if got, err = os.ReadFile(plain.Name()); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("punching changed the content (%v)", err)
		}
		if len(data) == 0 {
			return
		}
		at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
		if _, err := f.WriteAt([]byte{data[at] ^ 1}, int64(at)); err != nil {
			t.Fatal(err)
		}
		if d, err := Read(ctx, f, nil); err != nil || d.Digest == a.Digest {
			t.Fatalf("another byte at %d has the same digest (%v)", at, err)
		}
		if err := errors.Join(plain.Truncate(int64(len(data)+1)), out.Truncate(int64(len(data)-1))); err != nil {
			t.Fatal(err)
		}
		for _, f := range []*os.File{plain, out} {
			if d, err := Read(ctx, f, nil); err != nil || d.Digest == a.Digest {
				t.Fatalf("another length has the same digest (%v)", err)
			}
		}
	})
}

func TestPunchGivesRoomBack(t *testing.T) {
	data := make([]byte, 4<<20)
	copy(data[1<<20:], bytes.Repeat([]byte{7}, page))
	f := write(t, t.TempDir(), "f", data, nil)
	defer f.Close()
	if err := Punch(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 > 2*page {
		t.Errorf("%d bytes are left (%v)", st.Blocks*512, err)
	}
}

func TestReadingEndsWithItsContext(t *testing.T) {
	f := write(t, t.TempDir(), "f", make([]byte, page), nil)
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, f, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
