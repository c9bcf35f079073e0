package procs

import (
	"golang.org/x/sys/unix"
)

// ring holds the last bytes of a stream. Its memory is mapped, so that it costs
// only what was written and the collector's reserve does not double it.
type ring struct {
	mem        []byte
	start, end int64 // which bytes of the stream it holds
}

func newRing(size int) (ring, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return ring{mem: mem}, err
}

func (r *ring) size() int64 { return int64(len(r.mem)) }

// write adds p, of which the oldest bytes of the ring make room.
func (r *ring) write(p []byte) {
	if over := len(p) - len(r.mem); over > 0 {
		r.end += int64(over)
		p = p[over:]
	}
	for len(p) > 0 {
		at := int(r.end % r.size())
		n := copy(r.mem[at:], p)
		r.end += int64(n)
		p = p[n:]
	}
	r.start = max(r.start, r.end-r.size())
}

// read copies what the ring holds from offset on, as much as p takes.
func (r *ring) read(p []byte, offset int64) int {
	total := 0
	for len(p) > 0 && offset < r.end && offset >= r.start {
		at := int(offset % r.size())
		n := copy(p[:min(int64(len(p)), r.end-offset)], r.mem[at:])
		p = p[n:]
		offset += int64(n)
		total += n
	}
	return total
}

// used is how much memory the ring costs, in bytes.
func (r *ring) used() int64 { return min(r.end, r.size()) }

func (r *ring) free() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem, r.start = nil, r.end
	}
}
