package oci

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/klauspost/compress/zstd"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/tree"
)

var errCorrupt = errors.New("the digest does not match")

// Progress is how far the reading of an image is.
type Progress struct {
	Phase       string  // what is being done, for people
	Done, Total int64   // bytes; Total is zero where it is not known
	Rate        float64 // bytes a second, of the last moments
}

// String is a line for people.
func (p Progress) String() string {
	if p.Total <= 0 && p.Done <= 0 {
		return p.Phase
	}
	text := fmt.Sprintf("%s: %s", p.Phase, size(p.Done))
	if p.Total > 0 {
		text += " of " + size(p.Total)
	}
	if p.Rate > 0 {
		text += ", " + size(int64(p.Rate)) + "/s"
	}
	return text
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%d kB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// progressEvery is between two reports of progress.
const progressEvery = 500 * time.Millisecond

// Apply fetches the image's layers, several at a time, and applies them in
// their order to t. Fetched layers lie in dir until they are applied. room is
// asked before bytes are written; see tree.Room.
func (i *Image) Apply(ctx context.Context, cfg Config, job Job) error {
	f := &fetch{cfg: cfg.withDefaults(), job: job, img: i}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { f.report(ctx) })
	ready := f.start(ctx, &wg)
	for n := range i.layers {
		if err := f.apply(ctx, n, ready[n]); err != nil {
			if job.What.Given != "" {
				return remoteError(job.What, err)
			}
			return localError(job.Path, err)
		}
	}
	return nil
}

// Job is where an image goes.
type Job struct {
	Tree     *tree.Tree
	Dir      string    // for layers on their way
	What     Reference // of a registry's image
	Path     string    // of a local one
	Room     tree.Room
	Progress func(Progress) // may be nil; called from another goroutine
}

type fetch struct {
	cfg  Config
	job  Job
	img  *Image
	done atomic.Int64
}

// report tells of the progress until ctx ends.
func (f *fetch) report(ctx context.Context) {
	if f.job.Progress == nil {
		return
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	tell := func(rate float64) {
		f.job.Progress(Progress{Phase: "pulling image", Done: f.done.Load(), Total: f.img.Bytes, Rate: rate})
	}
	tell(0)
	last, rate := int64(0), 0.0
	for {
		select {
		case <-ctx.Done():
			tell(rate)
			return
		case <-tick.C:
			now := f.done.Load()
			rate = rate/2 + float64(now-last)/progressEvery.Seconds()/2
			last = now
			tell(rate)
		}
	}
}

// start fetches the remote layers, in order, so many at a time.
func (f *fetch) start(ctx context.Context, wg *sync.WaitGroup) []chan error {
	ready := make([]chan error, len(f.img.layers))
	slots := make(chan struct{}, f.cfg.Parallel)
	for n := range ready {
		ready[n] = make(chan error, 1)
	}
	wg.Go(func() {
		for n, l := range f.img.layers {
			if !l.remote {
				ready[n] <- nil
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				ready[n] <- context.Cause(ctx)
				return
			}
			wg.Go(func() {
				defer func() { <-slots }()
				ready[n] <- f.download(ctx, n)
			})
		}
	})
	return ready
}

func (f *fetch) path(n int) string { return filepath.Join(f.job.Dir, fmt.Sprintf("layer-%d", n)) }

// download fetches one layer into a file. A transfer that breaks off, stands
// still or brings other bytes is begun again, a few times.
func (f *fetch) download(ctx context.Context, n int) error {
	wait := 200 * time.Millisecond
	for try := 1; ; try++ {
		got, err := f.transfer(ctx, n)
		if err == nil || ctx.Err() != nil || try == f.cfg.Tries || final(err) {
			return err
		}
		f.done.Add(-got)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		wait *= 3
	}
}

// final errors stay the same however often one asks.
func final(err error) bool {
	var te *transport.Error
	return errors.As(err, &te) && te.StatusCode >= 400 && te.StatusCode < 500 && te.StatusCode != http.StatusTooManyRequests && te.StatusCode != http.StatusRequestTimeout
}

func (f *fetch) transfer(ctx context.Context, n int) (got int64, err error) {
	l := f.img.layers[n]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(f.cfg.Stall, func() { cancel(errStalled) })
	defer watchdog.Stop()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errStalled) {
			err = errors.Join(errStalled, err)
		}
	}()
	r, err := l.open(ctx)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	out, err := os.OpenFile(f.path(n), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	sum := sha256.New()
	got, err = f.copy(io.MultiWriter(out, sum), r, func() { watchdog.Reset(f.cfg.Stall) })
	err = errors.Join(err, out.Close())
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != l.digest.Hex {
		err = errCorrupt
	}
	if err == nil {
		err = failpoint.Hit("image.layer")
	}
	return got, verifyError(err)
}

// verifyError knows go-containerregistry's own complaint of a wrong digest or
// size.
func verifyError(err error) error {
	if err == nil || errors.Is(err, errCorrupt) {
		return err
	}
	if strings.Contains(err.Error(), "checksum") { // its type is not exported
		return errors.Join(errCorrupt, err)
	}
	return err
}

const chunk = 256 << 10

func (f *fetch) copy(w io.Writer, r io.Reader, alive func()) (n int64, err error) {
	buf := make([]byte, chunk)
	since := int64(0)
	for {
		k, err := r.Read(buf)
		if k > 0 {
			alive()
			if since += int64(k); since >= 16<<20 && f.job.Room != nil {
				since = 0
				if err := f.job.Room(16 << 20); err != nil {
					return n, err
				}
			}
			if _, err := w.Write(buf[:k]); err != nil {
				return n, err
			}
			n += int64(k)
			f.done.Add(int64(k))
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// apply waits for a layer and adds it to the tree. What was fetched is removed.
func (f *fetch) apply(ctx context.Context, n int, ready <-chan error) error {
	select {
	case err := <-ready:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l := f.img.layers[n]
	var r io.ReadCloser
	var err error
	if l.remote {
		defer os.Remove(f.path(n))
		r, err = os.Open(f.path(n))
	} else {
		r, err = l.open(ctx)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	var raw hash.Hash
	src := io.Reader(r)
	if !l.remote { // fetched ones were checked as they came
		raw = sha256.New()
		src = io.TeeReader(r, io.MultiWriter(raw, counter{&f.done}))
	}
	plain, closePlain, err := uncompressed(src)
	if err != nil {
		return err
	}
	defer closePlain()
	diff := sha256.New()
	body := io.TeeReader(plain, diff)
	if err := f.job.Tree.Apply(ctx, body, f.job.Room); err != nil {
		return f.unreadable(n, err)
	}
	// What follows the archive's end counts for the digests, too.
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	if raw != nil {
		if _, err := io.Copy(io.Discard, src); err != nil {
			return err
		}
		if hex.EncodeToString(raw.Sum(nil)) != l.digest.Hex {
			return errCorrupt
		}
	}
	if hex.EncodeToString(diff.Sum(nil)) != l.diffID.Hex {
		return errCorrupt
	}
	return failpoint.Hit("image.applied")
}

// unreadable is the error of a layer whose bytes are right and yet no archive.
func (f *fetch) unreadable(n int, err error) error {
	if !f.img.layers[n].remote || !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, tar.ErrHeader) {
		return err
	}
	return fail(fleet.CodeInvalidArgument, ReasonInvalid, err, "layer %d of image %s is no archive", n+1, f.job.What.RepoTag()).
		With(fleet.DetailRemedy, "build the image again")
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// uncompressed unpacks gzip and zstd, whatever the media type claims.
func uncompressed(r io.Reader) (io.Reader, func(), error) {
	b := bufio.NewReaderSize(r, chunk)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Close() }, nil
	case len(magic) == 4 && string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(512<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return b, func() {}, nil
}
