package hostd

import "math/bits"

// slotSet hands out the lowest free slot; slots count from 1.
type slotSet struct{ words []uint64 }

// next returns the lowest free slot without taking it.
func (s *slotSet) next() int {
	for i, w := range s.words {
		if w != ^uint64(0) {
			return i*64 + bits.TrailingZeros64(^w) + 1
		}
	}
	return len(s.words)*64 + 1
}

func (s *slotSet) take(slot int) {
	i := (slot - 1) / 64
	for len(s.words) <= i {
		s.words = append(s.words, 0)
	}
	s.words[i] |= 1 << ((slot - 1) % 64)
}

func (s *slotSet) free(slot int) {
	s.words[(slot-1)/64] &^= 1 << ((slot - 1) % 64)
}

func (s *slotSet) taken(slot int) bool {
	i := (slot - 1) / 64
	return i < len(s.words) && s.words[i]&(1<<((slot-1)%64)) != 0
}
