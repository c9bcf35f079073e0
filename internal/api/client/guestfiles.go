package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Stat says what is at a path; with follow, where a link leads.
func (g Guest) Stat(ctx context.Context, env, path string, follow bool) (f gen.FileInfo, err error) {
	resp, err := g.api.raw.StatFile(ctx, env, &gen.StatFileParams{Path: path, Follow: &follow})
	err = decode(resp, err, &f)
	return f, err
}

// Download writes a file's bytes to w. A connection that breaks is taken up
// where it stopped, unless the file has changed since.
func (g Guest) Download(ctx context.Context, env, path string, w io.Writer) error {
	d := &download{w: w}
	return g.again(ctx, func() int64 { return d.done }, func() error { return d.once(ctx, g.api, env, path) })
}

type download struct {
	w    io.Writer
	done int64
	etag string
}

func (d *download) once(ctx context.Context, api *API, env, path string) error {
	resp, err := api.raw.ReadFile(ctx, env, &gen.ReadFileParams{Path: path}, func(_ context.Context, r *http.Request) error {
		if d.done > 0 {
			r.Header.Set("Range", "bytes="+strconv.FormatInt(d.done, 10)+"-")
			r.Header.Set("If-Range", d.etag)
		}
		return nil
	})
	if err != nil {
		return plainURLError(err)
	}
	defer resp.Body.Close()
	switch {
	case d.done > 0 && resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && resp.Header.Get("Content-Range") == fmt.Sprintf("bytes */%d", d.done):
		return nil // all had come
	case d.done > 0 && resp.StatusCode == http.StatusOK:
		return &callbackError{errors.New("the file changed while it was read; begin again")}
	case resp.StatusCode/100 != 2:
		return errorFrom(resp)
	}
	d.etag = resp.Header.Get("ETag")
	n, err := io.Copy(callbackWriter{d.w}, resp.Body)
	d.done += n
	return err
}

// callbackWriter marks what goes wrong at the caller's own end.
type callbackWriter struct{ w io.Writer }

func (w callbackWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		err = &callbackError{err}
	}
	return n, err
}

// Upload is a file to write. The zero Mode and Owner leave them to the server.
type Upload struct {
	Path, Mode, Owner string
	Parents           bool
	ModifiedNS        int64
	Data              io.ReadSeeker
}

// Upload writes a file, which is in its place once it is whole. A connection
// that breaks is taken up where it stopped.
func (g Guest) Upload(ctx context.Context, env string, u Upload) (f gen.FileInfo, err error) {
	size, err := u.Data.Seek(0, io.SeekEnd)
	if err != nil {
		return f, err
	}
	name, offset, first := rand.Text(), int64(0), true
	err = g.again(ctx, func() int64 { return offset }, func() error {
		if !first {
			resp, err := g.api.raw.FindUpload(ctx, env, &gen.FindUploadParams{Path: u.Path, Upload: name})
			var found gen.UploadOffset
			if err := decode(resp, err, &found); err != nil {
				return err
			}
			offset = min(found.Offset, size)
		}
		first = false
		if _, err := u.Data.Seek(offset, io.SeekStart); err != nil {
			return &callbackError{err}
		}
		params := &gen.WriteFileParams{Path: u.Path, Parents: &u.Parents, Upload: &name, Offset: &offset}
		if u.Mode != "" {
			params.Mode = &u.Mode
		}
		if u.Owner != "" {
			params.Owner = &u.Owner
		}
		if u.ModifiedNS > 0 {
			params.Mtime = &u.ModifiedNS
		}
		resp, err := g.api.raw.WriteFileWithBody(ctx, env, params, "application/octet-stream", io.LimitReader(u.Data, size-offset),
			func(_ context.Context, r *http.Request) error {
				r.ContentLength = size - offset
				if r.ContentLength == 0 {
					r.Body = http.NoBody
				}
				return nil
			})
		return decode(resp, err, &f)
	})
	return f, err
}

// Pack writes a file or directory to w as a tar archive.
func (g Guest) Pack(ctx context.Context, env, path string, w io.Writer) error {
	resp, err := g.api.raw.PackFiles(ctx, env, &gen.PackFilesParams{Path: path})
	if err != nil {
		return plainURLError(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errorFrom(resp)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}

// Unpack unpacks a tar archive into a directory, which is made if need be, with
// the archive's owners.
func (g Guest) Unpack(ctx context.Context, env, path string, archive io.Reader) (u gen.Unpacked, err error) {
	yes := true
	resp, err := g.api.raw.UnpackFilesWithBody(ctx, env, &gen.UnpackFilesParams{Path: path, Owners: &yes, Parents: &yes}, "application/x-tar", archive)
	err = decode(resp, err, &u)
	return u, err
}
