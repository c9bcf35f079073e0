// Package files reads and changes a machine's files for callers of its host:
// one at a time by path, as streams that can be taken up, and as trees. With a
// root nothing leads out of it, whatever links and renames there are.
package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
	"github.com/fusevm/fuse/internal/rooted"
)

// maxList bounds one part of a directory's listing.
const maxList = 1000

// Service serves the files below a directory that is the machine's "/".
type Service struct {
	base string
	kept kept
	// quiet and most are how long who asks for an upload waits for the call
	// before: while that comes on, and no longer than in all.
	quiet, most time.Duration

	mu      sync.Mutex
	uploads map[string]*upload // under way, that can be taken up
}

var _ guestwirev1connect.FilesHandler = (*Service)(nil)

// New serves the files of the machine whose root is base. Nothing below kept,
// of the machine, is changed.
func New(base string, kept ...string) *Service {
	return &Service{base: base, kept: kept, quiet: settleQuiet, most: settleMost, uploads: map[string]*upload{}}
}

// open opens what a place's path is taken from.
func (s *Service) open(p *guestwirev1.Place) (*rooted.Root, error) {
	m, err := rooted.Machine(s.base)
	if err != nil || p.GetRoot() == "" {
		return m, err
	}
	defer m.Close()
	return m.Beneath(p.GetRoot())
}

// refuse gives a failure the code that tells whose fault it is.
func refuse(err error) error {
	var fe *fleet.Error
	var entry *rooted.EntryError
	code := fleet.CodeInternal
	switch {
	case err == nil || errors.As(err, &fe):
		return guestwire.Refuse(err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, rooted.ErrPath), errors.Is(err, rooted.ErrArchive), errors.As(err, &entry):
		code = fleet.CodeInvalidArgument
	case errors.Is(err, fs.ErrNotExist):
		code = fleet.CodeNotFound
	case errors.Is(err, syscall.EXDEV), strings.Contains(err.Error(), "path escapes from parent"):
		return guestwire.Refuse(fleet.Errorf(fleet.CodeForbidden, "a link leads out of the root: %w", err))
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return guestwire.Refuse(fleet.Errorf(fleet.CodeUnavailable, "the environment's disk is full: %w", err).
			With(fleet.DetailReason, "disk_full").With(fleet.DetailRemedy, "remove something, or create the environment with a larger disk"))
	case errors.Is(err, fs.ErrExist), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENOTEMPTY),
		errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EINVAL):
		code = fleet.CodeConflict
	case errors.Is(err, fs.ErrPermission):
		code = fleet.CodeForbidden
	}
	return guestwire.Refuse(fleet.Errorf(code, "%w", err))
}

// StatFile says what is at a place.
func (s *Service) StatFile(_ context.Context, req *connect.Request[guestwirev1.StatFileRequest]) (*connect.Response[guestwirev1.StatFileResponse], error) {
	info, err := s.stat(req.Msg.GetPlace(), req.Msg.GetFollow())
	if err != nil {
		return nil, refuse(err)
	}
	return connect.NewResponse(&guestwirev1.StatFileResponse{File: info}), nil
}

func (s *Service) stat(p *guestwirev1.Place, follow bool) (*guestwirev1.FileInfo, error) {
	r, err := s.open(p)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if follow || path.Clean(p.GetPath()) == "/" {
		f, err := r.OpenPath(p.GetPath())
		if err != nil {
			return nil, err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		m := messageOf(info)
		m.Name = path.Base(path.Clean(p.GetPath()))
		return m, nil
	}
	dir, name, err := r.Parent(p.GetPath())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return lstat(dir, name)
}

// lstat describes a file of a directory, and where a link leads.
func lstat(dir *os.Root, name string) (*guestwirev1.FileInfo, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	m := messageOf(info)
	if m.Type == "link" {
		m.Target, _ = dir.Readlink(name) // it may be gone
		m.Target = strings.ToValidUTF8(m.Target, "\uFFFD")
	}
	return m, nil
}

func messageOf(info fs.FileInfo) *guestwirev1.FileInfo {
	m := &guestwirev1.FileInfo{
		Name: strings.ToValidUTF8(info.Name(), "\uFFFD"), Type: typeOf(info.Mode()), Size: info.Size(), Mode: bitsOf(info.Mode()), ModifiedUnixNs: info.ModTime().UnixNano(),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		m.Uid, m.Gid = st.Uid, st.Gid
	}
	return m
}

func typeOf(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "link"
	case fs.ModeNamedPipe:
		return "fifo"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}

var specialBits = map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky}

func bitsOf(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for bit, m := range specialBits {
		if mode&m != 0 {
			bits |= bit
		}
	}
	return bits
}

func modeOf(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	for bit, m := range specialBits {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return mode
}

// checkMode refuses what are no permission bits.
func checkMode(bits uint32) error {
	if bits&^0o7777 != 0 {
		return fleet.Errorf(fleet.CodeInvalidArgument, "mode %o is not one of permission bits", bits).With(fleet.DetailLimit, "0 to 7777")
	}
	return nil
}

// ListDirectory lists a part of a directory, sorted by name.
func (s *Service) ListDirectory(_ context.Context, req *connect.Request[guestwirev1.ListDirectoryRequest]) (*connect.Response[guestwirev1.ListDirectoryResponse], error) {
	res, err := s.listDirectory(req.Msg)
	if err != nil {
		return nil, refuse(err)
	}
	return connect.NewResponse(res), nil
}

func (s *Service) listDirectory(m *guestwirev1.ListDirectoryRequest) (*guestwirev1.ListDirectoryResponse, error) {
	r, err := s.open(m.GetPlace())
	if err != nil {
		return nil, err
	}
	defer r.Close()
	dir, err := r.Dir(m.GetPlace().GetPath())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	from, found := slices.BinarySearch(names, m.GetAfter())
	if found {
		from++
	}
	limit := int(m.GetLimit())
	if limit <= 0 || limit > maxList {
		limit = maxList
	}
	res := &guestwirev1.ListDirectoryResponse{}
	for _, name := range names[from:] {
		if len(res.Files) == limit {
			res.More = true
			break
		}
		info, err := lstat(dir, name)
		if errors.Is(err, fs.ErrNotExist) { // gone meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		res.Files = append(res.Files, info)
	}
	return res, nil
}

// MakeDirectory makes a directory.
func (s *Service) MakeDirectory(_ context.Context, req *connect.Request[guestwirev1.MakeDirectoryRequest]) (*connect.Response[guestwirev1.MakeDirectoryResponse], error) {
	if err := s.makeDirectory(req.Msg); err != nil {
		return nil, refuse(err)
	}
	return connect.NewResponse(&guestwirev1.MakeDirectoryResponse{}), nil
}

func (s *Service) makeDirectory(m *guestwirev1.MakeDirectoryRequest) error {
	mode := uint32(0o755)
	if m.Mode != nil {
		mode = m.GetMode()
	}
	if err := checkMode(mode); err != nil {
		return err
	}
	r, err := s.open(m.GetPlace())
	if err != nil {
		return err
	}
	defer r.Close()
	if m.GetParents() {
		if err := s.kept.makeParents(r, path.Dir(path.Clean(m.GetPlace().GetPath()))); err != nil {
			return err
		}
	}
	dir, name, err := s.kept.parent(r, m.GetPlace().GetPath())
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Mkdir(name, 0o700); err != nil {
		if info, serr := dir.Stat(name); m.GetParents() && serr == nil && info.IsDir() {
			return nil
		}
		return err
	}
	if o := m.GetOwner(); o != nil {
		if err := dir.Lchown(name, int(o.GetUid()), int(o.GetGid())); err != nil {
			return err
		}
	}
	return dir.Chmod(name, modeOf(mode))
}

// MoveFile gives a file another place.
func (s *Service) MoveFile(_ context.Context, req *connect.Request[guestwirev1.MoveFileRequest]) (*connect.Response[guestwirev1.MoveFileResponse], error) {
	if err := s.moveFile(req.Msg); err != nil {
		return nil, refuse(err)
	}
	return connect.NewResponse(&guestwirev1.MoveFileResponse{}), nil
}

func (s *Service) moveFile(m *guestwirev1.MoveFileRequest) error {
	r, err := s.open(m.GetPlace())
	if err != nil {
		return err
	}
	defer r.Close()
	from, name, err := s.kept.parent(r, m.GetPlace().GetPath())
	if err != nil {
		return err
	}
	defer from.Close()
	to, toName, err := s.kept.parent(r, m.GetTo())
	if err != nil {
		return err
	}
	defer to.Close()
	if err := errors.Join(s.kept.mayTake(from, name), s.kept.mayTake(to, toName)); err != nil {
		return err
	}
	return rename(from, name, to, toName, m.GetReplace())
}

// RemoveFile removes a file or directory.
func (s *Service) RemoveFile(_ context.Context, req *connect.Request[guestwirev1.RemoveFileRequest]) (*connect.Response[guestwirev1.RemoveFileResponse], error) {
	if err := s.removeFile(req.Msg); err != nil {
		return nil, refuse(err)
	}
	return connect.NewResponse(&guestwirev1.RemoveFileResponse{}), nil
}

func (s *Service) removeFile(m *guestwirev1.RemoveFileRequest) error {
	r, err := s.open(m.GetPlace())
	if err != nil {
		return err
	}
	defer r.Close()
	dir, name, err := s.kept.parent(r, m.GetPlace().GetPath())
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.kept.mayTake(dir, name); err != nil {
		return err
	}
	if _, err := dir.Lstat(name); err != nil {
		return err
	}
	if m.GetRecursive() {
		return dir.RemoveAll(name)
	}
	return dir.Remove(name)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
