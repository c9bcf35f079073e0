// Package journal is the host agent's one append log: lines of JSON, each with
// its checksum, that many callers write together with one fsync. It does not
// know what the lines mean.
package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
)

// compactAt is the size in bytes below which the log is never rewritten.
const compactAt = 4 << 20

// Journal is an open log. Records that callers hand over while
// a write is under way go out together in the next one, with one fsync.
//
// A ticket that was asked to be durable waits for the fsync; the others wait
// for the write alone, which survives the death of the process. That is
// enough for what is lost with the machine's memory anyway.
type Journal struct {
	path string
	// Snapshot returns the records that say the same as the whole log and
	// takes over what is queued, in one step under the lock that callers hold
	// when they append. It is set before the first Append.
	Snapshot func() ([]any, []*Ticket)

	mu     sync.Mutex
	queue  []*Ticket
	closed bool

	wake chan struct{}
	done chan struct{}

	// The writer's own.
	f         *os.File
	size      int64
	compacted int64 // size after the last rewrite
	broken    error
}

// Ticket is one record on its way to the disk.
type Ticket struct {
	line    []byte
	durable bool
	written chan struct{}
	err     error // valid once written is closed
}

// Wait returns once the record is where it was asked to be.
func (t *Ticket) Wait() error {
	<-t.written
	return t.err
}

// Done returns a ticket of something that needs no writing.
func Done() *Ticket {
	t := &Ticket{written: make(chan struct{})}
	close(t.written)
	return t
}

// Open reads the log and calls apply for each sound record, in order. A torn
// end is cut off; damaged counts the lines before it that could not be read,
// by checksum or by apply. The log is written by a goroutine that Close ends.
func Open(path string, apply func(doc []byte) error) (j *Journal, damaged int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the log: %w", err)
	}
	size, damaged, err := replay(f, apply)
	if err == nil {
		err = errors.Join(f.Truncate(size), durable.SyncDir(filepath.Dir(path)))
	}
	if err == nil {
		_, err = f.Seek(size, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	j = &Journal{
		path: path, f: f, size: size, compacted: size,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go j.run()
	return j, damaged, nil
}

func replay(f *os.File, apply func([]byte) error) (size int64, damaged int, err error) {
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
		if doc, ok := decode(bytes.TrimSuffix(line, []byte("\n"))); !ok || apply(doc) != nil {
			damaged++
		}
	}
}

// Append queues a record. It does not block, so that callers can hold their
// own lock and the log keeps the order of their changes.
func (j *Journal) Append(record any, durable bool) *Ticket {
	t := &Ticket{durable: durable, written: make(chan struct{})}
	t.line, t.err = encode(record)
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

// Take hands over what is queued; Snapshot calls it.
func (j *Journal) Take() []*Ticket {
	j.mu.Lock()
	defer j.mu.Unlock()
	q := j.queue
	j.queue = nil
	return q
}

// run writes until Close is called and everything queued is on disk.
func (j *Journal) run() {
	defer close(j.done)
	for range j.wake {
		if batch := j.Take(); len(batch) > 0 {
			finish(batch, j.write(batch))
		}
		if j.size > max(compactAt, 4*j.compacted) && j.broken == nil {
			j.compact()
		}
	}
}

func finish(batch []*Ticket, err error) {
	for _, t := range batch {
		t.err = err
		close(t.written)
	}
}

func (j *Journal) write(batch []*Ticket) error {
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

// encode renders a record as a line: checksum, space, JSON.
func encode(record any) ([]byte, error) {
	doc, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	line := make([]byte, 0, len(doc)+10)
	line = fmt.Appendf(line, "%08x ", crc32.ChecksumIEEE(doc))
	line = append(line, doc...)
	return append(line, '\n'), nil
}

// decode reads a line without its newline; ok is false for a damaged one.
func decode(line []byte) (doc []byte, ok bool) {
	if len(line) < 10 || line[8] != ' ' {
		return nil, false
	}
	sum, err := strconv.ParseUint(string(line[:8]), 16, 32)
	return line[9:], err == nil && crc32.ChecksumIEEE(line[9:]) == uint32(sum)
}

func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return DiskFull(err)
	}
	return fleet.Wrap(fleet.CodeUnavailable, err, "the host cannot write its registry").
		With(fleet.DetailReason, "disk_error")
}

// DiskFull is the refusal that a full disk of the host leads to.
func DiskFull(err error) error {
	return fleet.Wrap(fleet.CodeUnavailable, err, "the disk of the host is full").
		With(fleet.DetailReason, "disk_full").
		With(fleet.DetailRemedy, "free space in the host agent's data directory")
}

// compact rewrites the log with the live records alone. If that does not
// work out, the old log goes on.
func (j *Journal) compact() {
	live, batch := j.Snapshot()
	err := j.rewrite(live)
	if err != nil {
		j.compacted = j.size // try again once it has grown as much again
		err = j.write(batch)
	}
	finish(batch, err)
}

func (j *Journal) rewrite(live []any) error {
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
	return errors.Join(durable.SyncDir(filepath.Dir(j.path)), old.Close())
}

func writeAll(f io.Writer, live []any) (size int64, err error) {
	w := bufio.NewWriterSize(f, 1<<16)
	for _, r := range live {
		line, err := encode(r)
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

// Close writes what is queued and waits for the writer.
func (j *Journal) Close() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	close(j.wake)
	<-j.done
	if batch := j.Take(); len(batch) > 0 {
		finish(batch, j.write(batch))
	}
	return j.f.Close()
}
