package ops

import "math/bits"

// SlotSet hands out the lowest free slot; slots count from 1.
type SlotSet struct{ words []uint64 }

// Next returns the lowest free slot without taking it.
func (s *SlotSet) Next() int {
	for i, w := range s.words {
		if w != ^uint64(0) {
			return i*64 + bits.TrailingZeros64(^w) + 1
		}
	}
	return len(s.words)*64 + 1
}

// Take marks a slot as used.
func (s *SlotSet) Take(slot int) {
	i := (slot - 1) / 64
	for len(s.words) <= i {
		s.words = append(s.words, 0)
	}
	s.words[i] |= 1 << ((slot - 1) % 64)
}

// Free gives a slot back.
func (s *SlotSet) Free(slot int) {
	s.words[(slot-1)/64] &^= 1 << ((slot - 1) % 64)
}

// Taken reports whether a slot is used.
func (s *SlotSet) Taken(slot int) bool {
	i := (slot - 1) / 64
	return i < len(s.words) && s.words[i]&(1<<((slot-1)%64)) != 0
}
