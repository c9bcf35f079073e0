// Package sparse reads, copies and digests files that are mostly nothing: disk
// layers and guest memory. A digest is of a file's size and of its blocks that
// are not all zero, so holes and written zeroes are the same.
package sparse

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"

	"golang.org/x/sys/unix"
)

const (
	block = 64 << 10 // unit of digests
	page  = 4 << 10  // unit of holes
	chunk = 16 * block
)

var zero [block]byte

// Content is what was read.
type Content struct {
	Digest string // "sha256:" and hex
	Bytes  int64  // in pages that are not zero
	Size   int64
}

// Tick is told how far a file has been read, in bytes; nil: nobody is.
type Tick func(done, total int64)

// Read digests a file.
func Read(ctx context.Context, f *os.File, tick Tick) (Content, error) {
	return walk(ctx, f, tick, nil)
}

// Copy copies what is not zero into an empty file and digests it.
func Copy(ctx context.Context, dst, src *os.File, tick Tick) (Content, error) {
	c, err := walk(ctx, src, tick, func(data []byte, at int64) error {
		_, err := dst.WriteAt(data, at)
		return err
	})
	if err == nil {
		err = dst.Truncate(c.Size)
	}
	return c, err
}

// Punch gives back the room of pages that are all zero.
func Punch(ctx context.Context, f *os.File) error {
	at := int64(0)
	free := func(to int64) error {
		if to <= at {
			return nil
		}
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, to-at)
		if err != nil {
			return fmt.Errorf("punch a hole: %w", err)
		}
		return nil
	}
	c, err := walk(ctx, f, nil, func(data []byte, from int64) error {
		err := free(from)
		at = from + int64(len(data))
		return err
	})
	if err != nil {
		return err
	}
	return free(c.Size)
}

// walk reads a file in order. emit gets the runs of pages that are not zero.
func walk(ctx context.Context, f *os.File, tick Tick, emit func(data []byte, at int64) error) (Content, error) {
	st, err := f.Stat()
	if err != nil {
		return Content{}, err
	}
	c := Content{Size: st.Size()}
	sum := sha256.New()
	buf := make([]byte, chunk)
	for at := int64(0); at < c.Size; {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		if at, err = nextData(f, at); err != nil {
			return c, err
		}
		if at >= c.Size {
			break
		}
		n := min(int64(len(buf)), c.Size-at)
		if _, err := f.ReadAt(buf[:n], at); err != nil {
			return c, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		if err := c.take(sum, buf[:n], at, emit); err != nil {
			return c, err
		}
		at += n
		if tick != nil {
			tick(min(at, c.Size), c.Size)
		}
	}
	_ = binary.Write(sum, binary.BigEndian, c.Size)
	c.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return c, nil
}

// nextData is the first block at or after one that is no hole; the size of the
// file if there is none.
func nextData(f *os.File, at int64) (int64, error) {
	next, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return 1 << 62, nil
	case err != nil: // a file system without holes
		return at, nil //nolint:nilerr // it is all data then
	}
	return max(at, next/block*block), nil
}

func (c *Content) take(sum hash.Hash, data []byte, at int64, emit func([]byte, int64) error) error {
	for i := 0; i < len(data); i += block {
		b := data[i:min(i+block, len(data))]
		if bytes.Equal(b, zero[:len(b)]) {
			continue
		}
		_ = binary.Write(sum, binary.BigEndian, at+int64(i))
		sum.Write(b)
		if err := c.runs(b, at+int64(i), emit); err != nil {
			return err
		}
	}
	return nil
}

// runs finds runs of pages that are not zero.
func (c *Content) runs(b []byte, at int64, emit func([]byte, int64) error) error {
	from := -1
	for i := 0; i <= len(b); i += page {
		end := min(i+page, len(b))
		used := i < len(b) && !bytes.Equal(b[i:end], zero[:end-i])
		if used && from < 0 {
			from = i
		}
		if !used && from >= 0 {
			c.Bytes += int64(min(i, len(b)) - from)
			if emit != nil {
				if err := emit(b[from:min(i, len(b))], at+int64(from)); err != nil {
					return err
				}
			}
			from = -1
		}
	}
	if from >= 0 { // a last page that is not whole
		c.Bytes += int64(len(b) - from)
		if emit != nil {
			return emit(b[from:], at+int64(from))
		}
	}
	return nil
}
