package guestd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

// WriteFiles writes files one after another. Each appears whole, with its mode,
// or not at all; those before the one that fails stay.
func (s *guestService) WriteFiles(_ context.Context, stream *connect.ClientStream[guestwirev1.WriteFilesRequest]) (*connect.Response[guestwirev1.WriteFilesResponse], error) {
	res := &guestwirev1.WriteFilesResponse{}
	defer s.probe.Changed() // a healthcheck may be among them
	defer s.services.Changed()
	var file *pendingFile
	defer func() { file.abandon() }()
	for stream.Receive() {
		m := stream.Msg()
		if start := m.GetFile(); start != nil {
			if err := file.finish(); err != nil {
				return nil, fileError(err)
			}
			next, err := beginFile(s.cfg.FuseDir, start)
			if err != nil {
				return nil, fileError(err)
			}
			file = next
			res.Files++
			continue
		}
		if file == nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("data came before the file that it belongs to"))
		}
		if err := file.write(m.GetData()); err != nil {
			return nil, fileError(err)
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if err := file.finish(); err != nil {
		return nil, fileError(err)
	}
	return connect.NewResponse(res), nil
}

// pendingFile is a file under way, in a temporary file beside its place.
type pendingFile struct {
	path string
	tmp  *os.File
	mode fs.FileMode
	left int64
}

var errBadFile = errors.New("bad file")

func beginFile(fuseDir string, start *guestwirev1.FileStart) (*pendingFile, error) {
	path := start.Path
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) || path == "/" {
		return nil, fmt.Errorf("%w: path %q must be absolute and clean", errBadFile, path)
	}
	if start.Mode&^0o7777 != 0 {
		return nil, fmt.Errorf("%w: mode %o of %s must be permission bits", errBadFile, start.Mode, path)
	}
	if start.Size < 0 {
		return nil, fmt.Errorf("%w: size %d of %s must not be negative", errBadFile, start.Size, path)
	}
	mode, dirMode := fs.FileMode(0o644), fs.FileMode(0o755)
	if strings.HasPrefix(path, fuseDir+"/") {
		mode, dirMode = 0o600, 0o700
	}
	if start.Mode != 0 {
		mode = modeOf(start.Mode)
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return nil, &fs.PathError{Op: "write", Path: path, Err: syscall.EISDIR}
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, err
	}
	tmp, err := os.OpenFile(filepath.Join(dir, ".fuse-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &pendingFile{path: path, tmp: tmp, mode: mode, left: start.Size}, nil
}

// modeOf translates permission bits, set-id and sticky included.
func modeOf(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	for bit, m := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return mode
}

func (f *pendingFile) write(p []byte) error {
	if len(p) > guestwire.MaxFileChunk {
		return fmt.Errorf("%w: a piece of %d bytes is longer than the %d allowed", errBadFile, len(p), guestwire.MaxFileChunk)
	}
	if int64(len(p)) > f.left {
		return fmt.Errorf("%w: %s is longer than its size says", errBadFile, f.path)
	}
	f.left -= int64(len(p))
	_, err := f.tmp.Write(p)
	return err
}

// finish puts the file in its place. A nil file is done already.
func (f *pendingFile) finish() error {
	if f == nil {
		return nil
	}
	if f.left > 0 {
		return fmt.Errorf("%w: %s ended %d bytes early: %w", errBadFile, f.path, f.left, io.ErrUnexpectedEOF)
	}
	if err := f.tmp.Chmod(f.mode); err != nil {
		return err
	}
	if err := f.tmp.Close(); err != nil {
		return err
	}
	return os.Rename(f.tmp.Name(), f.path)
}

// abandon removes the temporary file, which is gone if finish succeeded.
func (f *pendingFile) abandon() {
	if f == nil {
		return
	}
	_ = f.tmp.Close()
	_ = os.Remove(f.tmp.Name())
}

// fileError codes an error so that the caller can tell its own fault from the
// guest's.
func fileError(err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, errBadFile):
		code = connect.CodeInvalidArgument
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = connect.CodeResourceExhausted
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENAMETOOLONG):
		code = connect.CodeFailedPrecondition
	}
	return connect.NewError(code, fmt.Errorf("write file: %w", err))
}
