// Package ocitest gives tests a registry in the process, with faults, and
// images to put into it.
package ocitest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Registry is a registry on loopback.
type Registry struct {
	Host string
	// Blobs counts the requests for blobs that were answered.
	Blobs atomic.Int64

	mu     sync.Mutex
	faults Faults
}

// Faults are what goes wrong at a registry. They count for blobs that are
// fetched, unless they say otherwise.
type Faults struct {
	Status int           // every request is answered with it
	Cut    int           // a blob breaks off after so many bytes
	CutFor int           // so many times only; zero: always
	Flip   bool          // a blob's last byte is another
	Stall  bool          // nothing comes after the first bytes of a blob
	Delay  time.Duration // before each piece of 32 kB of a blob
	Login  string        // user:password that is needed
}

// New starts a registry that ends with the test.
func New(tb testing.TB) *Registry {
	tb.Helper()
	r := &Registry{}
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(inner, w, req) }))
	tb.Cleanup(srv.Close)
	r.Host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// Set replaces the faults.
func (r *Registry) Set(f Faults) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = f
}

func (r *Registry) serve(inner http.Handler, w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	f := r.faults
	blob := req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/")
	if blob && f.CutFor > 0 {
		if r.faults.CutFor--; r.faults.CutFor == 0 {
			r.faults.Cut = 0
		}
	}
	r.mu.Unlock()
	if f.Status != 0 {
		w.WriteHeader(f.Status)
		return
	}
	if f.Login != "" {
		if u, p, ok := req.BasicAuth(); !ok || u+":"+p != f.Login {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	}
	if blob {
		r.Blobs.Add(1)
		if f.Cut > 0 || f.Flip || f.Stall || f.Delay > 0 {
			faulty(inner, w, req, f)
			return
		}
	}
	inner.ServeHTTP(w, req)
}

func faulty(inner http.Handler, w http.ResponseWriter, req *http.Request, f Faults) {
	rec := httptest.NewRecorder()
	inner.ServeHTTP(rec, req)
	body := rec.Body.Bytes()
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	if f.Flip && len(body) > 0 {
		body = bytes.Clone(body)
		body[len(body)-1] ^= 1
	}
	w.WriteHeader(rec.Code)
	sent := 0
	for len(body) > 0 {
		n := min(32<<10, len(body))
		if f.Cut > 0 && sent+n > f.Cut {
			_, _ = w.Write(body[:f.Cut-sent])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body[:n])
		_ = http.NewResponseController(w).Flush()
		if f.Stall && n < len(body) {
			<-req.Context().Done()
			return
		}
		if f.Delay > 0 {
			select {
			case <-time.After(f.Delay):
			case <-req.Context().Done():
				return
			}
		}
		body, sent = body[n:], sent+n
	}
}

// Push puts an image at a tag and returns its reference.
func (r *Registry) Push(tb testing.TB, repoTag string, img v1.Image) string {
	tb.Helper()
	ref, err := name.ParseReference(r.Host + "/" + repoTag)
	if err != nil {
		tb.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		tb.Fatal(err)
	}
	return ref.String()
}

// PushIndex puts an index at a tag and returns its reference.
func (r *Registry) PushIndex(tb testing.TB, repoTag string, idx v1.ImageIndex) string {
	tb.Helper()
	ref, err := name.ParseReference(r.Host + "/" + repoTag)
	if err != nil {
		tb.Fatal(err)
	}
	if err := remote.WriteIndex(ref, idx); err != nil {
		tb.Fatal(err)
	}
	return ref.String()
}

// File is one entry of a layer; its type is tar's, a regular file if empty.
type File struct {
	tar.Header
	Content []byte
}

// Text is a regular file.
func Text(name, content string) File {
	return File{tar.Header{Name: name, Mode: 0o644}, []byte(content)}
}

// Program is an executable file.
func Program(name string, content []byte) File {
	return File{tar.Header{Name: name, Mode: 0o755}, content}
}

// Layer makes a layer of files.
func Layer(tb testing.TB, files ...File) v1.Layer {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := f.Header
		h.Size = int64(len(f.Content))
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_600_000_000, 0)
		}
		if err := w.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(f.Content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithCompressedCaching, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// Zeros makes a layer of one file of so many zeros, which are held nowhere.
func Zeros(tb testing.TB, name string, size int64) v1.Layer {
	tb.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size})
			if err == nil {
				_, err = io.CopyN(tw, zeros{}, size)
			}
			_ = w.CloseWithError(errors.Join(err, tw.Close())) // it never fails
		}()
		return r, nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Image makes an image of layers for an architecture in Go's words.
func Image(tb testing.TB, arch string, config v1.Config, layers ...v1.Layer) v1.Image {
	tb.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		tb.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.Architecture, cfg.OS, cfg.Config = arch, "linux", config
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		tb.Fatal(err)
	}
	return img
}

// Index makes an index of images, one for each architecture.
func Index(tb testing.TB, images map[string]v1.Image) v1.ImageIndex {
	tb.Helper()
	idx := v1.ImageIndex(empty.Index)
	for arch, img := range images {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return idx
}
