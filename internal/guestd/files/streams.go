package files

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/rooted"
)

// readChunk is how much of a file is sent at a time, in bytes.
const readChunk = 256 << 10

// ReadFile sends a part of a file.
func (s *Service) ReadFile(_ context.Context, req *connect.Request[guestwirev1.ReadFileRequest], out *connect.ServerStream[guestwirev1.ReadFileResponse]) error {
	m := req.Msg
	r, err := s.open(m.GetPlace())
	if err != nil {
		return refuse(err)
	}
	defer r.Close()
	f, err := r.OpenRead(m.GetPlace().GetPath())
	if err != nil {
		return refuse(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fleet.Errorf(fleet.CodeConflict, "%.200s is a %s and no file", m.GetPlace().GetPath(), typeOf(info.Mode())).With(fleet.DetailReason, typeOf(info.Mode()))
	}
	if err == nil && m.GetOffset() < 0 {
		err = fleet.Errorf(fleet.CodeInvalidArgument, "offset %d must not be negative", m.GetOffset())
	}
	if err == nil {
		_, err = f.Seek(m.GetOffset(), io.SeekStart)
	}
	if err != nil {
		return refuse(err)
	}
	if err := out.Send(&guestwirev1.ReadFileResponse{Kind: &guestwirev1.ReadFileResponse_File{File: messageOf(info)}}); err != nil {
		return err
	}
	left := m.GetLength()
	buf := make([]byte, readChunk)
	for left != 0 {
		p := buf
		if left > 0 {
			p = buf[:min(left, int64(len(buf)))]
		}
		n, err := f.Read(p)
		if n > 0 {
			left = max(left-int64(n), min(left, 0)) // what is negative stays so
			if err := out.Send(&guestwirev1.ReadFileResponse{Kind: &guestwirev1.ReadFileResponse_Data{Data: p[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return refuse(err)
		}
	}
	return nil
}

// upload is a file under way, beside its place.
type upload struct {
	dir        *os.Root
	name, part string
	file       *os.File
	start      *guestwirev1.UploadStart
	placed     bool

	written atomic.Int64  // bytes, by this call
	done    chan struct{} // closed once this call has ended

	turn chan struct{} // held over a write
	over bool          // another call took the upload up; guarded by turn
}

// errTakenUp ends a call whose upload another one took up: what is still on its
// way would land beyond where that one writes.
var errTakenUp = fleet.Errorf(fleet.CodeConflict, "another call has taken this upload up").With(fleet.DetailReason, "taken_up")

// uploadKey names an upload that can be taken up; empty: it cannot.
func uploadKey(p *guestwirev1.Place, name string) string {
	if name == "" {
		return ""
	}
	return p.GetRoot() + "\x00" + path.Clean(p.GetPath()) + "\x00" + name
}

// stop lets the call that is under way for an upload write no more, and makes
// next, which may be nil, the one that may.
func (s *Service) stop(key string, next *upload) {
	if key == "" {
		return
	}
	s.mu.Lock()
	last := s.uploads[key]
	delete(s.uploads, key)
	if next != nil {
		s.uploads[key] = next
	}
	s.mu.Unlock()
	if last != nil {
		last.turn <- struct{}{}
		last.over = true
		<-last.turn
	}
}

const (
	settleQuiet = time.Second
	settleMost  = 10 * time.Second
)

// settle lets the call that is under way for an upload come to its end, so that
// what was on its way when a connection broke need not be sent again.
func (s *Service) settle(ctx context.Context, key string) {
	s.mu.Lock()
	last := s.uploads[key]
	s.mu.Unlock()
	if last == nil {
		return
	}
	most, quiet := time.NewTimer(s.most), time.NewTicker(s.quiet)
	defer most.Stop()
	defer quiet.Stop()
	for at := last.written.Load(); ; {
		select {
		case <-last.done:
			return
		case <-most.C:
			return
		case <-ctx.Done():
			return
		case <-quiet.C:
			now := last.written.Load()
			if now == at {
				return
			}
			at = now
		}
	}
}

// ended forgets a call.
func (s *Service) ended(key string, u *upload) {
	close(u.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uploads[key] == u {
		delete(s.uploads, key)
	}
}

// during does something with the file, unless another call took it up.
func (u *upload) during(do func() error) error {
	u.turn <- struct{}{}
	defer func() { <-u.turn }()
	if u.over {
		return errTakenUp
	}
	return do()
}

// partName is the name of an upload under way. One that has no name of its own
// cannot be found again.
func partName(p *guestwirev1.Place, name string) string {
	if name == "" {
		return ".fuse-part-" + rand.Text()
	}
	sum := sha256.Sum256([]byte(name + "\x00" + path.Clean(p.GetPath())))
	return ".fuse-part-" + hex.EncodeToString(sum[:12])
}

func (s *Service) beginUpload(start *guestwirev1.UploadStart) (_ *upload, err error) {
	if err := checkMode(start.GetMode()); err != nil {
		return nil, err
	}
	r, err := s.open(start.GetPlace())
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if start.GetParents() {
		if err := s.kept.makeParents(r, path.Dir(path.Clean(start.GetPlace().GetPath()))); err != nil {
			return nil, err
		}
	}
	u := &upload{start: start, part: partName(start.GetPlace(), start.GetUpload()), turn: make(chan struct{}, 1), done: make(chan struct{})}
	if u.dir, u.name, err = s.kept.parent(r, start.GetPlace().GetPath()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = u.dir.Close()
		}
	}()
	if info, err := u.dir.Lstat(u.name); err == nil && info.IsDir() {
		return nil, &fs.PathError{Op: "write", Path: start.GetPlace().GetPath(), Err: syscall.EISDIR}
	}
	key := uploadKey(start.GetPlace(), start.GetUpload())
	s.stop(key, u)
	if err := u.during(u.open); err != nil {
		s.ended(key, u)
		return nil, err
	}
	return u, nil
}

// open opens the part, new or where an earlier call of the upload stopped.
func (u *upload) open() (err error) {
	offset := u.start.GetOffset()
	if offset == 0 {
		if err := u.dir.Remove(u.part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		u.file, err = u.dir.OpenFile(u.part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	}
	there, err := u.dir.Lstat(u.part)
	if err != nil || !there.Mode().IsRegular() || u.start.GetUpload() == "" {
		return offsetError(offset, 0)
	}
	if offset < 0 || offset > there.Size() {
		return offsetError(offset, there.Size())
	}
	if u.file, err = u.dir.OpenFile(u.part, os.O_WRONLY, 0); err != nil {
		return err
	}
	info, err := u.file.Stat()
	if err == nil && !os.SameFile(info, there) {
		err = offsetError(offset, 0)
	}
	if err == nil {
		err = u.file.Truncate(offset)
	}
	if err == nil {
		_, err = u.file.Seek(offset, io.SeekStart)
	}
	if err != nil {
		_ = u.file.Close()
	}
	return err
}

func offsetError(offset, there int64) error {
	return fleet.Errorf(fleet.CodeConflict, "the upload has come as far as byte %d and cannot go on at %d", there, offset).
		With(fleet.DetailUsage, itoa(there)).With(fleet.DetailReason, "offset").With(fleet.DetailRemedy, "send from the offset that usage names")
}

// place gives the file what it is to be and puts it in its place.
func (u *upload) place() error {
	mode, owner := fs.FileMode(0o644), u.start.GetOwner()
	if info, err := u.dir.Lstat(u.name); err == nil && info.Mode().IsRegular() {
		mode = info.Mode()
		if st, ok := info.Sys().(*syscall.Stat_t); ok && owner == nil {
			owner = &guestwirev1.Owner{Uid: st.Uid, Gid: st.Gid}
		}
	}
	if u.start.Mode != nil {
		mode = modeOf(u.start.GetMode())
	}
	if owner != nil {
		if err := u.file.Chown(int(owner.GetUid()), int(owner.GetGid())); err != nil {
			return err
		}
	}
	if err := u.file.Chmod(mode); err != nil {
		return err
	}
	if err := u.file.Close(); err != nil {
		return err
	}
	if u.start.ModifiedUnixNs != nil {
		if err := u.dir.Chtimes(u.part, time.Time{}, time.Unix(0, u.start.GetModifiedUnixNs())); err != nil {
			return err
		}
	}
	if err := u.dir.Rename(u.part, u.name); err != nil {
		return err
	}
	u.placed = true
	return nil
}

// leave closes the upload. A part that nobody can find again goes.
func (u *upload) leave() {
	_ = u.file.Close()
	if !u.placed && u.start.GetUpload() == "" {
		_ = u.dir.Remove(u.part)
	}
	_ = u.dir.Close()
}

// UploadFile writes a file.
func (s *Service) UploadFile(_ context.Context, in *connect.ClientStream[guestwirev1.UploadFileRequest]) (*connect.Response[guestwirev1.UploadFileResponse], error) {
	if !in.Receive() {
		return nil, in.Err()
	}
	start := in.Msg().GetStart()
	if start == nil {
		return nil, guestwire.Refuse(fleet.Errorf(fleet.CodeInvalidArgument, "the first message of an upload must be its start"))
	}
	u, err := s.beginUpload(start)
	if err != nil {
		return nil, refuse(err)
	}
	defer u.leave()
	defer s.ended(uploadKey(start.GetPlace(), start.GetUpload()), u)
	for in.Receive() {
		m := in.Msg()
		if m.GetEnd() != nil {
			if err := u.during(u.place); err != nil {
				return nil, refuse(err)
			}
			info, err := lstat(u.dir, u.name)
			if err != nil {
				return nil, refuse(err)
			}
			return connect.NewResponse(&guestwirev1.UploadFileResponse{File: info}), nil
		}
		if err := u.during(func() error { _, err := u.file.Write(m.GetData()); return err }); err != nil {
			return nil, refuse(err)
		}
		u.written.Add(int64(len(m.GetData())))
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return nil, guestwire.Refuse(fleet.Errorf(fleet.CodeInvalidArgument, "the upload ended without saying that it was all"))
}

// FindUpload says how far a named upload came.
func (s *Service) FindUpload(ctx context.Context, req *connect.Request[guestwirev1.FindUploadRequest]) (*connect.Response[guestwirev1.FindUploadResponse], error) {
	p := req.Msg.GetPlace()
	key := uploadKey(p, req.Msg.GetUpload())
	s.settle(ctx, key)
	s.stop(key, nil) // who asks is about to take it up
	r, err := s.open(p)
	if err != nil {
		return nil, refuse(err)
	}
	defer r.Close()
	dir, _, err := r.Parent(p.GetPath())
	res := &guestwirev1.FindUploadResponse{}
	if errors.Is(err, fs.ErrNotExist) {
		return connect.NewResponse(res), nil
	}
	if err != nil {
		return nil, refuse(err)
	}
	defer dir.Close()
	if info, err := dir.Lstat(partName(p, req.Msg.GetUpload())); err == nil && info.Mode().IsRegular() {
		res.Offset = info.Size()
	}
	return connect.NewResponse(res), nil
}

// PackTree sends a file or directory as a tar archive.
func (s *Service) PackTree(ctx context.Context, req *connect.Request[guestwirev1.PackTreeRequest], out *connect.ServerStream[guestwirev1.PackTreeResponse]) error {
	r, err := s.open(req.Msg.GetPlace())
	if err != nil {
		return refuse(err)
	}
	defer r.Close()
	dir, name, err := r.Parent(req.Msg.GetPlace().GetPath())
	if errors.Is(err, rooted.ErrPath) && path.Clean(req.Msg.GetPlace().GetPath()) == "/" {
		name = "."
		dir, err = r.Dir("/")
	}
	if err != nil {
		return refuse(err)
	}
	defer dir.Close()
	w := &chunkWriter{send: func(p []byte) error { return out.Send(&guestwirev1.PackTreeResponse{Data: p}) }}
	if _, err := rooted.Pack(ctx, dir, name, w); err != nil {
		return refuse(err)
	}
	return w.flush()
}

// chunkWriter gathers an archive's small pieces.
type chunkWriter struct {
	buf  []byte
	send func([]byte) error
}

func (w *chunkWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	if len(w.buf) >= readChunk {
		return len(p), w.flush()
	}
	return len(p), nil
}

func (w *chunkWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	err := w.send(w.buf)
	w.buf = w.buf[:0]
	return err
}

// UnpackTree unpacks a tar archive into a directory.
func (s *Service) UnpackTree(ctx context.Context, in *connect.ClientStream[guestwirev1.UnpackTreeRequest]) (*connect.Response[guestwirev1.UnpackTreeResponse], error) {
	if !in.Receive() {
		return nil, in.Err()
	}
	start := in.Msg().GetStart()
	if start == nil {
		return nil, guestwire.Refuse(fleet.Errorf(fleet.CodeInvalidArgument, "the first message of an archive must be its start"))
	}
	r, err := s.open(start.GetPlace())
	if err != nil {
		return nil, refuse(err)
	}
	defer r.Close()
	at := path.Clean(start.GetPlace().GetPath())
	if start.GetParents() {
		if err := s.kept.makeParents(r, at); err != nil {
			return nil, refuse(err)
		}
	}
	dir, err := r.Dir(at)
	if err == nil {
		defer dir.Close()
		err = s.kept.mayChange(dir, "")
	}
	var keep []string
	if err == nil {
		keep, err = s.kept.below(dir)
	}
	if err != nil {
		return nil, refuse(err)
	}
	archive := &messages{in: in}
	done, err := rooted.Unpack(ctx, dir, archive, rooted.UnpackOptions{Owners: start.GetOwners(), Setuid: true, Keep: keep})
	if err == nil { // what follows the archive's end, up to the message that says so
		_, err = io.Copy(io.Discard, archive)
	}
	if err != nil {
		return nil, refuse(err)
	}
	return connect.NewResponse(&guestwirev1.UnpackTreeResponse{Entries: done.Entries, Bytes: done.Bytes}), nil
}

// messages reads what comes in messages. One that stops without its end is
// broken: a part of an archive is not the whole.
type messages struct {
	in   *connect.ClientStream[guestwirev1.UnpackTreeRequest]
	rest []byte
	end  bool
}

func (m *messages) Read(p []byte) (int, error) {
	for len(m.rest) == 0 {
		switch {
		case m.end:
			return 0, io.EOF
		case !m.in.Receive():
			return 0, errors.Join(io.ErrUnexpectedEOF, m.in.Err())
		case m.in.Msg().GetEnd() != nil:
			m.end = true
		default:
			m.rest = m.in.Msg().GetData()
		}
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}
