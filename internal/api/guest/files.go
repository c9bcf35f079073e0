package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
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
	filesPath   = "/v1/environments/{id}/files"
	archivePath = "/v1/environments/{id}/archive"
)

func (s fileRoutes) table() []web.Route {
	return []web.Route{
		{Method: http.MethodGet, Pattern: filesPath, Slow: true, Handle: s.readFile},
		{Method: http.MethodPut, Pattern: filesPath, Slow: true, Handle: s.writeFile},
		{Method: http.MethodPost, Pattern: filesPath, BodyLimit: web.BodyLimit, Handle: s.actOnFiles},
		{Method: http.MethodDelete, Pattern: filesPath, Slow: true, Handle: s.removeFile},
		{Method: http.MethodGet, Pattern: filesPath + "/stat", Handle: s.statFile},
		{Method: http.MethodGet, Pattern: filesPath + "/list", Handle: s.listFiles},
		{Method: http.MethodGet, Pattern: filesPath + "/upload", Handle: s.findUpload},
		{Method: http.MethodGet, Pattern: filesPath + "/watch", Slow: true, Handle: s.watchFiles},
		{Method: http.MethodGet, Pattern: archivePath, Slow: true, Handle: s.packFiles},
		{Method: http.MethodPut, Pattern: archivePath, Slow: true, Handle: s.unpackFiles},
	}
}

// fileRoutes are the routes of files.
type fileRoutes struct{ routes }

// maxPath bounds a path, in bytes, as the kernel does.
const maxPath = 4095

// placeOf reads where a file is.
func placeOf(q url.Values) (*guestwirev1.Place, error) {
	return checkPlace(q.Get("root"), q.Get("path"))
}

func checkPlace(root, path string) (*guestwirev1.Place, error) {
	for field, p := range map[string]string{"path": path, "root": root} {
		if p == "" && field == "root" {
			continue
		}
		if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) || len(p) > maxPath || strings.Contains("/"+p+"/", "/../") {
			return nil, fleet.Invalid(field, fmt.Sprintf("an absolute path of at most %d bytes, without ..", maxPath), "give the full path", "%.120q is not allowed", p)
		}
	}
	return &guestwirev1.Place{Root: root, Path: path}, nil
}

// modeOf reads permission bits in octal.
func modeOf(text string) (*uint32, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // absent
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o7777 {
		return nil, fleet.Invalid("mode", "octal, at most 7777", "write it as 0644", "%.20q is not allowed", text)
	}
	mode := uint32(n)
	return &mode, nil
}

// ownerOf reads UID:GID.
func ownerOf(text string) (*guestwirev1.Owner, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // absent
	}
	u, g, _ := strings.Cut(text, ":")
	uid, err1 := strconv.ParseUint(u, 10, 31)
	gid, err2 := strconv.ParseUint(g, 10, 31)
	if err1 != nil || err2 != nil {
		return nil, fleet.Invalid("owner", "UID:GID", "write both as numbers", "%.40q is not allowed", text)
	}
	return &guestwirev1.Owner{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func fileOf(f *guestwirev1.FileInfo) gen.FileInfo {
	return gen.FileInfo{
		Name: f.GetName(), Type: f.GetType(), Size: f.GetSize(), Mode: fmt.Sprintf("%04o", f.GetMode()), UID: int(f.GetUid()), GID: int(f.GetGid()),
		ModifiedAt: time.Unix(0, f.GetModifiedUnixNs()).UTC(), Target: f.GetTarget(),
	}
}

// onFiles opens a session for a place and runs a short call in it.
func (s fileRoutes) onFiles(r *web.Request, verb string, place *guestwirev1.Place, call func(context.Context, *guestops.Session) error) error {
	session, err := s.open(r, verb, map[string]string{"path": place.GetPath()})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := quick(r)
	defer cancel()
	return session.Explain(ctx, call(ctx, session))
}

func (s fileRoutes) statFile(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	place, err := placeOf(q)
	if err != nil {
		return err
	}
	follow, err := flag(q, "follow")
	if err != nil {
		return err
	}
	return s.onFiles(r, "files.read", place, func(ctx context.Context, session *guestops.Session) error {
		res, err := session.Files.StatFile(ctx, connect.NewRequest(&guestwirev1.StatFileRequest{Place: place, Follow: follow}))
		if err == nil {
			web.WriteJSON(w, http.StatusOK, fileOf(res.Msg.GetFile()))
		}
		return err
	})
}

func (s fileRoutes) listFiles(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	place, err := placeOf(q)
	if err != nil {
		return err
	}
	limit, err := number(q, "limit")
	if err != nil {
		return err
	}
	m := &guestwirev1.ListDirectoryRequest{Place: place, After: q.Get("after"), Limit: int32(min(limit, 1000))}
	return s.onFiles(r, "files.read", place, func(ctx context.Context, session *guestops.Session) error {
		res, err := session.Files.ListDirectory(ctx, connect.NewRequest(m))
		if err != nil {
			return err
		}
		out := gen.FileList{Files: []gen.FileInfo{}}
		for _, f := range res.Msg.GetFiles() {
			out.Files = append(out.Files, fileOf(f))
		}
		if n := len(out.Files); res.Msg.GetMore() && n > 0 {
			out.Next = out.Files[n-1].Name
		}
		web.WriteJSON(w, http.StatusOK, out)
		return nil
	})
}

func (s fileRoutes) findUpload(w http.ResponseWriter, r *web.Request) error {
	place, err := placeOf(r.URL.Query())
	if err != nil {
		return err
	}
	name, err := uploadName(r.URL.Query())
	if err != nil {
		return err
	}
	return s.onFiles(r, "files.read", place, func(ctx context.Context, session *guestops.Session) error {
		res, err := session.Files.FindUpload(ctx, connect.NewRequest(&guestwirev1.FindUploadRequest{Place: place, Upload: name}))
		if err == nil {
			web.WriteJSON(w, http.StatusOK, gen.UploadOffset{Offset: res.Msg.GetOffset()})
		}
		return err
	})
}

func uploadName(q url.Values) (string, error) {
	name := q.Get("upload")
	if len(name) > 128 {
		return "", fleet.Invalid("upload", "at most 128 bytes", "take a shorter name", "has %d bytes", len(name))
	}
	return name, nil
}

func (s fileRoutes) removeFile(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	place, err := placeOf(q)
	if err != nil {
		return err
	}
	recursive, err := flag(q, "recursive")
	if err != nil {
		return err
	}
	session, err := s.open(r, "files.write", map[string]string{"path": place.GetPath()})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx := r.Context() // a large tree takes its time
	if _, err = session.Files.RemoveFile(ctx, connect.NewRequest(&guestwirev1.RemoveFileRequest{Place: place, Recursive: recursive})); err != nil {
		return session.Explain(ctx, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s fileRoutes) actOnFiles(w http.ResponseWriter, r *web.Request) error {
	return web.Dispatch(map[string]web.Action{
		"mkdir": {BodyLimit: web.BodyLimit, Handle: s.makeDirectory},
		"move":  {BodyLimit: web.BodyLimit, Handle: s.moveFile},
	}, w, r)
}

func (s fileRoutes) makeDirectory(w http.ResponseWriter, r *web.Request) error {
	var body gen.FileAction
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	place, err := checkPlace(body.Root, body.Path)
	if err != nil {
		return err
	}
	m := &guestwirev1.MakeDirectoryRequest{Place: place, Parents: body.Parents}
	if m.Mode, err = modeOf(body.Mode); err != nil {
		return err
	}
	if m.Owner, err = ownerOf(body.Owner); err != nil {
		return err
	}
	return s.onFiles(r, "files.write", place, func(ctx context.Context, session *guestops.Session) error {
		_, err := session.Files.MakeDirectory(ctx, connect.NewRequest(m))
		if err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		return err
	})
}

func (s fileRoutes) moveFile(w http.ResponseWriter, r *web.Request) error {
	var body gen.FileAction
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	place, err := checkPlace(body.Root, body.Path)
	if err == nil {
		_, err = checkPlace(body.Root, body.To)
	}
	if err != nil {
		return err
	}
	return s.onFiles(r, "files.write", place, func(ctx context.Context, session *guestops.Session) error {
		_, err := session.Files.MoveFile(ctx, connect.NewRequest(&guestwirev1.MoveFileRequest{Place: place, To: body.To, Replace: body.Replace}))
		if err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		return err
	})
}

func (s fileRoutes) watchFiles(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	place, err := placeOf(q)
	if err != nil {
		return err
	}
	recursive, err := flag(q, "recursive")
	if err != nil {
		return err
	}
	session, err := s.open(r, "files.read", map[string]string{"path": place.GetPath()})
	if err != nil {
		return err
	}
	defer session.Close()
	stream, ctx, closeStream, err := s.Streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := session.Files.WatchFiles(ctx, connect.NewRequest(&guestwirev1.WatchFilesRequest{Place: place, Recursive: recursive}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	defer func() { _ = out.Close() }()
	if !out.Receive() { // the first says that it watches, or why it cannot
		return session.Explain(ctx, out.Err())
	}
	stream.Begin()
	changes := make(chan *guestwirev1.WatchFilesResponse)
	go func() { // ends with ctx
		defer close(changes)
		for m := out.Msg(); ; m = out.Msg() {
			select {
			case changes <- m:
			case <-ctx.Done():
				return
			}
			if !out.Receive() {
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range changes {
		}
	}()
	return passChanges(ctx, stream, changes)
}

// passChanges sends changes, and a sign of life when there are none.
func passChanges(ctx context.Context, stream *web.Stream, changes <-chan *guestwirev1.WatchFilesResponse) error {
	quiet := time.NewTicker(web.KeepAlive)
	defer quiet.Stop()
	for {
		select {
		case m, ok := <-changes:
			if !ok {
				return nil
			}
			raw, err := json.Marshal(gen.FileChange{Kind: m.GetKind(), Path: m.GetPath(), Directory: m.GetDirectory()})
			if err != nil || !stream.Write([]byte("data: "+string(raw)+"\n\n")) {
				return nil
			}
		case <-quiet.C:
			if !stream.Write(web.KeepAliveComment) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}
