package ops

import "time"

// Recent keeps what was put into it last: for a time, and at most so many.
type Recent[V any] struct {
	keep  time.Duration
	most  int
	byKey map[string]V
	order []aged // oldest first
}

type aged struct {
	key string
	at  time.Time
}

// NewRecent keeps values for a time, and at most so many of them.
func NewRecent[V any](keep time.Duration, most int) *Recent[V] {
	return &Recent[V]{keep: keep, most: most, byKey: map[string]V{}}
}

// Get returns a value that is still kept.
func (r *Recent[V]) Get(key string) (v V, ok bool) {
	v, ok = r.byKey[key]
	return v, ok
}

// Put keeps a value, or replaces the one of its key, which keeps its age.
func (r *Recent[V]) Put(key string, v V, at time.Time) {
	if _, there := r.byKey[key]; !there {
		r.order = append(r.order, aged{key, at})
	}
	r.byKey[key] = v
	if len(r.order) > r.most {
		r.drop(1)
	}
}

// Forget drops what is older than the time it is kept.
func (r *Recent[V]) Forget(now time.Time) {
	n := 0
	for n < len(r.order) && now.Sub(r.order[n].at) > r.keep {
		n++
	}
	r.drop(n)
}

func (r *Recent[V]) drop(n int) {
	for _, a := range r.order[:n] {
		delete(r.byKey, a.key)
	}
	r.order = r.order[n:] // the next growth lets go of the array
}

// Each calls fn with every value, oldest first.
func (r *Recent[V]) Each(fn func(V)) {
	for _, a := range r.order {
		fn(r.byKey[a.key])
	}
}
