package hostd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fusevm/fuse/internal/fleet"
)

// compactAt is the size in bytes below which the log is never rewritten.
const compactAt = 4 << 20

// journal is the host's one append log. Records that callers hand over while
// a write is under way go out together in the next one, with one fsync.
//
// A ticket that was asked to be durable waits for the fsync; the others wait
// for the write alone, which survives the death of the process. That is
// enough for what is lost with the machine's memory anyway.
type journal struct {
	path string
	// snapshot returns the live records and takes over what is queued, in one
	// step under the registry's lock.
	snapshot func() ([]record, []*ticket)

	mu     sync.Mutex
	queue  []*ticket
	closed bool

	wake chan struct{}
	done chan struct{}

	// The writer's own.
	f         *os.File
	size      int64
	compacted int64 // size after the last rewrite
	broken    error
}

// ticket is one record on its way to the disk.
type ticket struct {
	line    []byte
	durable bool
	written chan struct{}
	err     error // valid once written is closed
}

func (t *ticket) wait() error {
	<-t.written
	return t.err
}

// openJournal reads the log and calls apply for each sound record, in order.
// A torn end is cut off; damaged counts the lines before it that could not be
// read.
func openJournal(path string, apply func(record)) (j *journal, damaged int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the registry's log: %w", err)
	}
	size, damaged, err := replay(f, apply)
	if err == nil {
		err = errors.Join(f.Truncate(size), syncDir(filepath.Dir(path)))
	}
	if err == nil {
		_, err = f.Seek(size, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	return &journal{
		path: path, f: f, size: size, compacted: size,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}, damaged, nil
}

func replay(f *os.File, apply func(record)) (size int64, damaged int, err error) {
	r := bufio.NewReaderSize(f, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return size, damaged, nil // what is left has no newline: torn
		}
		if err != nil {
			return 0, 0, err
		}
		size += int64(len(line))
		if rec, ok := decodeRecord(bytes.TrimSuffix(line, []byte("\n"))); ok {
			apply(rec)
		} else {
			damaged++
		}
	}
}

// append queues a record. It does not block, so that callers can hold the
// registry's lock and the log keeps the order of their changes.
func (j *journal) append(r record, durable bool) *ticket {
	t := &ticket{durable: durable, written: make(chan struct{})}
	t.line, t.err = r.encode()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed && t.err == nil {
		t.err = errors.New("the registry's log is closed")
	}
	if t.err != nil {
		close(t.written)
		return t
	}
	j.queue = append(j.queue, t)
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return t
}

// take hands over what is queued.
func (j *journal) take() []*ticket {
	j.mu.Lock()
	defer j.mu.Unlock()
	q := j.queue
	j.queue = nil
	return q
}

// run writes until close is called and everything queued is on disk.
func (j *journal) run() {
	defer close(j.done)
	for range j.wake {
		if batch := j.take(); len(batch) > 0 {
			finish(batch, j.write(batch))
		}
		if j.size > max(compactAt, 4*j.compacted) && j.broken == nil {
			j.compact()
		}
	}
}

func finish(batch []*ticket, err error) {
	for _, t := range batch {
		t.err = err
		close(t.written)
	}
}

func (j *journal) write(batch []*ticket) error {
	if j.broken != nil {
		return j.broken
	}
	var buf bytes.Buffer
	durable := false
	for _, t := range batch {
		buf.Write(t.line)
		durable = durable || t.durable
	}
	if _, err := j.f.Write(buf.Bytes()); err != nil {
		// Part of it may be there: go back to the last whole batch.
		_, serr := j.f.Seek(j.size, io.SeekStart)
		if terr := errors.Join(j.f.Truncate(j.size), serr); terr != nil {
			j.broken = diskError(errors.Join(err, terr))
		}
		return diskError(err)
	}
	j.size += int64(buf.Len())
	if !durable {
		return nil
	}
	if err := j.f.Sync(); err != nil {
		// What the kernel dropped cannot be known: stop taking promises.
		j.broken = diskError(err)
		return j.broken
	}
	return nil
}

func diskError(err error) error {
	e := fleet.Wrap(fleet.CodeUnavailable, err, "the host cannot write its registry")
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return e.With(fleet.DetailReason, "disk_full").
			With(fleet.DetailRemedy, "free space in the host agent's data directory")
	}
	return e.With(fleet.DetailReason, "disk_error")
}

// compact rewrites the log with the live records alone. If that does not
// work out, the old log goes on.
func (j *journal) compact() {
	live, batch := j.snapshot()
	err := j.rewrite(live)
	if err != nil {
		j.compacted = j.size // try again once it has grown as much again
		err = j.write(batch)
	}
	finish(batch, err)
}

func (j *journal) rewrite(live []record) error {
	tmp := j.path + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	size, err := writeAll(f, live)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(tmp, j.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(tmp))
	}
	old := j.f
	j.f, j.size, j.compacted = f, size, size
	return errors.Join(syncDir(filepath.Dir(j.path)), old.Close())
}

func writeAll(f io.Writer, live []record) (size int64, err error) {
	w := bufio.NewWriterSize(f, 1<<16)
	for _, r := range live {
		line, err := r.encode()
		if err != nil {
			return 0, err
		}
		n, err := w.Write(line)
		size += int64(n)
		if err != nil {
			return 0, err
		}
	}
	return size, w.Flush()
}

// close writes what is queued and waits for the writer.
func (j *journal) close() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	close(j.wake)
	<-j.done
	if batch := j.take(); len(batch) > 0 {
		finish(batch, j.write(batch))
	}
	return j.f.Close()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
