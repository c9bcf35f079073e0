package guestops

import "sync"

const (
	// outputLimit bounds each stream of a buffered command; what is over is
	// dropped and the result says so.
	outputLimit = 8 << 20
	// outputFree is what a stream may hold whatever the others hold.
	outputFree = 64 << 10
	// outputTotal bounds what all streams at a time hold beyond that. A stream
	// that gets no more of it ends there, as at its own limit.
	outputTotal = 256 << 20
)

// budget is memory that buffered output shares, in bytes.
type budget struct {
	mu   sync.Mutex
	left int // guarded by mu
}

func (b *budget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// capped keeps the beginning of a stream: what its limit and the budget have
// room for.
type capped struct {
	budget *budget
	taken  int // of the budget
	buf    []byte
	over   bool // something was dropped, and so is all that follows
}

func (c *capped) Write(p []byte) (int, error) {
	if c.over {
		return len(p), nil
	}
	n := min(len(p), outputLimit-len(c.buf))
	if need := len(c.buf) + n; need > cap(c.buf) {
		n = c.grow(need) - len(c.buf)
	}
	c.buf = append(c.buf, p[:n]...)
	c.over = n < len(p)
	return len(p), nil
}

// grow makes room for need bytes, or as many as the budget allows, and returns
// how many there may be.
func (c *capped) grow(need int) int {
	for _, size := range []int{min(max(need, 2*cap(c.buf)), outputLimit), need, outputFree} {
		if size <= cap(c.buf) {
			continue
		}
		if more := max(0, size-outputFree) - c.taken; more <= 0 || c.budget.take(more) {
			c.taken += max(0, more)
			grown := make([]byte, len(c.buf), size)
			copy(grown, c.buf)
			c.buf = grown
			break
		}
	}
	return min(need, cap(c.buf))
}

// free returns what the stream has taken; its bytes are the caller's now.
func (c *capped) free() {
	c.budget.give(c.taken)
	c.taken = 0
}
