package files

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/rooted"
)

// maxWatches bounds the directories of one recursive watch.
const maxWatches = 4096

const watchMask = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_DONT_FOLLOW

// watcher tells of changes below one place.
type watcher struct {
	root      *rooted.Root
	file      *os.File
	fd        int
	recursive bool
	paths     map[int32]string
	send      func(*guestwirev1.WatchFilesResponse) error
}

// WatchFiles tells of changes until the call ends.
func (s *Service) WatchFiles(ctx context.Context, req *connect.Request[guestwirev1.WatchFilesRequest], out *connect.ServerStream[guestwirev1.WatchFilesResponse]) error {
	r, err := s.open(req.Msg.GetPlace())
	if err != nil {
		return refuse(err)
	}
	defer r.Close()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return refuse(os.NewSyscallError("inotify_init", err))
	}
	w := &watcher{root: r, file: os.NewFile(uintptr(fd), "inotify"), fd: fd, recursive: req.Msg.GetRecursive(), paths: map[int32]string{}, send: out.Send}
	defer w.file.Close()
	at := path.Clean(req.Msg.GetPlace().GetPath())
	if err := w.add(at); err != nil {
		return refuse(err)
	}
	defer context.AfterFunc(ctx, func() { _ = w.file.Close() })()
	if err := w.send(&guestwirev1.WatchFilesResponse{Kind: "ready", Path: at}); err != nil {
		return err
	}
	err = w.run(at)
	if ctx.Err() != nil {
		return connect.NewError(connect.CodeCanceled, context.Cause(ctx))
	}
	return refuse(err)
}

// add watches a place and, where asked for, the directories below it.
func (w *watcher) add(p string) error {
	f, err := w.root.OpenPath(p)
	if err != nil {
		return err
	}
	defer f.Close()
	if len(w.paths) == maxWatches {
		return fleet.Errorf(fleet.CodeConflict, "there are more than %d directories to watch", maxWatches).
			With(fleet.DetailLimit, strconv.Itoa(maxWatches)).With(fleet.DetailRemedy, "watch a part of them")
	}
	wd, err := unix.InotifyAddWatch(w.fd, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), watchMask&^unix.IN_DONT_FOLLOW)
	if err != nil {
		return &fs.PathError{Op: "watch", Path: p, Err: err}
	}
	w.paths[int32(wd)] = p
	info, err := f.Stat()
	if err != nil || !info.IsDir() || !w.recursive {
		return err
	}
	dir, err := w.root.Dir(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := w.add(path.Join(p, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// run passes events on until the watched place itself is gone.
func (w *watcher) run(at string) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return err
		}
		for p := buf[:n]; len(p) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(p))
			mask := binary.NativeEndian.Uint32(p[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(p[12:]))
			name := strings.TrimRight(string(p[unix.SizeofInotifyEvent:size]), "\x00")
			p = p[size:]
			over, err := w.tell(at, wd, mask, name)
			if err != nil || over {
				return err
			}
		}
	}
}

var kinds = []struct {
	mask uint32
	kind string
}{
	{unix.IN_CREATE, "create"}, {unix.IN_MODIFY | unix.IN_CLOSE_WRITE, "write"}, {unix.IN_DELETE, "remove"},
	{unix.IN_MOVED_FROM, "move_from"}, {unix.IN_MOVED_TO, "move_to"}, {unix.IN_ATTRIB, "attributes"}, {unix.IN_DELETE_SELF | unix.IN_MOVE_SELF, "remove"},
}

// tell passes one event on; over is true when the watched place is gone.
func (w *watcher) tell(at string, wd int32, mask uint32, name string) (over bool, err error) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return false, w.send(&guestwirev1.WatchFilesResponse{Kind: "lost", Path: at})
	}
	dir, known := w.paths[wd]
	if mask&unix.IN_IGNORED != 0 {
		delete(w.paths, wd)
	}
	if !known || mask&unix.IN_IGNORED != 0 {
		return false, nil
	}
	self := mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0
	if self && dir != at { // its parent tells
		return false, nil
	}
	full := path.Join(dir, strings.ToValidUTF8(name, "\uFFFD"))
	for _, k := range kinds {
		if mask&k.mask == 0 {
			continue
		}
		if err := w.send(&guestwirev1.WatchFilesResponse{Kind: k.kind, Path: full, Directory: mask&unix.IN_ISDIR != 0}); err != nil {
			return false, err
		}
	}
	if w.recursive && mask&unix.IN_ISDIR != 0 && mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		if err := w.add(full); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return self, nil
}
