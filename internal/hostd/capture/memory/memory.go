// Package memory keeps the memory of captured guests: in sealed files without
// a name, which many VMs map privately, held by a small process that outlives
// this one; and as files on the disk, without the pages that are zero.
package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/hostd/capture/sparse"
)

const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// ErrUnsealed says that a memory could still be changed, so it is not used.
var ErrUnsealed = errors.New("the memory is not sealed against writing")

// New makes memory of size bytes, all zero.
func New(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("make memory of %d bytes: %w", size, err), f.Close())
	}
	return f, nil
}

// The mappings of a process that has ended may stay a moment: whoever looks at it
// in /proc just then takes them down.
const (
	sealWithin = 10 * time.Second
	sealEvery  = 10 * time.Millisecond
)

// Seal gives back the pages that are zero and makes the memory constant. It
// fails if anybody can write to it and goes on to.
func Seal(ctx context.Context, f *os.File) error {
	if err := sparse.Punch(ctx, f); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sealWithin)
	defer cancel()
	return seal(ctx, f)
}

// seal tries once at least.
func seal(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(sealEvery)
	defer tick.Stop()
	for {
		_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("seal memory: %w", err)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// CheckSealed is an error unless the memory is constant and of that size.
func CheckSealed(f *os.File, size int64) error {
	got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("seals of memory: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if got&seals != seals {
		return ErrUnsealed
	}
	if st.Size() != size {
		return fmt.Errorf("the memory is of %d bytes, not of %d", st.Size(), size)
	}
	return nil
}

// Bytes is what a memory takes of the machine's.
func Bytes(f *os.File) int64 {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// Save writes memory to a file, which is durable when it returns.
func Save(ctx context.Context, f *os.File, path string, tick sparse.Tick) (sparse.Content, error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return sparse.Content{}, err
	}
	c, err := sparse.Copy(ctx, out, f, tick)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return c, fmt.Errorf("write memory: %w", err)
	}
	return c, nil
}

// ErrDigest says that a file is not what was written.
var ErrDigest = errors.New("its content is not what was written")

// Load makes memory of a file that Save wrote, and refuses another content. It
// is not sealed.
func Load(ctx context.Context, path, name string, want sparse.Content, tick sparse.Tick) (*os.File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() != want.Size {
		return nil, fmt.Errorf("%w: the memory is of %d bytes, not of %d", ErrDigest, st.Size(), want.Size)
	}
	f, err := New(name, want.Size)
	if err != nil {
		return nil, err
	}
	got, err := sparse.Copy(ctx, f, in, tick)
	if err == nil && got.Digest != want.Digest {
		err = fmt.Errorf("%w: memory", ErrDigest)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
