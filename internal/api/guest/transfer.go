package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

const (
	// transferChunk is how much of a file is on the way at a time, in bytes.
	transferChunk = 256 << 10
	// readLimit ends an upload of which nothing comes for so long.
	readLimit = 2 * time.Minute
)

// span is the part of a file that is asked for.
type span struct {
	offset, length int64
	part           bool
}

// spanOf reads a Range of one part. What it does not understand asks for all,
// as HTTP has it; ok is false where there is nothing to send.
func spanOf(header string, size int64) (s span, ok bool) {
	all := span{0, size, false}
	spec, found := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !found || !dash || strings.Contains(spec, ",") {
		return all, true
	}
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	switch {
	case first == "" && err2 == nil && to > 0: // the last so many
		from = max(0, size-to)
		return span{from, size - from, true}, size > 0
	case err1 != nil || from < 0 || last != "" && (err2 != nil || to < from):
		return all, true
	case from >= size:
		return all, false
	case last == "":
		to = size - 1
	}
	to = min(to, size-1)
	return span{from, to - from + 1, true}, true
}

// etagOf tells one content of a file from another.
func etagOf(f *guestwirev1.FileInfo) string {
	return fmt.Sprintf(`"%x-%x"`, f.GetModifiedUnixNs(), f.GetSize())
}

// openPlace opens the guest for reading what the query names.
func (s fileRoutes) openPlace(r *web.Request) (*guestwirev1.Place, *guestops.Session, error) {
	place, err := placeOf(r.URL.Query())
	if err != nil {
		return nil, nil, err
	}
	session, err := s.open(r, "files.read", map[string]string{"path": place.GetPath()})
	return place, session, err
}

func (s fileRoutes) readFile(w http.ResponseWriter, r *web.Request) error {
	place, session, err := s.openPlace(r)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stat, err := session.Files.StatFile(ctx, connect.NewRequest(&guestwirev1.StatFileRequest{Place: place, Follow: true}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	file := stat.Msg.GetFile()
	if file.GetType() != "file" {
		return fleet.Errorf(fleet.CodeConflict, "%.200s is a %s and no file", place.GetPath(), file.GetType()).
			With(fleet.DetailReason, file.GetType()).With(fleet.DetailRemedy, "a directory is read as an archive")
	}
	part := span{0, file.GetSize(), false}
	if want := r.Header.Get("If-Range"); want == "" || want == etagOf(file) {
		var ok bool
		if part, ok = spanOf(r.Header.Get("Range"), file.GetSize()); !ok {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", file.GetSize()))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return nil
		}
	}
	fileHeaders(w, file, part)
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if file.GetSize() == 0 { // of the kernel's own files as well, whose size is not known
		part.length = -1
	}
	return sendFile(ctx, w, session, &guestwirev1.ReadFileRequest{Place: place, Offset: part.offset, Length: part.length}, part)
}

func fileHeaders(w http.ResponseWriter, file *guestwirev1.FileInfo, part span) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Accept-Ranges", "bytes")
	h.Set("ETag", etagOf(file))
	h.Set("Last-Modified", time.Unix(0, file.GetModifiedUnixNs()).UTC().Format(http.TimeFormat))
	h.Set("Fuse-File-Mode", fmt.Sprintf("%04o", file.GetMode()))
	h.Set("Fuse-File-Owner", fmt.Sprintf("%d:%d", file.GetUid(), file.GetGid()))
	if file.GetSize() > 0 {
		h.Set("Content-Length", strconv.FormatInt(part.length, 10))
	}
	if part.part {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.offset, part.offset+part.length-1, file.GetSize()))
	}
}

func sendFile(ctx context.Context, w http.ResponseWriter, session *guestops.Session, m *guestwirev1.ReadFileRequest, part span) error {
	out, err := session.Files.ReadFile(ctx, connect.NewRequest(m))
	if err != nil {
		return session.Explain(ctx, err)
	}
	defer func() { _ = out.Close() }()
	if !out.Receive() {
		return session.Explain(ctx, out.Err())
	}
	status := http.StatusOK
	if part.part {
		status = http.StatusPartialContent
	}
	begin(w, status)
	left := m.GetLength()
	for out.Receive() {
		data := out.Msg().GetData()
		left -= int64(len(data))
		if web.Flush(w, data, writeLimit) != nil {
			return nil // the reader left
		}
	}
	if out.Err() != nil || m.GetLength() >= 0 && left != 0 {
		panic(http.ErrAbortHandler) // a part must not look like the whole
	}
	return nil
}

// begin begins an answer that has as long as it needs.
func begin(w http.ResponseWriter, status int) {
	if ww, ok := w.(*web.Writer); ok {
		ww.Stream, ww.WriteTimeout = true, 0
	}
	w.WriteHeader(status)
}

// body is what comes with a request, piece by piece.
type body struct {
	w *web.Writer
	r *web.Request
}

// next fills buf as far as the body goes; io.EOF comes with the last bytes.
func (b body) next(buf []byte) (int, error) {
	if b.w != nil {
		b.w.SetReadDeadline(time.Now().Add(readLimit))
	}
	n := 0
	for n < len(buf) {
		m, err := b.r.Body.Read(buf[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func bodyOf(w http.ResponseWriter, r *web.Request) body {
	ww, _ := w.(*web.Writer)
	return body{ww, r}
}

func brokenBody(err error) error {
	return fleet.Wrap(fleet.CodeInvalidArgument, err, "the body broke off").With(fleet.DetailReason, "body").
		With(fleet.DetailRemedy, "a named upload can be taken up where files/upload says")
}

// uploadStart reads what is to be written where.
func uploadStart(r *web.Request) (*guestwirev1.UploadStart, error) {
	q := r.URL.Query()
	place, err := placeOf(q)
	if err != nil {
		return nil, err
	}
	m := &guestwirev1.UploadStart{Place: place}
	if m.Mode, err = modeOf(q.Get("mode")); err != nil {
		return nil, err
	}
	if m.Owner, err = ownerOf(q.Get("owner")); err != nil {
		return nil, err
	}
	if m.Upload, err = uploadName(q); err != nil {
		return nil, err
	}
	if m.Offset, err = number(q, "offset"); err != nil {
		return nil, err
	}
	if m.Offset > 0 && m.Upload == "" {
		return nil, fleet.Invalid("upload", "a name", "an upload that is taken up has one", "is needed with offset")
	}
	if m.Parents, err = flag(q, "parents"); err != nil {
		return nil, err
	}
	if q.Has("mtime") {
		at, err := number(q, "mtime")
		if err != nil {
			return nil, err
		}
		m.ModifiedUnixNs = &at
	}
	return m, nil
}

// deliverFor is how long what came of a body that broke off may take to reach
// the guest.
const deliverFor = 10 * time.Second

// outlive returns a context that goes on for a time after ctx has ended: a
// request's context ends with the read of its body that fails.
func outlive(ctx context.Context, by time.Duration) (longer context.Context, end func()) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel(nil) }
}

func (s fileRoutes) writeFile(w http.ResponseWriter, r *web.Request) error {
	start, err := uploadStart(r)
	if err != nil {
		return err
	}
	session, err := s.open(r, "files.write", map[string]string{"path": start.GetPlace().GetPath()})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, end := outlive(r.Context(), deliverFor)
	defer end()
	up := session.Files.UploadFile(ctx)
	err = up.Send(&guestwirev1.UploadFileRequest{Kind: &guestwirev1.UploadFileRequest_Start{Start: start}})
	in, buf := bodyOf(w, r), make([]byte, transferChunk)
	for err == nil {
		var n int
		n, rerr := in.next(buf)
		if n > 0 {
			err = up.Send(&guestwirev1.UploadFileRequest{Kind: &guestwirev1.UploadFileRequest_Data{Data: buf[:n]}})
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil { // what came is kept under the upload's name
			_, _ = up.CloseAndReceive()
			return brokenBody(rerr)
		}
	}
	if err == nil {
		err = up.Send(&guestwirev1.UploadFileRequest{Kind: &guestwirev1.UploadFileRequest_End{End: &guestwirev1.UploadEnd{}}})
	}
	res, rerr := up.CloseAndReceive() // the reason of a failed send is here
	if rerr != nil {
		return session.Explain(ctx, rerr)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return session.Explain(ctx, err)
	}
	web.WriteJSON(w, http.StatusOK, fileOf(res.Msg.GetFile()))
	return nil
}

func (s fileRoutes) packFiles(w http.ResponseWriter, r *web.Request) error {
	place, session, err := s.openPlace(r)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out, err := session.Files.PackTree(ctx, connect.NewRequest(&guestwirev1.PackTreeRequest{Place: place}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	defer func() { _ = out.Close() }()
	begun := false
	for out.Receive() {
		if !begun {
			w.Header().Set("Content-Type", "application/x-tar")
			begin(w, http.StatusOK)
			begun = true
		}
		if web.Flush(w, out.Msg().GetData(), writeLimit) != nil {
			return nil // the reader left
		}
	}
	switch err := out.Err(); {
	case err != nil && !begun:
		return session.Explain(ctx, err)
	case err != nil:
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (s fileRoutes) unpackFiles(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	place, err := placeOf(q)
	if err != nil {
		return err
	}
	start := &guestwirev1.UnpackStart{Place: place}
	if start.Owners, err = flag(q, "owners"); err != nil {
		return err
	}
	if start.Parents, err = flag(q, "parents"); err != nil {
		return err
	}
	session, err := s.open(r, "files.write", map[string]string{"path": place.GetPath()})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	up := session.Files.UnpackTree(ctx)
	err = up.Send(&guestwirev1.UnpackTreeRequest{Kind: &guestwirev1.UnpackTreeRequest_Start{Start: start}})
	in, buf := bodyOf(w, r), make([]byte, transferChunk)
	for err == nil {
		n, rerr := in.next(buf)
		if n > 0 {
			err = up.Send(&guestwirev1.UnpackTreeRequest{Kind: &guestwirev1.UnpackTreeRequest_Data{Data: buf[:n]}})
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			_, _ = up.CloseAndReceive()
			return brokenBody(rerr)
		}
	}
	if err == nil {
		err = up.Send(&guestwirev1.UnpackTreeRequest{Kind: &guestwirev1.UnpackTreeRequest_End{End: &guestwirev1.UnpackEnd{}}})
	}
	res, rerr := up.CloseAndReceive()
	if rerr != nil {
		return session.Explain(ctx, rerr)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return session.Explain(ctx, err)
	}
	web.WriteJSON(w, http.StatusOK, gen.Unpacked{Entries: res.Msg.GetEntries(), Bytes: res.Msg.GetBytes()})
	return nil
}
