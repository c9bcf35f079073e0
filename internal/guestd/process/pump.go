package process

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ChunkSize bounds one write of a command's output, in bytes.
const ChunkSize = 64 << 10

// pipe makes a pipe. Our end can be waited for with a deadline; the command's
// end blocks, as programs expect.
func pipe(oursReads bool) (ours *os.File, theirs int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	mine, theirs := p[1], p[0]
	if oursReads {
		mine, theirs = p[0], p[1]
	}
	if err := unix.SetNonblock(mine, true); err != nil {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(mine), "|"), theirs, nil
}

// output moves what a command writes from its pipe to a writer.
type output struct {
	r   *os.File
	w   io.Writer
	buf []byte
	err error // of the writer
	eof bool
}

// pump copies until end of file, or until the deadline that ends the grace
// after the command's own end; then it takes exactly what the pipe holds, which
// includes everything the command itself wrote. When the writer fails, the rest
// is dropped, so that the command sees no broken pipe of ours.
func (o *output) pump() {
	o.buf = make([]byte, ChunkSize)
	for {
		n, err := o.r.Read(o.buf)
		o.write(o.buf[:n])
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			o.rest()
			return
		default:
			o.eof = true
			return
		}
	}
}

func (o *output) rest() {
	left, err := o.buffered()
	if err != nil || o.r.SetReadDeadline(time.Time{}) != nil {
		return
	}
	for left > 0 {
		n, err := o.r.Read(o.buf[:min(left, len(o.buf))])
		o.write(o.buf[:n])
		left -= n
		if err != nil {
			o.eof = true
			return
		}
	}
}

// buffered is how many bytes the pipe holds.
func (o *output) buffered() (int, error) {
	raw, err := o.r.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var ioctlErr error
	if err := raw.Control(func(fd uintptr) { n, ioctlErr = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return 0, err
	}
	return n, ioctlErr
}

func (o *output) write(p []byte) {
	if len(p) == 0 || o.err != nil {
		return
	}
	_, o.err = o.w.Write(p)
}

// maxLingers bounds the pipes of background processes that are kept drained;
// beyond it they are closed.
const maxLingers = 4096

// lingers reads and drops what background processes go on writing after their
// command has ended, so that they neither block nor die of a broken pipe.
type lingers struct {
	mu     sync.Mutex
	closed bool
	files  map[*os.File]struct{}
	wait   sync.WaitGroup
}

func (l *lingers) add(f *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.files) >= maxLingers {
		_ = f.Close()
		return
	}
	if l.files == nil {
		l.files = map[*os.File]struct{}{}
	}
	l.files[f] = struct{}{}
	l.wait.Go(func() {
		_, _ = io.Copy(io.Discard, f) // ends with the last writer, or with close
		_ = f.Close()
		l.mu.Lock()
		delete(l.files, f)
		l.mu.Unlock()
	})
}

func (l *lingers) close() {
	l.mu.Lock()
	l.closed = true
	for f := range l.files {
		_ = f.Close()
	}
	l.mu.Unlock()
	l.wait.Wait()
}
